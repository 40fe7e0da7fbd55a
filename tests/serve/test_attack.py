"""Hostile requests in numbers: each gets an answer below 500, and the server is as it was afterwards."""

import asyncio
import random
import signal
import socket
import time
from collections import Counter
from typing import Any

import httpx
import pytest

pytest.importorskip("uvicorn")
from tests.serve.process import server

ROUTES = {
    "/v1/completions": {"prompt": "the cat", "max_tokens": 2, "steps": 2},
    "/v1/generate": {"text": "the [MASK] sat", "steps": 2},
    "/v1/infill": {"text": "the [MASK] sat", "steps": 2, "constraints": [{"choice": ["cat", "dog"]}]},
    "/v1/decide": {"text": "the [MASK]", "slots": [{"type": "yes_no"}]},
    "/v1/score": {"text": "the cat"},
    "/v1/chat/completions": {"max_tokens": 2, "messages": [{"role": "user", "content": "a"}]},
    "/tokenize": {"text": "the cat"},
    "/detokenize": {"tokens": [1, 2]},
}
VALUES = [
    None, True, -1, 0, 10**6, 10**30, 1e308, "", "\x00", "\ud800", "[MASK:9999]", "[MASK:1-9999]" * 9, "a" * 99_999, [],
    {}, [[[[]]]], [None] * 999, {"a": {"b": 1}}, "../../etc/passwd", "é" * 500,
    [{"pattern": r"(\w{1,300}){9}"}], [{"type": "score"}],
]  # fmt: skip


def attack(address: str, count: int, seed: int) -> list[int]:
    """The statuses of requests in which one field has a value that it should not have, or the body is damaged."""
    draw, found = random.Random(seed), []
    with httpx.Client(base_url=address, timeout=300) as client:
        for _ in range(count):
            route, body = draw.choice([*ROUTES.items()])
            asked: dict[str, Any] = {
                **body,
                draw.choice([*body, "model", "seed", "n", "stop", "x"]): draw.choice(VALUES),
            }
            sent = _json(asked)
            if draw.random() < 0.2:
                sent = sent[: draw.randrange(len(sent))]
            headers = {"Content-Type": draw.choice(["application/json", "application/json", "text/plain"])}
            found.append(client.post(route, content=sent, headers=headers).status_code)
    return found


def _json(value: Any) -> bytes:
    import json

    return json.dumps(value).encode()


@pytest.mark.slow
@pytest.mark.parametrize(("count", "workers"), [(300, 2), (10_000, 1)])
def test_hostile_requests_never_get_a_server_error(folder, count, workers):
    options = ("--workers", str(workers), "--limits.seconds", "30", "--limits.pattern-seconds", "0.5")
    with server(folder, *options) as (_, address):
        statuses = attack(address, count, seed=count)
        assert len(statuses) == count
        assert max(statuses) < 500
        assert {200, 400} <= set(statuses)
        assert "adlm_running 0" in httpx.get(f"{address}/metrics", timeout=120).text


HALF_A_HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
TWO_LENGTHS = (
    b"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
)


async def besieged(address: str, streams: int, slow: int, seconds: float) -> Counter[str]:
    """How streams and slow heads end that begin again and again; every other slow head sends nothing at all."""
    host, _, port = address.removeprefix("http://").partition(":")
    end, ends = time.monotonic() + seconds, Counter[str]()

    async def stream(client: httpx.AsyncClient, number: int) -> None:
        ask = {"prompt": "the", "seed": number, "max_tokens": 8, "sampler": "remdm-cap", "steps": 4}
        while time.monotonic() < end:
            try:
                async with client.stream("POST", "/v1/generate", json=ask) as response:
                    lines = [line async for line in response.aiter_lines() if line]
            except httpx.HTTPError as error:
                ends[type(error).__name__] += 1
                continue
            ends["done" if '"type": "done"' in lines[-1] else f"{response.status_code} {lines[-1]}"] += 1

    async def slow_head(dripping: bool) -> None:
        while time.monotonic() < end:
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                for byte in HALF_A_HEAD * 9 if dripping else b"":
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.2)
                ends[f"head {(await reader.read())[9:12].decode()}"] += 1
            except OSError:  # it was answered while it still sent
                ends["head 408"] += 1
            finally:
                writer.close()

    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(base_url=address, timeout=300, limits=limits) as client:
        heads = (slow_head(bool(i % 2)) for i in range(slow))
        await asyncio.gather(*(stream(client, number) for number in range(streams)), *heads)
    return ends


@pytest.mark.slow
def test_streams_go_on_through_a_siege_and_the_end_is_clean(folder):
    log: list[str] = []
    # A client with hundreds of streams may itself be seconds late with a head.
    options = ("--workers", "2", "--limits.seconds", "300", "--limits.per-client", "300", "--limits.waiting", "300")
    options += ("--limits.head-seconds", "20")
    with server(folder, *options, log=log) as (process, address):
        ends = asyncio.run(besieged(address, streams=300, slow=60, seconds=60.0))
        assert ends.keys() == {"done", "head 408"}
        assert ends["done"] >= 300
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=120) as raw:
            raw.sendall(TWO_LENGTHS)
            assert raw.recv(65536).startswith(b"HTTP/1.1 400")
        assert "adlm_running 0" in httpx.get(f"{address}/metrics", timeout=120).text
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
    assert not [line for line in log if "Traceback" in line]
