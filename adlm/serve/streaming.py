"""From the threads of jobs to the answers of an event loop: waiting for them, streaming from them, giving them up."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse

from adlm.errors import AdlmError
from adlm.serve.engine import Job
from adlm.serve.guard import Receive, Scope, Send
from adlm.serve.limits import RequestRefused
from adlm.serve.requests import FIELDS
from adlm.serve.ticket import Cancelled

T = TypeVar("T")
_LOOK = 0.2  # seconds between two looks whether anyone is still there
_UNREAD = 256  # events that are kept for a reader
_SPARE = 30.0  # seconds for the last events, after a request's time is over
_log = logging.getLogger("adlm.serve")


def refusal(error: BaseException) -> RequestRefused:
    """What a job failed with, as an answer. Of what nobody expected, the log has the kind and nothing that was said."""
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, AdlmError):
        found = f": {error.found}" if error.found else ""
        param = error.subject if error.subject in FIELDS else None
        message = f"{error.asked}{found}" + (f"; {error.fix}" if error.fix else "")
        return RequestRefused(400, message, param=param, code="invalid_value")
    if isinstance(error, (Cancelled, asyncio.CancelledError)):
        return RequestRefused(503, "the work was stopped", code="stopped", retry=5)
    trace, where = error.__traceback__, ""
    while trace is not None:
        where, trace = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}", trace.tb_next
    _log.error("a request failed: %s at %s", type(error).__name__, where)
    return RequestRefused(500, "internal error", code="internal_error")


def checked(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """The result of a function, whose errors become refusals."""
    try:
        return function(*args, **options)
    except Exception as error:
        raise refusal(error) from error


async def results(request: Request, jobs: Sequence[Job[T]]) -> list[T]:
    """Of all jobs; they are given up where one fails or nobody waits any more."""
    futures = [asyncio.wrap_future(job.future) for job in jobs]
    try:
        left = set(futures)
        while left:
            done, left = await asyncio.wait(left, timeout=_LOOK, return_when=asyncio.FIRST_EXCEPTION)
            if any(future.cancelled() or future.exception() for future in done):
                break
            if left and await request.is_disconnected():
                raise RequestRefused(499, "client disconnected")
        for future in futures:
            if future.done():
                future.result()
        return [future.result() for future in futures]
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and not any(future.cancelled() for future in futures):
            raise  # it is this request that ends
        raise refusal(error) from None
    finally:
        for job, future in zip(jobs, futures, strict=True):
            job.cancel()
            future.add_done_callback(lambda f: f.cancelled() or f.exception())  # nobody else will look


class Stream:
    """Events of some jobs, in the order in which they happened."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[dict[str, Any] | Job[Any]] = asyncio.Queue()
        self.jobs: Sequence[Job[Any]] = ()

    def full(self) -> bool:
        """Whether the reader is so far behind that no more should be written."""
        return self._queue.qsize() >= _UNREAD // 2

    def tell(self, event: dict[str, Any]) -> None:
        """From the thread of a job, which waits for a reader who is slow, as long as it may.

        What is written together with other texts pauses before that, see `full`.
        """
        while self._queue.qsize() >= _UNREAD:
            for job in self.jobs:
                job.ticket.check()
            time.sleep(_LOOK / 10)
        self._put(event)

    def _put(self, event: dict[str, Any] | Job[Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)
        except RuntimeError:  # the loop is closed: the server is stopping
            raise Cancelled from None

    def follow(self, jobs: Sequence[Job[Any]]) -> None:
        self.jobs = jobs
        for job in jobs:
            job.ticket.held = self.full
            job.future.add_done_callback(lambda _, job=job: self._end(job))  # type: ignore[misc]

    def _end(self, job: Job[Any]) -> None:
        with suppress(Cancelled):
            self._put(job)

    async def events(self, request: Request) -> AsyncIterator[dict[str, Any] | Job[Any]]:
        """Events, and each job when it has ended. An error of a job is raised, and ends them all."""
        left = len(self.jobs)
        while left:
            try:
                event = await asyncio.wait_for(self._queue.get(), _LOOK)
            except (asyncio.TimeoutError, TimeoutError):
                if await request.is_disconnected():
                    raise RequestRefused(499, "client disconnected") from None
                continue
            if isinstance(event, Job):
                left -= 1
                if event.future.cancelled():
                    raise refusal(Cancelled())
                if error := event.future.exception():
                    raise refusal(error)
            yield event

    def give_up(self) -> None:
        for job in self.jobs:
            job.cancel()


class Events(StreamingResponse):
    """Server-sent events; whatever ends the answer, its jobs end too.

    Args:
        seconds: that the jobs have.
    """

    def __init__(self, stream: Stream, content: AsyncIterator[str], seconds: float) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self.stream, self.seconds = stream, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.wait_for(super().__call__(scope, receive, send), self.seconds + _SPARE)
        except (asyncio.TimeoutError, TimeoutError):
            _log.warning("a stream ended: nobody read it in time")
        finally:
            self.stream.give_up()


def line(event: dict[str, Any] | str) -> str:
    """One event on the wire. Plain ASCII, so that no character of a text can end a line."""
    return f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n"


async def begun(events: AsyncIterator[str], stream: Stream) -> AsyncIterator[str]:
    """The same events, the first of them waited for here, so that a refusal is an answer of its own."""
    try:
        first = await anext(events)
    except BaseException:
        stream.give_up()
        raise

    async def all_events() -> AsyncIterator[str]:
        yield first
        async for event in events:
            yield event

    return all_events()
