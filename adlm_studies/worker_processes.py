"""Processes that carry out jobs, one after another: importing torch takes longer than many a job.

Processes are spawned, not forked: a fork copies locks that threads of torch may hold at that moment.
"""

import io
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from adlm import registry
from adlm.errors import AdlmError, TrainingError
from adlm.memory import keep_freed_memory

_POLL = 0.2  # seconds until a signal is noticed
_PATIENCE = 30.0  # seconds that a process has to save and end once it was told to
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class ProcessJob:
    """A call of `function(tell, *arguments)` in another process; `tell(event)` hands a value to the watcher.

    Args:
        needs: names of the jobs that must have succeeded before.
        cost: roughly how long it takes, in any unit: what takes longest is started first.
        alone: whether no other job may run at the same time, because it measures time.
        log: file to which its output is appended; by default it goes where this process's does.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    needs: tuple[str, ...] = ()
    cost: float = 1.0
    alone: bool = False
    log: Path | None = None


class UnexpectedError(TrainingError):
    """An exception of a job that is not an `AdlmError`, or the end of its process."""


def pickled(value: Any) -> bytes:
    """A value as bytes for another process."""
    return bytes(ForkingPickler.dumps(value))


class _Worker:
    def __init__(self, *, one_thread: bool) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, registry.imported()))
        with _environment(_ONE_THREAD if one_thread else {}):
            self.process.start()
        theirs.close()
        self.job: ProcessJob


class WorkerPool:
    """Worker processes, started when they are needed. Leaving the context ends them."""

    def __init__(self, *, one_thread: bool) -> None:
        self.one_thread = one_thread
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for worker in self._busy:  # only after an error here, or a second Ctrl-C
            (worker.process.kill if kind is KeyboardInterrupt else worker.process.terminate)()
        for worker in (*self._idle, *self._busy):
            worker.connection.close()
            worker.process.join(_PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    @property
    def running(self) -> list[ProcessJob]:
        """The jobs that have been started and have not ended."""
        return [worker.job for worker in self._busy]

    def start(self, job: ProcessJob) -> None:
        """Start a job, in an idle process or a new one."""
        worker = self._idle.pop() if self._idle else _Worker(one_thread=self.one_thread)
        worker.job = job
        self._busy.append(worker)
        with suppress(BrokenPipeError, ConnectionResetError):  # a process that is gone is noticed when it is read from
            worker.connection.send_bytes(pickled(job))

    def terminate(self) -> None:
        """Tell all jobs to stop."""
        for worker in self._busy:
            worker.process.terminate()

    def messages(self) -> Iterator[tuple[ProcessJob, str, Any]]:
        """Waits a moment; then (job, "event", what it tells), (job, "value", ...) or (job, "error", ...), if any."""
        for ready in wait([worker.connection for worker in self._busy], _POLL):
            worker = next(each for each in self._busy if each.connection is ready)
            try:
                kind, content = pickle.loads(worker.connection.recv_bytes())
            except (EOFError, OSError):
                worker.process.join()
                self._busy.remove(worker)
                yield worker.job, "error", _end_of_process(worker)
                continue
            if kind != "event":
                self._busy.remove(worker)
                self._idle.append(worker)
            yield worker.job, kind, content


def _end_of_process(worker: _Worker) -> AdlmError:
    code = worker.process.exitcode
    memory = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
    return UnexpectedError(f"its process ended with code {code}{memory}", subject=worker.job.name)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for the processes that are started inside: libraries read them when they are imported."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(connection: Connection, modules: Sequence[str]) -> None:
    """The program of a worker process."""
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        for module in modules:
            registry.import_module(module)
        while True:
            connection.send_bytes(_outcome(connection.recv_bytes(), connection))


def _outcome(sent: bytes, connection: Connection) -> bytes:
    """Carry out a job; its value or its error, pickled."""
    turn = threading.Lock()  # threads of a job may tell things at the same time

    def tell(event: Any) -> None:
        with turn:
            connection.send_bytes(pickled(("event", event)))

    job: ProcessJob = pickle.loads(sent)
    with _output_in(job.log):
        try:
            return pickled(("value", job.function(tell, *job.arguments)))
        except AdlmError as error:
            print(error, file=sys.stderr)
            return pickled(("error", error))
        except Exception as error:
            traceback.print_exc()
            return pickled(("error", UnexpectedError(f"{type(error).__name__}: {error}", subject=job.name)))


@contextmanager
def _output_in(log: Path | None) -> Iterator[None]:
    """Append to a file what this process writes, and what its libraries and its own processes write."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    streams: tuple[io.TextIOBase, ...] = (sys.stdout, sys.stderr)  # type: ignore[assignment]
    kept = [os.dup(stream.fileno()) for stream in streams]
    with log.open("ab") as file:
        for stream in streams:
            os.dup2(file.fileno(), stream.fileno())
    try:
        yield
    finally:
        for stream, number in zip(streams, kept, strict=True):
            stream.flush()
            os.dup2(number, stream.fileno())
            os.close(number)


def _end_with_parent() -> None:
    """When the process that runs the jobs is gone, stop as a signal would stop this one: a training run saves."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
