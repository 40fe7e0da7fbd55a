"""What the studio needs of the API: what a model can do, one model read in several ways, probabilities, constraints."""

import dataclasses
import json
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from adlm.data.tokenizer import train_words
from adlm.serve.app import make_app
from adlm.serve.engine import Engine
from adlm.text_model import TextModel
from tests.serve.conftest import HERE, SIZES, TEXTS, several_readings, tiny


@pytest.fixture(scope="module")
def models() -> dict[str, TextModel]:
    words = tiny("mdlm", tokenizer=train_words(TEXTS))
    blocks = several_readings()
    own = dataclasses.replace(blocks.config, sampling={"sampler": "left-to-right", "top_p": 0.9})
    ordered = TextModel(blocks.network, own, blocks.tokenizer)
    return {"blocks": blocks, "ordered": ordered, "mdlm": tiny("mdlm"), "ar": tiny("ar"), "words": words}


@pytest.fixture
def client(models) -> Iterator[TestClient]:
    with TestClient(make_app(Engine(models)), base_url=HERE) as client:
        yield client


def events(client: TestClient, **ask) -> list[dict]:
    answer = client.post("/v1/generate", json=ask)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line]


def test_models_tell_what_they_can_do(client, models):
    found = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
    blocks, masked, causal = (found[name] for name in ("blocks", "mdlm", "ar"))
    assert blocks["block_sizes"] == [1, 4, 0]
    assert (blocks["attention"], masked["attention"], causal["attention"]) == ("block", "full", "causal")
    assert [each["fills_holes"] for each in (blocks, masked, causal)] == [True, True, False]
    assert masked["parameters"] == sum(weight.numel() for weight in models["mdlm"].network.parameters())
    assert (masked["stages"], masked["length"], masked["block_sizes"]) == (1, 32, [])
    assert masked["knows_all_words"]
    assert not found["words"]["knows_all_words"]
    options = {each["name"]: each["options"] for each in client.get("/v1/samplers?model=blocks").json()}
    assert "block_size" in options["ancestral"]


@pytest.mark.parametrize("size", SIZES)
def test_one_model_writes_from_left_to_right_in_blocks_and_all_at_once(client, models, size):
    ask = {"prompt": "the cat", "seed": 3, "max_tokens": 16, "block_size": size}
    found = events(client, model="blocks", **ask)
    (text,) = models["blocks"].generate("the cat", seed=3, max_new_tokens=16, block_size=size)
    assert found[-1]["text"] == text
    completion = client.post("/v1/completions", json={"model": "blocks", **ask}).json()
    assert "the cat" + completion["choices"][0]["text"] == text
    order = [position for event in found[1:-1] for position, _, _ in event["changes"]]
    assert found[0]["blocks"] == ({"size": 4, "first": 0} if size == 4 else None)
    assert (order == sorted(order)) == (size == 1)
    if size == 4:
        assert [position // 4 for position in order] == sorted(position // 4 for position in order)


@pytest.mark.parametrize("size", SIZES)
def test_a_model_that_writes_from_left_to_right_by_default_is_read_in_blocks_too(client, models, size):
    ask = {"prompt": "the cat", "seed": 3, "max_tokens": 8}
    text = events(client, model="ordered", block_size=size, **ask)[-1]["text"]
    sampler = "left-to-right" if size == 1 else "confidence"
    options = {"top_p": 0.9} | ({} if size == 1 else {"block_size": size})
    (expected,) = models["ordered"].generate("the cat", seed=3, max_new_tokens=8, sampler=sampler, **options)
    assert text == expected
    names = [each["name"] for each in client.get("/v1/samplers?model=ordered").json()]
    assert {"left-to-right", "confidence"} <= set(names)
    named = client.post(
        "/v1/generate", json={"model": "ordered", "sampler": "left-to-right", "block_size": size, **ask}
    )
    assert (named.status_code, named.json()["error"]["param"]) == (400, "block_size")


def test_done_counts_what_was_written_and_steps_tell_their_time(client):
    found = events(client, model="mdlm", text="the [MASK:4] sat")
    assert found[-1]["tokens"] == 4
    times = [event["seconds"] for event in found[1:]]
    assert times == sorted(times)
    assert found[-1]["seconds"] > 0


@pytest.mark.parametrize("model", ["mdlm", "ar", "blocks"])
def test_each_written_token_has_the_probability_that_the_network_gave_it(client, model):
    found = events(client, model=model, prompt="the", max_tokens=8, top_p=0.9, predictions=10)
    expected, compared = {}, 0
    for event in found[1:-1]:
        expected |= {position: dict(final) for position, _, final in event["predictions"]}
        sure = dict(event["probabilities"])
        for position, _, text in event["changes"]:
            assert 0 < sure[position] <= 1
            if text in expected[position]:  # told again only if it has changed noticeably
                assert sure[position] == pytest.approx(expected[position][text], abs=0.021)
                compared += 1
    assert compared


def test_anchors_are_told_only_of_models_with_an_anchor_stage(client):
    assert not any(event["anchors"] for event in events(client, model="mdlm", text="the [MASK:8] sat")[1:-1])


def test_holes_are_filled_under_constraints_while_one_watches(client):
    ask = {"text": "the [MASK] sat on the [MASK]", "model": "mdlm"}
    held = [{"choice": ["cat", "dog"]}, None]
    text = events(client, **ask, constraints=held)[-1]["text"]
    assert text.startswith(("the cat sat on the", "the dog sat on the"))
    for wrong in ({"constraints": held[:1], **ask}, {"prompt": "the", "constraints": held, "model": "mdlm"}):
        assert client.post("/v1/generate", json=wrong).status_code == 400


def test_a_model_that_also_reads_whole_rows_fills_holes_and_goes_on_from_a_canvas(client, models):
    assert events(client, model="blocks", text="the [MASK:3] sat")[-1]["text"].endswith(" sat")
    ids = models["blocks"].tokenizer.encode("the cat sat").tolist()
    found = events(client, model="blocks", canvas=[ids[0], None, None, ids[2]])
    assert found[0]["tokens"][3][0] == ids[2]
    assert found[-1]["tokens"] == 2
    with TestClient(make_app(Engine({"plain": tiny("blocks")})), base_url=HERE) as plain:
        assert plain.post("/v1/generate", json={"text": "the [MASK:3] sat"}).status_code == 400


def test_words_without_a_token_are_named(client):
    found = client.post("/tokenize", json={"text": "the zebra sat on the cat", "model": "words"}).json()
    assert found["unknown"] == [" zebra"]
    assert client.post("/tokenize", json={"text": "the zebra", "model": "mdlm"}).json()["unknown"] == []
