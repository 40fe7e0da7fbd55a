"""Processes that serve: one here, or several behind one port."""

import asyncio
import logging
import secrets
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import uvicorn

from adlm.distributed import device_for
from adlm.errors import ConfigError, ModelError, OutOfRange
from adlm.memory import share_freed_memory
from adlm.serve.app import make_app
from adlm.serve.connections import KEEP_ALIVE_SECONDS, bounded_protocol, quiet_accept_errors
from adlm.serve.engine import Engine
from adlm.serve.front import Front
from adlm.serve.guard import LOOPBACK, App, Guard, Receive, Scope, Send
from adlm.serve.limits import ServerLimits
from adlm.serve.metrics import Metrics
from adlm.serve.workers import ServerWorkers
from adlm.text_model import load


@dataclass(frozen=True)
class Service:
    """What is served, and where.

    Args:
        models: folders or names on the Hub by the names that requests use.
        key: asked of every request; needed where other machines can reach the server.
        keys: further ones, by the names of clients. With several keys, limits per client are limits per key.
    """

    models: Mapping[str, str]
    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    workers: int = 1
    device: str = "auto"
    studio: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    limits: ServerLimits = field(default_factory=ServerLimits)

    def __post_init__(self) -> None:
        if self.key is not None:
            object.__setattr__(self, "key", checked_key(self.key))
        object.__setattr__(self, "keys", {name: checked_key(key) for name, key in self.keys.items()})
        if self.host not in LOOPBACK and not self.all_keys:
            raise ConfigError(
                f"serving on {self.host}, where others can reach it, needs a key; give --key, or set ADLM_KEY",
                subject="key",
            )
        if self.studio and (self.all_keys or self.host not in LOOPBACK):
            raise ConfigError(
                "the studio works only on 127.0.0.1 and without a key, because a browser does not send one",
                subject="studio",
            )
        if self.workers < 1:
            raise OutOfRange("workers", self.workers, "at least 1")
        if not 0 <= self.port < 1 << 16:
            raise OutOfRange("port", self.port, "from 0 to 65535")

    @property
    def all_keys(self) -> dict[str, str]:
        """Keys by the names of clients."""
        return {**({"key": self.key} if self.key else {}), **self.keys}

    def bound(self) -> socket.socket:
        """A socket that listens; with port 0 the system chooses one."""
        opened = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((self.host, self.port))
        except OSError as error:
            opened.close()
            raise ConfigError(
                f"cannot serve on {self.host}:{self.port}: {error}; choose another --port", subject="port"
            ) from error
        opened.listen(1024)
        return opened


def serve(service: Service, listening: socket.socket) -> None:
    """Until a signal says to stop: then what was begun is finished, and nothing else begins."""
    if service.workers == 1:
        _serve_here(service, None, listening, 0)
    else:
        _serve_in_front(service, listening)


def names_for(models: Sequence[str]) -> dict[str, str]:
    """Names for requests to use: the last part of each folder or Hub name, numbered where they are the same."""
    found: dict[str, str] = {}
    for model in models:
        last = model.rstrip("/\\").replace("\\", "/").rpartition("/")[2] or model
        name, number = last, 2
        while name in found:
            name, number = f"{last}-{number}", number + 1
        found[name] = model
    return found


class _Server(uvicorn.Server):
    """Calls `on_exit` when a signal arrives, before it waits for requests to end."""

    on_exit: Callable[[], None]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.on_exit()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        quiet_accept_errors(asyncio.get_running_loop())
        await super().startup(sockets)


def _server(app: Any, service: Service, on_exit: Callable[[], None], files_per_request: int = 1) -> _Server:
    protocol, backlog = bounded_protocol(service.limits, files_per_request=files_per_request)
    config = uvicorn.Config(
        app,
        access_log=False,  # it would have the paths that strangers ask for; the guard logs routes
        log_config=None,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        http=protocol,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        backlog=backlog,
        timeout_graceful_shutdown=int(service.limits.seconds) + 1,
    )
    server = _Server(config)
    server.on_exit = on_exit
    return server


