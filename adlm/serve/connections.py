"""Connections to the server: how many there may be, how long a request head may take, and bytes that are not a request.

A client that connects and never finishes a request head costs a file descriptor, and needs no key for that. So a
connection without a request is closed after a few seconds, or earlier if a new client needs its place.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from adlm.serve.limits import RequestRefused, ServerLimits

_SPARE_FILES = 32  # for everything that is not a connection
# Longer than clients keep a connection that they do not use (httpx 5 s, nginx 60 s): a request that is sent while the
# server closes is lost.
KEEP_ALIVE_SECONDS = 75
_log = logging.getLogger("adlm.serve")


class RareWarning:
    """A warning that is logged at most once a minute, with the number of times it applied."""

    def __init__(self, message: str, seconds: float = 60.0) -> None:
        self.message, self.seconds = message, seconds
        self._count, self._next = 0, float("-inf")

    def __call__(self) -> None:
        self._count += 1
        if (now := time.monotonic()) >= self._next:
            _log.warning("%s (%d times)", self.message, self._count)
            self._count, self._next = 0, now + self.seconds


class ConnectionPool:
    """The open connections. Idle ones, which have no request yet, make room for new ones, the oldest first.

    Args:
        most: connections in all.
        per_address: connections of one client address.
    """

    def __init__(self, most: int, per_address: int) -> None:
        self.most, self.per_address = most, per_address
        self._addresses: dict[Any, str | None] = {}
        self._idle: dict[Any, None] = {}  # in the order in which they became idle
        self._counts: Counter[str | None] = Counter()
        self._full = RareWarning("connections were refused: there are too many")

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, connection: "BoundedProtocol", address: str | None) -> bool:
        """Take a new connection in, which is idle. False if there is no room."""
        full = len(self) >= self.most and not self._evict(None)
        if full or (address and self._counts[address] >= self.per_address and not self._evict(address)):
            self._full()
            return False
        self._addresses[connection], self._idle[connection] = address, None
        self._counts[address] += 1
        return True

    def set_idle(self, connection: "BoundedProtocol", idle: bool) -> None:
        """Whether a connection waits for a request."""
        self._idle.pop(connection, None)
        if idle and connection in self._addresses:
            self._idle[connection] = None

    def remove(self, connection: "BoundedProtocol") -> None:
        """Forget a connection."""
        if connection in self._addresses:
            address = self._addresses.pop(connection)
            self._idle.pop(connection, None)
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _evict(self, address: str | None) -> bool:
        """Close the connection that has been idle longest, of one address or of all."""
        for connection in self._idle:
            if address is None or self._addresses[connection] == address:
                self.remove(connection)
                connection.transport.abort()
                return True
        return False


class _RequestParser(h11.Connection):
    """Reports each request head, and refuses a request whose length is given in two ways."""

    on_head = staticmethod(lambda: None)

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = [name for name, _ in event.headers]
            # A proxy in front may read the other one, and see another request where this one ends.
            if b"content-length" in names and b"transfer-encoding" in names:
                raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
            self.on_head()
        return event


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with a limit on connections and a time limit for request heads. `pool` belongs to a server.

    The time begins with a new connection; on one that has been answered before, with the first byte of its next head:
    a client that sends its next request late must not find an answer to the time without one.
    """

    pool: ClassVar[ConnectionPool]
    head_seconds: ClassVar[float]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        parser = _RequestParser(h11.SERVER, 1 << 16)
        parser.on_head = self._on_head
        self.conn = parser
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.pool.admit(self, self.client[0] if self.client else None):
            self._set_idle(True)
            self._start_timer()
        else:
            self._refuse(RequestRefused(503, "too many connections", code="connections", retry=5))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.pool.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            if self._idle and self._head_timer is None:
                self._start_timer()
            super().data_received(data)

    def on_response_complete(self) -> None:
        self._set_idle(True)
        super().on_response_complete()
        if self._idle and self.conn.trailing_data[0]:  # a part of the next head came with this request
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not an HTTP request. A request that is being read ends without an answer of its own."""
        if self.cycle is not None and not self.cycle.response_complete:
            started = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if started:
                self.transport.close()
                return
        self._refuse(RequestRefused(400, "this is not a valid HTTP request", code="invalid_http"))

    def _unsupported_upgrade_warning(self) -> None:
        """WebSockets are not offered, so there is nothing to install."""

    def _on_head(self) -> None:
        self._stop_timer()
        self._set_idle(False)

    def _set_idle(self, idle: bool) -> None:
        self._idle = idle
        self.pool.set_idle(self, idle)

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self._refuse(RequestRefused(408, "the request head did not arrive in time", code="timeout"))

    def _refuse(self, error: RequestRefused) -> None:
        body = json.dumps(error.body()).encode()
        reasons = {400: "Bad Request", 408: "Request Timeout", 503: "Service Unavailable"}
        fields = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **error.headers,
        }
        head = f"HTTP/1.1 {error.status} {reasons[error.status]}\r\n"
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.transport.write(f"{head}{lines}\r\n".encode() + body)
        self.transport.close()


def bounded_protocol(limits: ServerLimits, *, files_per_request: int = 1) -> tuple[type[BoundedProtocol], int]:
    """A protocol class with a pool of its own, and how many connections to accept in one turn of the event loop.

    The process's limit on open files is raised as far as it may be, and connections stay below it, so that accepting
    one does not fail.

    Args:
        files_per_request: of each connection, a socket to a worker included.
    """
    files = _raised_file_limit()
    backlog, most = 512, limits.connections
    if files is not None:
        free = max(8, files - _open_files() - _SPARE_FILES)
        backlog = max(4, min(backlog, free // 4))
        most = max(2, min(most, (free - backlog) // files_per_request))
    fields = {
        "pool": ConnectionPool(most, min(most, limits.per_address)),
        "head_seconds": limits.head_seconds,
    }
    return type("_ServerProtocol", (BoundedProtocol,), fields), backlog


def quiet_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log at most once a minute that a connection could not be accepted; asyncio logs each with a traceback."""
    warning = RareWarning("a connection could not be accepted: too many open files")

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), OSError) and "accept" in context.get("message", ""):
            warning()
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


def _raised_file_limit() -> int | None:
    """The limit on open files, raised to what the system allows; None if it has none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        except (ValueError, OSError):
            pass
    return None if soft == resource.RLIM_INFINITY else soft


def _open_files() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return 64
