"""Worker processes: started, watched, replaced when they die, stopped."""

import asyncio
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_LOOK = 0.1  # seconds between two looks at the workers
_FAILURES = 5  # workers in a row that die before they are ready, at which starting them is given up
_log = logging.getLogger("adlm.serve")


class WorkerProcess:
    """One process and the socket on which it listens, which outlives it: its replacement listens there too."""

    def __init__(self, number: int, folder: Path, run: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.number, self.run, self.args = number, run, args
        self.ready, self.requests = False, 0
        if hasattr(socket, "AF_UNIX"):
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.bind(str(folder / f"worker-{number}"))
        else:
            self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.listen(1024)
        self.address = self.socket.getsockname()
        self._context = multiprocessing.get_context("spawn")

    def start(self) -> None:
        """Start the process, or another one after the first has died."""
        self.ready = False
        self.process = self._context.Process(target=worker_main, args=(self.run, self.socket, self.number, *self.args))
        self.process.start()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the process."""
        if isinstance(self.address, str):
            return await asyncio.open_unix_connection(self.address)
        return await asyncio.open_connection(*self.address)

    async def became_ready(self) -> None:
        """Wait until the process answers. Whoever connects earlier waits in the socket's queue."""
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await self.connect()
            try:
                writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                self.ready = bool(await reader.read(1))
            finally:
                writer.close()


class ServerWorkers:
    """The workers of a server, watched by a task of the front's event loop."""

    def __init__(self, count: int, run: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="adlm-"))  # for its owner only
        self.workers = [WorkerProcess(number, self.folder, run, args) for number in range(count)]
        self.failed = False
        self.give_up: Callable[[], None] = lambda: None  # called if workers die as soon as they start

    async def watch(self) -> None:
        """Start the workers and replace those that die, until cancelled."""
        failures, tasks = 0, list[asyncio.Task[None]]()
        for worker in self.workers:
            worker.start()
            tasks.append(asyncio.ensure_future(worker.became_ready()))
        while True:
            await asyncio.sleep(_LOOK)
            for number, worker in enumerate(self.workers):
                if worker.process.is_alive():
                    continue
                failures = 0 if worker.ready else failures + 1
                if failures >= _FAILURES:
                    self.failed = True
                    self.give_up()
                    return
                _log.warning("worker %d died (exit status %s); starting another", number, worker.process.exitcode)
                worker.start()
                tasks[number].cancel()
                tasks[number] = asyncio.ensure_future(worker.became_ready())

    def stop(self, seconds: float) -> None:
        """Ask all to stop, and end those that do not in time."""
        started = [worker.process for worker in self.workers if hasattr(worker, "process")]
        for process in started:
            process.terminate()
        for process in started:
            process.join(seconds)
            if process.is_alive():
                process.kill()
                process.join()
        for worker in self.workers:
            worker.socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def worker_main(run: Callable[..., None], listening: socket.socket, number: int, *args: Any) -> None:
    """The main function of a worker: it ends with its parent, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run(*args, listening, number)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
