"""Requests in threads: limits on those running and those waiting, and each can be cancelled at any time."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

import torch

from adlm.memory import release_freed_memory
from adlm.models.language_model import LanguageModel
from adlm.serve.batcher import Batcher
from adlm.serve.fair_queue import FairQueue
from adlm.serve.limits import RequestRefused, ServerLimits
from adlm.serve.ticket import Cancelled, Ticket, TimedOut
from adlm.text_model import TextModel

T = TypeVar("T")
Work = Callable[[TextModel, Ticket], T]
_IDLE, _BUSY = 1.0, 10.0  # seconds, at least, between two times when an engine gives memory back


@dataclass(frozen=True)
class Job(Generic[T]):
    """A request that waits or runs, and its result."""

    future: "Future[T]"
    ticket: Ticket
    drop: Callable[["Future[T]"], None] = lambda _: None  # where it waits

    def cancel(self) -> None:
        """It stops before its next pass through the network; where it waits, at once."""
        self.ticket.cancelled = True
        self.drop(self.future)


class Engine:
    """Served models by name, the first of them the one that is meant where none is named."""

    def __init__(self, models: Mapping[str, TextModel], limits: ServerLimits | None = None) -> None:
        self.models: Final = dict(models)
        self.limits: Final = limits or ServerLimits()
        self.batchers: Final = {name: Batcher(model.network.eval()) for name, model in self.models.items()}
        self.draining = False
        self.cancelled = self.timed_out = 0
        self._outstanding = self._running = 0
        self._lock = threading.Lock()
        self._seconds: deque[float] = deque([1.0], maxlen=32)
        # The network's passes are spread over the cores by their own thread; the small work around them is not.
        self._pool = ThreadPoolExecutor(self.limits.running, "request", torch.set_num_threads, (1,))
        # The pool's own queue would keep what was cancelled until its turn came.
        self._waiting: FairQueue[Future[Any], Callable[[], Any]] = FairQueue()
        self._clients: Counter[str] = Counter()  # requests that run or wait
        self._threads = 0  # that work off what waits
        self._released = float("-inf")  # when memory was given back last

    def start(self) -> None:
        for batcher in self.batchers.values():
            batcher.start()

    def close(self) -> None:
        """Cancel what still runs."""
        self.draining = True
        for batcher in self.batchers.values():
            batcher.close()
        for future in [*self._waiting]:
            self._drop(future)
        self._pool.shutdown()

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        return max(0, self._outstanding - self._running)

    def named(self, name: str | None) -> str:
        """The name of a served model. It is only looked up, never taken for a path."""
        if name is None:
            return next(iter(self.models))
        if name not in self.models:
            known = ", ".join(self.models)
            raise RequestRefused(404, f"unknown model; this server has {known}", param="model",
                          code="model_not_found")  # fmt: skip
        return name

    def submit(self, model: str, works: Sequence[Work[T]], client: str = "") -> list[Job[T]]:
        """All of them, or none where there is no room for all. Clients that wait take turns."""
        with self._lock:
            if self.draining:
                raise RequestRefused(503, "the server is shutting down", code="draining", retry=5)
            room = self.limits.running + self.limits.waiting - self._outstanding
            if len(works) > room:
                raise RequestRefused(429, "too many requests are waiting; try again later", code="queue_full",
                              retry=self._retry_after())  # fmt: skip
            if self._clients[client] + len(works) > self.limits.per_client:
                raise RequestRefused(429, f"this client already has {self._clients[client]} requests that run or wait",
                              code="client_limit", retry=self._retry_after())  # fmt: skip
            self._outstanding += len(works)
            self._clients[client] += len(works)
        return [self._started(model, work, client) for work in works]

    def _started(self, name: str, work: Work[T], client: str) -> Job[T]:
        ticket, future = Ticket(time.monotonic() + self.limits.seconds), Future[T]()
        future.add_done_callback(lambda _: self._finished(client))
        with self._lock:
            self._waiting.add(client, future, partial(self._run, name, work, ticket))
            more = self._threads < self.limits.running
            self._threads += more
        if more:
            self._pool.submit(self._work_off)
        return Job(future, ticket, self._drop)

    def _drop(self, future: "Future[Any]") -> None:
        """What waits is forgotten; what runs is left alone."""
        with self._lock:
            waited = self._waiting.remove(future)
        if waited is not None:
            self.cancelled += 1
            future.cancel()

    def _work_off(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    idle = not self._threads
                    break
                future, work = self._waiting.take()
            if not future.set_running_or_notify_cancel():
                continue  # cancelled by whoever waited for it
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            del future, work  # before the next: what it holds may be large
            self._release(_BUSY)
        if idle:
            self._release(_IDLE)

    def _release(self, seconds: float) -> None:
        """Give freed memory back, unless that was done less than so many seconds ago."""
        if (now := time.monotonic()) > self._released + seconds:
            self._released = now
            release_freed_memory()

    def _run(self, name: str, work: Work[T], ticket: Ticket) -> T:
        model, batcher = self.models[name], self.batchers[name]
        began = time.monotonic()
        with self._lock:
            self._running += 1
        batcher.join(1)
        try:
            ticket.check()
            # Whatever samplers and scorers ask of the network, the batched one has.
            network = cast("LanguageModel", batcher.shared(ticket))
            return work(TextModel(network, model.config, model.tokenizer), ticket)
        except Cancelled:
            self.cancelled += 1
            raise
        except TimedOut as error:
            self.timed_out += 1
            raise RequestRefused(
                408, f"not done after {self.limits.seconds:g} seconds; request fewer tokens or steps", code="timeout"
            ) from error
        finally:
            batcher.join(-1)
            with self._lock:
                self._running -= 1
                self._seconds.append(time.monotonic() - began)

    def _finished(self, client: str) -> None:
        with self._lock:
            self._outstanding -= 1
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    def _retry_after(self) -> int:
        """Seconds until about half of those who wait have had their turn."""
        mean = sum(self._seconds) / len(self._seconds)
        return max(1, min(60, round(mean * self.limits.waiting / self.limits.running / 2)))
