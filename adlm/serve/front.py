"""The process in front of several workers: it passes each request to the worker with the fewest.

If a worker dies, a request of which nothing was answered yet is given to another one. A stream that has begun ends
with an error event.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import h11

from adlm.serve.guard import CLIENT, ROUTE, Receive, Scope, Send
from adlm.serve.limits import RequestRefused
from adlm.serve.metrics import Metrics

_TRIES = 3
_HOP = frozenset({b"connection", b"transfer-encoding", b"date", b"keep-alive", b"content-length"})
_STREAM = b"text/event-stream"
_log = logging.getLogger("adlm.serve")


class WorkerLost(Exception):
    """The connection to a worker ended before its answer did."""


class Worker(Protocol):
    """What the front knows of a worker. `requests` counts those that it is working on."""

    requests: int
    ready: bool

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...


class Front:
    """The application of the front.

    Args:
        workers: those there are now; one that died is replaced by another one in the same place.
        key: that workers ask for.
        seconds: to wait for a worker that is ready.
    """

    def __init__(self, workers: Callable[[], Sequence[Worker]], metrics: Metrics, key: str, seconds: float) -> None:
        self.workers, self.metrics, self.key, self.seconds = workers, metrics, key, seconds
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self.draining:
                raise RequestRefused(503, "the server is shutting down", code="draining", retry=5)
            if scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD"):
                scope[ROUTE] = "/metrics"
                text = self.metrics.text(await self._worker_metrics())
                await _answer(send, 200, [(b"content-type", b"text/plain; charset=utf-8")], text.encode())
                return
            body = (await receive()).get("body", b"") if scope["method"] in ("POST", "PUT", "PATCH") else b""
            await self._until_disconnected(self._forward(scope, body, send), receive)
        except RequestRefused as error:
            pairs = {"content-type": "application/json", **error.headers}
            headers = [(name.lower().encode(), value.encode()) for name, value in pairs.items()]
            await _answer(send, error.status, headers, json.dumps(error.body()).encode())

    async def _until_disconnected(self, work: Any, receive: Receive) -> None:
        """Give the work up as soon as the client is gone."""

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
        with suppress(asyncio.CancelledError):
            await tasks[0]

    async def _forward(self, scope: Scope, body: bytes, send: Send) -> None:
        for attempt in range(_TRIES):
            worker = await self._free_worker()
            answer = _Answer(scope, send)
            worker.requests += 1
            try:
                await answer.pass_on(self._exchange(worker, scope, body))
                return
            except WorkerLost:
                _log.warning("a worker died while it had a request (try %d)", attempt + 1)
                if answer.started:
                    await answer.break_off()
                    return
                worker.ready = False  # until it is replaced
            finally:
                worker.requests -= 1
        raise _lost()

    async def _free_worker(self) -> Worker:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.seconds
        while loop.time() < deadline:
            if ready := [worker for worker in self.workers() if worker.ready]:
                return min(ready, key=lambda worker: worker.requests)
            await asyncio.sleep(0.05)
        raise RequestRefused(503, "no worker is ready", code="no_worker", retry=5)

    async def _exchange(self, worker: Worker, scope: Scope, body: bytes) -> AsyncIterator[Any]:
        """The events of a worker's answer."""
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        headers = [
            (b"host", b"localhost"),
            (b"authorization", b"Bearer " + self.key.encode()),
            (CLIENT.encode(), str(scope.get(CLIENT, "local")).encode("latin-1", "replace")),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *([(b"content-type", kind)] if kind else []),
        ]
        parser = h11.Connection(h11.CLIENT)
        writer = None
        try:
            reader, writer = await worker.connect()
            request = h11.Request(method=scope["method"], target=scope["raw_path"] + query, headers=headers)
            data = h11.Data(data=body) if body else None
            for each in (request, data, h11.EndOfMessage()):
                if each is not None:
                    writer.write(parser.send(each) or b"")
            await writer.drain()
            while not isinstance(event := parser.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    parser.receive_data(await reader.read(65536))
                else:
                    yield event
        except (OSError, h11.RemoteProtocolError) as error:
            raise WorkerLost from error
        finally:
            if writer is not None:
                writer.close()

    async def _worker_metrics(self) -> list[str]:
        scope: Scope = {"method": "GET", "raw_path": b"/metrics", "query_string": b"", "headers": []}
        texts = []
        for worker in self.workers():
            if worker.ready:
                with suppress(WorkerLost):
                    parts = [event async for event in self._exchange(worker, scope, b"")]
                    texts.append(b"".join(part.data for part in parts if isinstance(part, h11.Data)).decode())
        return texts


class _Answer:
    """What a worker answers, passed on: a stream as it comes, anything else when it is whole."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope, self.send, self.started = scope, send, False

    async def pass_on(self, events: AsyncIterator[Any]) -> None:
        body, status, headers = b"", 502, list[tuple[bytes, bytes]]()
        async for event in events:
            if isinstance(event, h11.Response):
                status = event.status_code
                headers = [(name, value) for name, value in event.headers if name not in _HOP]
                self.scope[ROUTE] = next((v.decode() for n, v in headers if n == ROUTE.encode()), "other")
                headers = [(name, value) for name, value in headers if name != ROUTE.encode()]
                if any(name == b"content-type" and value.startswith(_STREAM) for name, value in headers):
                    await self.send({"type": "http.response.start", "status": status, "headers": headers})
                    self.started = True
            elif isinstance(event, h11.Data):
                if self.started:
                    await self.send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
                else:
                    body += event.data
        if self.started:
            await self.send({"type": "http.response.body", "body": b""})
        else:
            await _answer(self.send, status, headers, body)

    async def break_off(self) -> None:
        """End a stream with an error event, in the form of its route."""
        error = _lost().body()
        told = {"type": "error", **error} if self.scope.get(ROUTE) == "/v1/generate" else error
        await self.send({"type": "http.response.body", "body": f"data: {json.dumps(told)}\n\n".encode()})


def _lost() -> RequestRefused:
    return RequestRefused(503, "the process that computed this request died", code="worker_lost", retry=1)


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
