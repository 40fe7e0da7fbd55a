"""Decisions with probabilities, constraints on holes, and tokens over HTTP."""

import math
import re

import pytest
import torch

from adlm.serve.decisions import DecideRequest, decide
from adlm.serve.fair_queue import FairQueue


def test_probabilities_of_a_decision_sum_to_one(client):
    slots = [
        {"type": "choice", "options": ["cat", "dog", "bird"]},
        {"type": "score"},
        {"type": "number", "low": 8, "high": 12},
    ]
    ask = {"model": "mdlm", "text": "the [MASK] sat. [MASK] and [MASK] away", "slots": slots}
    found = client.post("/v1/decide", json=ask).json()["decisions"]
    assert [list(each["probabilities"]) for each in found] == [
        ["cat", "dog", "bird"],
        ["1", "2", "3", "4", "5"],
        ["8", "9", "10", "11", "12"],
    ]
    for each in found:
        assert math.isclose(sum(each["probabilities"].values()), 1, abs_tol=1e-4)
        assert each["probability"] == max(each["probabilities"].values())
        assert 0 < each["mass"] <= 1
    assert 8 <= found[2]["mean"] <= 12


@pytest.mark.parametrize("kind", ["mdlm", "ar"])
def test_one_token_options_have_the_probabilities_of_the_network(models, kind):
    model = models[kind]
    ask = DecideRequest(text="the [MASK]", slots=[{"type": "choice", "options": ["cat", "dog"]}])
    (found,) = decide(model, ask)
    ids = [model.tokenizer.encode(f" {word}", first=False).tolist() for word in ("cat", "dog")]
    assert [len(each) for each in ids] == [1, 1]
    mask = model.tokenizer.mask_id
    row, counts = model.rows.finished([*model.tokenizer.encode("the").tolist(), mask])
    row = row[: sum(counts)]
    at = torch.tensor([[token == mask for token in row]])
    logits = model.network.logits(model.network.features(torch.tensor([row]), output_mask=at).final)[0]
    expected = logits[[each[0] for each in ids]].softmax(-1).tolist()
    assert list(found["probabilities"].values()) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    "slot",
    [
        {"type": "choice"},
        {"type": "choice", "options": ["a", "a"]},
        {"type": "yes_no", "low": 1},
        {"type": "number", "low": 3, "high": 3},
        {"type": "number", "low": 0, "high": 100_000},
        {"type": "other"},
    ],
)
def test_a_slot_that_means_nothing_is_refused(client, slot):
    answer = client.post("/v1/decide", json={"text": "the [MASK]", "slots": [slot]})
    assert answer.status_code == 400
    assert "slots" in answer.json()["error"]["param"]


def test_constraints_hold_over_http(client):
    ask = {
        "model": "mdlm",
        "text": "the [MASK] sat on [MASK:2] and [MASK:2]",
        "constraints": [{"choice": ["cat", "dog"]}, {"digits": True}, {"pattern": "[a-c ]+"}],
        "n": 3,
    }
    for text in client.post("/v1/infill", json=ask).json()["texts"]:
        assert re.fullmatch(r"the (cat|dog) sat on [0-9]+ and [a-c ]+", text)


@pytest.mark.parametrize(
    "constraints", [[{}], [{"digits": True, "pattern": "a"}], [{"choice": []}], [{"pattern": "(?=a)"}], [], [{"x": 1}]]
)
def test_a_constraint_that_means_nothing_is_refused(client, constraints):
    ask = {"model": "mdlm", "text": "the [MASK]", "constraints": constraints}
    assert client.post("/v1/infill", json=ask).status_code == 400


def test_a_pattern_that_takes_too_long_is_refused(models):
    from adlm.errors import ConfigError
    from adlm.samplers.patterns import pattern_time
    from tests.errors import raises

    with pattern_time(0.05), raises(ConfigError, subject=r"\w{1,301}"):
        from adlm.samplers.constraints import Pattern

        models["mdlm"].infill_row("the [MASK:3]", constraints=[Pattern(r"\w{1,301}")])


@pytest.mark.parametrize("route", ["infill", "generate"])
def test_holes_of_open_length_are_limited(client, route):
    answer = client.post(f"/v1/{route}", json={"model": "mdlm", "text": "the [MASK:1-20] sat [MASK:1-60]"})
    assert answer.json()["error"]["code"] == "limit_exceeded"


def test_tokens_there_and_back(client, models):
    found = client.post("/tokenize", json={"text": "the cat", "model": "mdlm"}).json()
    assert found["tokens"] == models["mdlm"].tokenizer.encode("the cat").tolist()
    assert "".join(found["pieces"]) == "the cat"
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"text": "the cat"}
    assert client.post("/detokenize", json={"tokens": [10**6]}).status_code == 400


def test_one_model_is_described(client):
    assert client.get("/v1/models/mdlm").json()["id"] == "mdlm"
    assert client.get("/v1/models/none").status_code == 404


@pytest.mark.parametrize("route", ["/health", "/ready"])
def test_health_answers_head(client, route):
    answer = client.head(route)
    assert (answer.status_code, answer.content) == (200, b"")


def test_chat_without_a_template_is_refused_by_name(client):
    ask = {"model": "mdlm", "messages": [{"role": "user", "content": "hi"}]}
    assert client.post("/v1/chat/completions", json=ask).json()["error"]["code"] == "no_chat_template"


def test_messages_are_not_those_of_a_library(client):
    for body in ({"text": 1}, {"text": "a", "n": "x"}, {"text": "a", "n": 0}, {"text": "a", "more": 1}, [], {}):
        message = client.post("/v1/infill", json=body).json()["error"]["message"]
        assert not re.search(r"Input|pydantic|valid string|Field required|Extra inputs", message)


def test_latencies_are_a_histogram(client):
    client.get("/health")
    lines = client.get("/metrics").text.splitlines()
    assert 'adlm_request_seconds_bucket{route="/health",le="+Inf"} 1' in lines
    assert 'adlm_first_byte_seconds_count{route="/health"} 1' in lines


def test_clients_take_turns():
    queue: FairQueue[int, str] = FairQueue()
    for number in range(4):
        queue.add("busy", number, "")
    queue.add("other", 10, "")
    queue.remove(1)
    assert [queue.take()[0] for _ in range(len(queue))] == [0, 10, 2, 3]
