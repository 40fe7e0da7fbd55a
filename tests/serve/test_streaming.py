"""Events between the threads of jobs and whoever reads them, or does not."""

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import suppress

import pytest

from adlm.serve.engine import Job
from adlm.serve.limits import RequestRefused
from adlm.serve.streaming import _SPARE, _UNREAD, Events, Stream, results
from adlm.serve.ticket import Cancelled, Ticket


def test_who_is_gone_is_no_failure_of_the_server_and_the_work_is_given_up():
    class Gone:
        async def is_disconnected(self) -> bool:
            return True

    job: Job[None] = Job(Future(), Ticket(time.monotonic() + 60))
    with pytest.raises(RequestRefused) as caught:
        asyncio.run(results(Gone(), [job]))
    assert caught.value.status == 499
    assert job.ticket.cancelled


def test_a_job_waits_for_a_slow_reader_until_it_is_given_up():
    async def run() -> None:
        stream = Stream()
        job: Job[None] = Job(Future(), Ticket(time.monotonic() + 60))
        stream.follow([job])
        told: list[int] = []

        def tell() -> None:
            with suppress(Cancelled):
                for number in range(4 * _UNREAD):
                    stream.tell({"number": number})
                    told.append(number)
                    time.sleep(0.0001)

        thread = threading.Thread(target=tell)
        thread.start()
        while len(told) < _UNREAD:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert thread.is_alive()
        stream.give_up()
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()
        assert _UNREAD <= len(told) < 4 * _UNREAD

    asyncio.run(run())


def test_an_answer_that_nobody_reads_ends():
    async def run() -> None:
        async def content():
            yield "data: {}\n\n"

        async def send(_: object) -> None:
            await asyncio.sleep(60)

        async def receive() -> dict[str, str]:
            await asyncio.sleep(60)
            return {"type": "http.disconnect"}

        stream = Stream()
        job: Job[None] = Job(Future(), Ticket(time.monotonic() + 60))
        stream.follow([job])
        answer = Events(stream, content(), 0.1 - _SPARE)
        await asyncio.wait_for(answer({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send), 20)
        assert job.ticket.cancelled

    asyncio.run(run())
