"""Workers behind a front: one that is killed costs no request that had no answer yet, and streams end with an error."""

import asyncio
import json
import signal

import httpx
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("psutil")
import psutil

from tests.serve.process import server


def workers_of(process) -> list:
    children = psutil.Process(process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


async def whole(client: httpx.AsyncClient, i: int) -> str:
    ask = {"prompt": "the cat", "seed": i, "max_tokens": 8, "sampler": "remdm-cap", "steps": 20}
    answer = await client.post("/v1/completions", json=ask)
    return "done" if answer.status_code == 200 else answer.text


async def streamed(client: httpx.AsyncClient, i: int) -> str:
    ask = {"prompt": "the", "seed": i, "sampler": "remdm-cap", "steps": 40}
    async with client.stream("POST", "/v1/generate", json=ask) as response:
        last = json.loads([line async for line in response.aiter_lines() if line][-1].removeprefix("data: "))
    return "done" if last.get("type") == "done" else last["error"]["code"]


async def while_one_dies(address: str, workers: list) -> list[str]:
    bounds = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=address, timeout=300, limits=bounds) as client:
        asked = [asyncio.ensure_future((streamed if i % 2 else whole)(client, i)) for i in range(16)]
        await asyncio.sleep(1)
        workers[0].kill()
        return await asyncio.gather(*asked)


@pytest.mark.slow
def test_a_killed_worker_loses_no_request_that_was_not_answered_yet(folder):
    with server(folder, "--workers", "2", "--limits.seconds", "300") as (process, address):
        workers = workers_of(process)
        assert len(workers) == 2
        ends = asyncio.run(while_one_dies(address, workers))
        assert set(ends[::2]) == {"done"}
        assert set(ends[1::2]) <= {"done", "worker_lost"}
        metrics = httpx.get(f"{address}/metrics", timeout=300).text
        assert 'adlm_requests_total{route="/v1/completions",status="200"} 8' in metrics
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        assert not any(child.is_running() for child in workers)
