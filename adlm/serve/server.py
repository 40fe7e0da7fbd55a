"""Processes that serve: one here, or several behind one port."""

import logging
import multiprocessing
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from types import FrameType

import torch
import uvicorn

from adlm.distributed import device_for
from adlm.errors import ConfigError, ModelError, OutOfRange
from adlm.memory import keep_freed_memory
from adlm.serve.app import make_app
from adlm.serve.engine import Engine
from adlm.serve.guard import LOOPBACK
from adlm.serve.limits import ServerLimits
from adlm.text_model import load

_LOOK = 0.2  # seconds between two looks at the workers
_SPREADS = sys.platform == "linux"  # connections over the sockets that have a port in common
_DEATHS, _IN_SECONDS = 5, 60.0  # of workers, at which replacing them is given up


@dataclass(frozen=True)
class Service:
    """What is served, and where.

    Args:
        models: folders or names on the Hub by the names that requests use.
        key: asked of every request; needed where other machines can reach the server.
    """

    models: Mapping[str, str]
    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    workers: int = 1
    device: str = "auto"
    studio: bool = False
    limits: ServerLimits = field(default_factory=ServerLimits)

    def __post_init__(self) -> None:
        asked = f"asked to serve on {self.host}"
        if self.host not in LOOPBACK and not self.key:
            raise ConfigError(
                asked, "others can reach it, and there is no key", "give --key, or set ADLM_KEY", subject="key"
            )
        if self.studio and (self.key or self.host not in LOOPBACK):
            fix = "serve the page on 127.0.0.1, without a key"
            raise ConfigError(asked, "a browser does not send the key for a page", fix, subject="studio")
        if self.workers < 1:
            raise OutOfRange("workers", self.workers, "at least 1")
        if not 0 <= self.port < 1 << 16:
            raise OutOfRange("port", self.port, "from 0 to 65535")

    def bound(self, port: int | None = None, *, listens: bool = True) -> socket.socket:
        """A socket that listens; with port 0 the system chooses one.

        Args:
            port: one that another socket of the same workers has.
            listens: at once; otherwise it is given connections when its worker is ready for them.
        """
        shared = self.workers > 1 and _SPREADS
        if shared and port is None:
            self._opened(self.port, shared=False).close()  # else it would be shared with another server too
        listening = self._opened(self.port if port is None else port, shared=shared)
        if listens:
            listening.listen(1024)
        return listening

    def _opened(self, port: int, *, shared: bool) -> socket.socket:
        opened = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            opened.bind((self.host, port))
        except OSError as error:
            opened.close()
            raise ConfigError(
                f"asked to serve on {self.host}:{port}", str(error), "choose another --port", subject="port"
            ) from error
        return opened


def serve(service: Service, listening: socket.socket) -> None:
    """Until a signal says to stop: then what was begun is finished, and nothing else begins."""
    if service.workers == 1:
        _serve_here(service, listening, 0)
    else:
        _Workers(service, listening).run()


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
    engine: Engine

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.engine.draining = True
        super().handle_exit(sig, frame)


def _serve_here(service: Service, listening: socket.socket, number: int) -> None:
    keep_freed_memory()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    device = device_for(service.device)
    if service.workers > 1 and device.type == "cuda":
        device = torch.device("cuda", number % torch.cuda.device_count())
    if device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // service.workers))
    models = {name: load(model) for name, model in service.models.items()}
    for model in models.values():
        model.network.eval().to(device)
    engine = Engine(models, service.limits)
    config = uvicorn.Config(
        make_app(engine, key=service.key, studio=service.studio),
        access_log=False,  # it would have the paths that strangers ask for; the guard logs routes
        log_config=None,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=int(service.limits.seconds) + 1,
    )
    server = _Server(config)
    server.engine = engine
    server.run(sockets=[listening])


class _Workers:
    """Processes behind one port. One that dies is replaced; a signal to stop goes to all.

    Where the system spreads connections over sockets of one port, each worker has its own: from a shared one, whoever
    wakes first takes all that wait. Such a socket ends with its worker, since the system would go on to give it
    connections; the next worker has one that listens when it is ready.
    """

    def __init__(self, service: Service, listening: socket.socket) -> None:
        self.service, self.stopping = service, False
        self.port, more = listening.getsockname()[1], service.workers - 1
        self.sockets = [listening, *(service.bound(self.port) if _SPREADS else listening for _ in range(more))]
        self.context = multiprocessing.get_context("spawn")
        self.processes: list[BaseProcess] = []

    def run(self) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._stop)
        self.processes = [self._started(number) for number in range(self.service.workers)]
        deaths: deque[float] = deque(maxlen=_DEATHS)
        while not self.stopping:
            time.sleep(_LOOK)
            for number, process in enumerate(self.processes):
                if process.is_alive() or self.stopping:
                    continue
                deaths.append(time.monotonic())
                if len(deaths) == _DEATHS and deaths[-1] - deaths[0] < _IN_SECONDS:
                    self._stop()
                    asked = f"asked for {self.service.workers} workers"
                    fix = "try --workers 1, which says why"
                    raise ModelError(asked, "they stop as soon as they start", fix, subject="workers")
                self._renew(number)
                self.processes[number] = self._started(number)
        for listening in self.sockets:
            listening.close()  # who comes now is refused, and does not wait for the last to be served
        self._stop()  # those too that were about to start when the signal came
        for process in self.processes:
            process.join()

    def _renew(self, number: int) -> None:
        if _SPREADS:
            fresh = self.service.bound(self.port, listens=False)
            self.sockets[number].close()
            self.sockets[number] = fresh

    def _started(self, number: int) -> BaseProcess:
        process = self.context.Process(target=_serve_here, args=(self.service, self.sockets[number], number))
        process.start()
        return process

    def _stop(self, *_: object) -> None:
        self.stopping = True
        for process in self.processes:
            process.terminate()
