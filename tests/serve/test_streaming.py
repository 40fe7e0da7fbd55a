"""Events between the threads of jobs and whoever reads them, or does not."""

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import suppress

from adlm.serve.batcher import Cancelled, Ticket
from adlm.serve.engine import Job
from adlm.serve.streaming import _SPARE, _UNREAD, Events, Stream


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