def read_keys(file: Path) -> dict[str, str]:
    """Keys by the names of clients, from a file with a name and a key on each line."""
    asked = f"cannot read keys from {file}"
    try:
        lines = [line.split() for line in file.read_text(encoding="ascii").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{asked}: {error}", subject="key_file") from error
    if not lines or any(len(line) != 2 for line in lines) or len({name for name, _ in lines}) < len(lines):
        found = "not one name and one key on each line, with different names"
        raise ConfigError(f"{asked}: {found}; write lines such as `alice 3f9c...`", subject="key_file")
    return {line[0]: line[1] for line in lines}


def checked_key(key: str) -> str:
    """A key without the space around it, which a file or a shell may add; one that no header can carry is refused."""
    bare = key.strip()
    if not bare:
        raise ConfigError("the key is blank", fix="give --key or ADLM_KEY a value, or unset it", subject="key")
    if not all("!" <= character <= "~" for character in bare):
        raise ConfigError(
            "the key must consist of printable ASCII characters without spaces",
            fix="make one, for example with `openssl rand -hex 24`",
            subject="key",
        )
    return bare


def _exit(*_: object) -> None:
    raise SystemExit(0)


def _prepare(handled: tuple[signal.Signals, ...]) -> None:
    # While models are loaded a signal ends the process. uvicorn raises the signal again when it is done: exit status 0.
    for each in handled:
        signal.signal(each, _exit)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _serve_here(service: Service, front_key: str | None, listening: socket.socket, number: int) -> None:
    """Load the models and answer requests in this process.

    Args:
        front_key: what the front brings, if this is one of several workers.
    """
    _prepare((signal.SIGTERM,) if front_key else (signal.SIGTERM, signal.SIGINT))
    share_freed_memory()
    device = device_for(service.device)
    if service.workers > 1 and device.type == "cuda":
        device = torch.device("cuda", number % torch.cuda.device_count())
    if device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // service.workers))
    models = {name: load(model) for name, model in service.models.items()}
    for model in models.values():
        model.network.eval().to(device)
    engine = Engine(models, service.limits)
    keys = {"front": front_key} if front_key else service.all_keys
    app = make_app(engine, keys=keys, studio=service.studio, fronted=front_key is not None)

    def drain() -> None:
        engine.draining = True

    limits = service.limits
    if front_key:  # the front has limited them by address already
        service = replace(service, limits=replace(limits, per_address=limits.connections))
    _server(app, service, drain).run(sockets=[listening])


def _serve_in_front(service: Service, listening: socket.socket) -> None:
    """Several workers, and this process in front of them."""
    _prepare((signal.SIGTERM, signal.SIGINT))
    key, metrics = secrets.token_hex(24), Metrics(None)
    pool = ServerWorkers(service.workers, _serve_here, (service, key))
    front = Front(lambda: pool.workers, metrics, key, service.limits.seconds)
    guard = Guard(_with_workers(front, pool), limits=service.limits, metrics=metrics, keys=service.all_keys)

    def drain() -> None:
        front.draining = True

    server = _server(guard, service, drain, files_per_request=2)

    def give_up() -> None:
        server.should_exit = True

    pool.give_up = give_up
    try:
        server.run(sockets=[listening])
    finally:
        pool.stop(service.limits.seconds)
        if pool.failed:
            raise ModelError(
                f"the {service.workers} workers stop as soon as they start",
                fix="run it with --workers 1 to see the reason",
                subject="workers",
            )


def _with_workers(front: Front, pool: ServerWorkers) -> App:
    """The front's application, with workers that live as long as it does."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await front(scope, receive, send)
            return
        await receive()
        watch = asyncio.ensure_future(pool.watch())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        watch.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    return app
