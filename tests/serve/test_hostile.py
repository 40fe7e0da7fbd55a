"""Requests that nobody should send: none is answered by a 5xx, and none leaves anything behind."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from adlm.serve.app import make_app
from adlm.serve.engine import Engine
from adlm.serve.limits import ServerLimits
from tests.serve.conftest import HERE

LIMITS = ServerLimits(running=4, waiting=4, tokens=8, steps=4, n=2, body=1 << 13, seconds=20, predictions=3)
ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    10**6,
    10**400,
    2**63,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "the cat",
    "[MASK]",
    "[MASK:2]",
    "[MASK:1-2]",
    "[MASK:9999]",
    "[MASK:0]",
    "[MASK:",
    "[MASK:2-1]",
    "[MASK]" * 40,
    "\x00",
    "\ud800",
    "\U0010ffff",
    "\u202e",
    "a" * 3000,
    "../../etc/passwd",
    "<script>",
    "'; --",
    [],
    {},
    [[]],
    [None],
    [1, 2],
    [None, 5, None],
    ["a", "b"],
    {"a": 1},
    "ancestral",
    "first-hitting",
    "remdm-cap",
    "confidence",
    "left-to-right",
    "anchor-first",
    "adlm",
    "ar",
    "mdlm",
]
FIELDS = [
    "prompt",
    "suffix",
    "text",
    "canvas",
    "max_tokens",
    "sampler",
    "steps",
    "temperature",
    "top_p",
    "seed",
    "predictions",
    "model",
    "n",
    "stop",
    "stream",
    "stream_options",
    "logprobs",
    "echo",
    "best_of",
    "logit_bias",
    "presence_penalty",
    "user",
    "__class__",
    "",
]
ROUTES = ["/v1/completions", "/v1/generate", "/v1/infill", "/v1/score"]


def hostile(rng: random.Random) -> tuple[str, str, bytes]:
    """A method, a path and a body."""
    path = rng.choice(
        [*ROUTES, *ROUTES, "/v1/models", "/v1/samplers?model=x", "/%00", "/static/..%2f", "/v1/score/", "//"]
    )
    method = rng.choice(["POST"] * 9 + ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"])
    kind = rng.random()
    if kind < 0.1:
        return method, path, rng.randbytes(rng.randrange(64))
    if kind < 0.15:
        return (
            method,
            path,
            rng.choice([b"[" * 5000, b'{"a":' * 1000, b'{"text": "\\ud800"}', b'"', b"{", b"nul", b"NaN"]),
        )
    sane = {"prompt": "the", "max_tokens": 2, "steps": 2} if "comp" in path or "gen" in path else {"text": "the [MASK]"}
    body = dict(sane) if rng.random() < 0.7 else {}
    for _ in range(rng.randrange(4)):
        body[rng.choice(FIELDS)] = rng.choice(ODD)
    return method, path, json.dumps(body).encode()


def attack(client: TestClient, requests: Iterator[tuple[str, str, bytes]]) -> dict[int, int]:
    answers: dict[int, int] = {}
    for method, path, body in requests:
        response = client.request(method, path, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code < 500, (method, path, body, response.text)
        if response.status_code >= 400 and method != "HEAD":
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}, (method, path, body)
        answers[response.status_code] = answers.get(response.status_code, 0) + 1
    return answers


@pytest.fixture
def target(models) -> Iterator[TestClient]:
    with TestClient(make_app(Engine(models, LIMITS), studio=True), base_url=HERE) as client:
        yield client


def test_no_request_is_answered_by_a_5xx(target):
    rng = random.Random(0)
    answers = attack(target, (hostile(rng) for _ in range(120)))
    assert answers[200] > 5  # the generator also makes requests that work
    assert answers[400] > 20


@pytest.mark.slow
def test_ten_thousand_hostile_requests_leave_no_memory_behind(target):
    import gc

    import psutil

    process, rng = psutil.Process(), random.Random(1)
    attack(target, (hostile(rng) for _ in range(1000)))  # caches fill up
    gc.collect()
    before = process.memory_info().rss
    attack(target, (hostile(rng) for _ in range(10_000)))
    gc.collect()
    assert process.memory_info().rss - before < 64 << 20


def test_answers_are_as_the_openapi_description_says(models):
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, settings

    with TestClient(make_app(Engine(models, LIMITS)), base_url=HERE) as client:
        schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
        seen = set()
        for result in schema.get_all_operations():
            operation = result.ok()
            seen.add(operation.path)

            @settings(max_examples=4, deadline=None, database=None, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))  # fmt: skip
            @_given(operation)
            def check(case):
                response = client.request(
                    case.method, case.formatted_path, json=case.body if isinstance(case.body, dict | list) else None,
                    params=case.query or None,
                )  # fmt: skip
                assert response.status_code < 500
                case.validate_response(_as_requests(response), checks=_checks())

            check()
        assert set(ROUTES) < seen


def _given(operation):
    from hypothesis import given

    return given(case=operation.as_strategy())


def _as_requests(response):
    from schemathesis.core.transport import Response

    return Response.from_httpx(response, verify=True)


def _checks():
    """What the description promises of answers. That a valid request is refused is no fault: a name may be unknown."""
    from schemathesis.specs.openapi import checks

    return [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]
