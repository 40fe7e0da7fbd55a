"""What every request goes through before any route: the key, the host, the size; and what every answer carries.

A server on this machine alone asks for no key, so it must not take orders from web pages: another site may reach it
through the reader's browser, by its address or by a name that was pointed at it. Hence the checks of Host and Origin.
"""

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request

from adlm.serve.limits import RequestRefused, ServerLimits
from adlm.serve.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Headers between the front and its workers, and keys of a scope.
CLIENT, ROUTE = "x-adlm-client", "x-adlm-route"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_BODY_SECONDS = 30.0
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_log = logging.getLogger("adlm.serve")


class Guard:
    """Checks requests before the application sees them, and counts and logs answers.

    Args:
        keys: one of which every request must have, by the name of the client; none on a server that only this machine
            reaches.
        fronted: requests come from the front of several workers, which has checked them and counts them.
    """

    def __init__(
        self,
        app: App,
        *,
        limits: ServerLimits,
        metrics: Metrics,
        keys: Mapping[str, str] | None = None,
        fronted: bool = False,
    ) -> None:
        self.app, self.limits, self.metrics, self.fronted = app, limits, metrics, fronted
        self.keys = dict(keys or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        began, status, first = time.perf_counter(), 0, 0.0

        async def with_headers(message: Message) -> None:
            nonlocal status, first
            if message["type"] == "http.response.start":
                status = message["status"]
                added = {ROUTE: _route(scope)} if self.fronted else _HEADERS
                own = [(name.lower().encode(), value.encode()) for name, value in added.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            elif not first:
                first = time.perf_counter() - began
            await send(message)

        try:
            try:
                self._check(scope)
                receive = await self._with_body(scope, receive)
            except RequestRefused as error:
                await _refuse(error, with_headers)
            else:
                await self.app(scope, receive, with_headers)
        finally:
            if not self.fronted:
                seconds = time.perf_counter() - began
                self.metrics.answered(_route(scope), status, seconds, first)
                _log.info("%s %s %d %.3fs", scope["method"], _route(scope), status, seconds)

    def _check(self, scope: Scope) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        address = (scope.get("client") or ("local", 0))[0]
        scope[CLIENT] = headers.get(CLIENT, "front") if self.fronted else address
        if not self.keys:
            if _name_of(f"//{host}") not in LOOPBACK:
                raise RequestRefused(403, "this server only answers requests to localhost", code="wrong_host")
        else:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            # All are compared, so that the time says nothing about which one is nearly right.
            right = [
                name
                for name, key in self.keys.items()
                if hmac.compare_digest(given.strip().encode(), key.encode()) and scheme.lower() == "bearer"
            ]
            if not right:
                raise RequestRefused(
                    401,
                    "the key is missing or wrong; send the header Authorization: Bearer KEY",
                    code="invalid_api_key",
                )
            if len(self.keys) > 1:
                scope[CLIENT] = right[0]
        if origin is not None and origin.partition("://")[2] != host:
            raise RequestRefused(403, "requests from other sites are refused", code="wrong_origin")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > self.limits.body:
            raise self._too_large()

    def _too_large(self) -> RequestRefused:
        return RequestRefused(413, f"the request body may have at most {self.limits.body} bytes", code="body_too_large")

    async def _with_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read it whole, as far as it may go; what is received afterwards is a disconnection."""
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return receive
        try:
            body = await asyncio.wait_for(self._body(receive), _BODY_SECONDS)
        except (asyncio.TimeoutError, TimeoutError) as error:  # two classes in Python 3.10
            raise RequestRefused(408, "the request did not arrive in time", code="timeout") from error
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return first.pop() if first else await receive()

        return replayed

    async def _body(self, receive: Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestRefused(400, "the client disconnected before the request was complete")
            body += message.get("body", b"")
            if len(body) > self.limits.body:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)


def client_of(request: Request) -> str:
    """Whose request it is, as the guard found."""
    return str(request.scope.get(CLIENT, ""))


def _route(scope: Scope) -> str:
    """The route, not the path: what a stranger wrote does not reach the log."""
    return str(scope.get(ROUTE) or getattr(scope.get("route"), "path", "other"))


def _name_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


async def _refuse(error: RequestRefused, send: Send) -> None:
    body = json.dumps(error.body()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
