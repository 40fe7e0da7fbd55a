"""A real server: OpenAI's client, signals, clients that go away, kill and restart."""

import signal
import socket
import threading
import time

import httpx
import pytest

from adlm.text_model import load
from tests.serve.process import server

openai = pytest.importorskip("openai")
SLOW = {"prompt": "the", "sampler": "remdm-cap", "steps": 4000}  # many seconds of work


@pytest.fixture(scope="module")
def running(folder):
    with server(folder) as found:
        yield found


@pytest.fixture(scope="module")
def address(running):
    return running[1]


def passes(address: str) -> int:
    lines = httpx.get(f"{address}/metrics", timeout=120).text.splitlines()
    return int(next(line for line in lines if line.startswith("adlm_network_passes_total")).split()[-1])


def test_the_openai_client_completes_streams_and_reads_errors(address, folder):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        ask = {"model": "tiny", "prompt": "the cat", "max_tokens": 12, "seed": 7}
        whole = client.completions.create(**ask, n=2, logprobs=2, extra_body={"steps": 8})
        expected = load(folder).generate("the cat", n=2, seed=7, max_new_tokens=12, steps=8)
        assert ["the cat" + choice.text for choice in whole.choices] == expected
        assert whole.choices[0].logprobs.tokens
        pieces = list(client.completions.create(**ask, stream=True, logprobs=2, extra_body={"steps": 8}))
        assert "the cat" + "".join(piece.choices[0].text for piece in pieces) == expected[0]
        told = [piece.choices[0].logprobs for piece in pieces if piece.choices[0].logprobs]
        assert [token for each in told for token in each.tokens] == whole.choices[0].logprobs.tokens
        assert pieces[-1].choices[0].finish_reason in ("stop", "length")
        middle = client.completions.create(model="tiny", prompt="the cat", suffix=" the log.", seed=1, max_tokens=4)
        assert middle.choices[0].text
        with pytest.raises(openai.BadRequestError, match="best_of is not supported"):
            client.completions.create(**ask, best_of=4)
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="gpt-4", prompt="a")


def test_the_openai_client_chats(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        ask = {"model": "tiny", "messages": [{"role": "user", "content": "the cat"}], "max_tokens": 8, "seed": 7}
        chat = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
        assert chat.choices[0].message.role == "assistant"
        assert len(chat.choices[0].logprobs.content) == chat.usage.completion_tokens
        pieces = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
        assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == chat.choices[0].message.content
        assert pieces[-1].usage == chat.usage


def test_work_stops_when_a_stream_is_left(address):
    with httpx.stream("POST", f"{address}/v1/generate", json=SLOW, timeout=120) as response:
        next(response.iter_lines())
    deadline = time.monotonic() + 120
    while "adlm_running 0" not in httpx.get(f"{address}/metrics", timeout=120).text:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = passes(address)
    time.sleep(0.2)
    assert passes(address) == before


def test_garbage_on_the_wire_does_not_hurt(address):
    host, _, port = address.removeprefix("http://").partition(":")
    for junk in (
        b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/score HTTP/1.1\r\nHost: x\r\n",
        b"\xff\xfe\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(junk)
    assert httpx.get(f"{address}/health").json() == {"status": "ok"}


def test_sigterm_lets_what_was_begun_finish(running):
    """The last one that uses this server: starting another takes seconds."""
    process, address = running
    found: list[str] = []

    def read() -> None:
        with httpx.stream("POST", f"{address}/v1/generate", json={**SLOW, "steps": 200}, timeout=300) as response:
            found.extend(line for line in response.iter_lines() if line)

    reader = threading.Thread(target=read)
    reader.start()
    while "adlm_running 1" not in httpx.get(f"{address}/metrics", timeout=120).text and reader.is_alive():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    reader.join(300)
    assert '"type": "done"' in found[-1]
    assert process.wait(300) == 0


@pytest.mark.slow
def test_killed_and_started_again_it_answers_as_before(folder):
    ask = {"prompt": "the cat", "seed": 3, "max_tokens": 8, "steps": 8}
    texts = []
    for _ in range(2):
        with server(folder) as (process, address):
            texts.append(httpx.post(f"{address}/v1/completions", json=ask, timeout=300).json()["choices"])
            process.kill()
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_workers_share_a_port_and_a_dead_one_is_replaced(folder):
    import psutil

    with server(folder, "--workers", "2") as (process, address):
        workers = [
            child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]
        assert len(workers) == 2
        workers[0].kill()
        ask = {"prompt": "the cat", "seed": 3, "max_tokens": 8, "steps": 8}
        deadline, texts = time.monotonic() + 300, set()
        while len(texts) < 5 and time.monotonic() < deadline:
            try:
                found = httpx.post(f"{address}/v1/completions", json=ask, timeout=300).json()["choices"][0]["text"]
            except httpx.TransportError:
                continue
            texts.add((len(texts), found))
        assert len({text for _, text in texts}) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0


@pytest.mark.slow
def test_hundreds_of_streams_at_once_all_end(folder):
    import asyncio

    async def one(client: httpx.AsyncClient, i: int) -> str:
        ask = {"prompt": "the", "seed": i, "max_tokens": 1 + i % 30, "sampler": "first-hitting", "predictions": 0}
        async with client.stream("POST", "/v1/generate", json=ask) as response:
            if response.status_code != 200:
                return str(response.status_code)
            lines = [line async for line in response.aiter_lines() if line]
        return "done" if '"type": "done"' in lines[-1] else lines[-1]

    async def all_of_them(address: str) -> list[str]:
        bounds = httpx.Limits(max_connections=400)
        async with httpx.AsyncClient(base_url=address, timeout=300, limits=bounds) as client:
            return await asyncio.gather(*(one(client, i) for i in range(400)))

    options = ("--limits.running", "32", "--limits.waiting", "268", "--limits.seconds", "300")
    options += ("--limits.per-client", "300", "--limits.head-seconds", "60")
    with server(folder, *options) as (_, address):
        ends = asyncio.run(all_of_them(address))
        assert set(ends) <= {"done", "429"}
        assert ends.count("done") >= 300
        assert "adlm_running 0" in httpx.get(f"{address}/metrics", timeout=120).text
