"""Hostile requests in numbers: each gets an answer below 500, and the server is as it was afterwards."""

import random
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
        assert "adlm_running 0" in httpx.get(f"{address}/metrics", timeout=60).text
