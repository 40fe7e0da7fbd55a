"""Served models that read blocks: shared passes, an exact cache per request, streams block by block, stop strings."""

import gc
import json
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from fastapi.testclient import TestClient

from adlm.samplers.block_reader import BlockReader
from adlm.serve.app import make_app
from adlm.serve.batched_network import BatchedNetwork
from adlm.serve.block_pool import BlockPools
from adlm.serve.engine import Engine
from adlm.serve.logprobs import Logprobs
from adlm.serve.ticket import Cancelled
from adlm.text_model import TextModel
from tests.serve.conftest import HERE, tiny

ASKS = [
    {"prompt": "the cat", "sampler": "ancestral", "steps": 4},
    {"prompt": "a dog sat on the mat and the bird saw", "sampler": "confidence", "steps": 3},
    {"prompt": "", "sampler": "first-hitting", "n": 2},
    {"prompt": "the", "sampler": "ancestral", "steps": 2, "max_new_tokens": 70},
    {"prompt": "a bird", "sampler": "draft-and-verify"},
    {"prompt": "the log", "sampler": "left-to-right", "n": 3},
    {"prompt": "the dog", "sampler": "confidence", "steps": 2, "block_size": 8},
    {"prompt": "a dog", "sampler": "ancestral", "steps": 8, "block_size": 0},
]
LONG = 1e9


@pytest.fixture(scope="module")
def models() -> dict[str, TextModel]:
    return {kind: tiny(kind) for kind in ("blocks", "anchored-blocks")}


@pytest.fixture
def client(models) -> Iterator[TestClient]:
    with TestClient(make_app(Engine(models)), base_url=HERE) as client:
        yield client


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("kind", ["blocks", "anchored-blocks"])
def test_a_seed_writes_the_same_text_alone_and_under_load(models, kind, lanes, monkeypatch):
    asks = [ask for ask in ASKS for _ in range(2)]
    if kind == "anchored-blocks":
        asks += [{"prompt": "the", "sampler": "ancestral", "steps": 4, "stale_anchors": 2}] * 2
    alone = [models[kind].generate(seed=i, **ask) for i, ask in enumerate(asks)]
    monkeypatch.setattr(torch, "get_num_threads", lambda: lanes)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    engine = Engine({kind: models[kind]})
    engine.start()
    works = [lambda model, _, i=i, ask=ask: model.generate(seed=i, **ask) for i, ask in enumerate(asks)]
    found = [job.future.result(60) for job in engine.submit(kind, works)]
    engine.close()
    assert found == alone


def test_requests_at_different_blocks_share_passes(models):
    engine = Engine({"blocks": models["blocks"]})
    prompts = ["the cat", "a dog sat on the mat and", "the", "a bird saw the cat and the dog"] * 2
    works = [
        lambda model, ticket, i=i, prompt=prompt: (model.generate(prompt, seed=i, sampler="first-hitting"), ticket)[1]
        for i, prompt in enumerate(prompts)
    ]
    jobs = engine.submit("blocks", works)
    while engine.running < 8:
        time.sleep(0.001)
    engine.batchers["blocks"]._took = LONG  # very patient
    engine.start()
    asked = sum(job.future.result(60).calls for job in jobs)
    batcher = engine.batchers["blocks"]
    engine.close()
    assert batcher.passes < asked / 2


@pytest.mark.parametrize("sampler", ["ancestral", "draft-and-verify"])
def test_each_pass_computes_the_current_block_alone(models, monkeypatch, sampler):
    network, sites = models["blocks"].network, []
    read = type(network).read_block

    def counted(self, tokens, start, cache, *, rows, **options):
        numbers = range(len(tokens)) if rows is None else rows
        sites.append(max(first - cache.lengths[row] for first, row in zip(start, numbers, strict=True)))
        return read(self, tokens, start, cache, rows=rows, **options)

    monkeypatch.setattr(type(network), "read_block", counted)
    engine = Engine({"blocks": models["blocks"]})
    engine.start()
    (job,) = engine.submit("blocks", [lambda model, _: model.generate("the cat", seed=1, sampler=sampler)])
    job.future.result(60)
    engine.close()
    assert len(sites) > 4
    assert max(sites) <= 4  # of finished positions, only those of the block before are read


def test_a_request_for_blocks_can_be_cancelled(models, monkeypatch):
    engine = Engine({"blocks": models["blocks"]})
    engine.start()
    passes = []
    read = BlockReader.features

    def cancelling(self, where, **options):
        passes.append(1)
        if len(passes) == 3:
            job.ticket.cancelled = True
        return read(self, where, **options)

    monkeypatch.setattr(BlockReader, "features", cancelling)
    go = []

    def work(model, _):
        while not go:
            time.sleep(0.001)
        return model.generate("the cat", seed=1, sampler="first-hitting")

    (job,) = engine.submit("blocks", [work])
    go.append(1)
    with pytest.raises(Cancelled):
        job.future.result(60)
    engine.close()
    assert len(passes) == 3


def test_rows_of_a_pool_are_free_again_when_their_cache_is_gone():
    pools = BlockPools()
    first, second = pools.rows(3, 40), pools.rows(2, 50)
    assert second.pool is first.pool
    assert not {*first.numbers} & {*second.numbers}
    assert pools.rows(1, 400).pool is not first.pool
    assert pools.rows(40, 40).num_rows == 40
    numbers = first.numbers
    del first
    gc.collect()
    assert pools.rows(3, 40).numbers == numbers
    del second
    gc.collect()
    assert not pools._pools


def test_threads_that_take_and_leave_rows_at_the_same_time_lose_none_and_share_none():
    pools, taken, shared, before = BlockPools(), set(), [], sys.getswitchinterval()

    def use() -> None:
        for _ in range(2000):
            found = pools.rows(2, 40)
            mine = {(id(found.pool), number) for number in found.numbers}
            shared.extend(mine & taken)
            taken.update(mine)
            taken.difference_update(mine)
            del found

    threads = [threading.Thread(target=use) for _ in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not shared
    assert not pools._pools


def test_a_batched_network_reads_whole_blocks_like_its_network(models):
    network = models["blocks"].network
    shared = BatchedNetwork(network, lambda own, call: call.compute(own, [call])[0], lambda *_: False, BlockPools())
    tokens = torch.randint(0, 200, (2, 12))
    own = network.read_block(tokens, [4, 8], network.finished_blocks(2, 12))
    found = shared.read_block(tokens, [4, 8], shared.finished_blocks(2, 12))
    torch.testing.assert_close(found.final, own.final)


def pieces(client: TestClient, **ask) -> list[dict]:
    answer = client.post("/v1/completions", json={"stream": True, **ask}).text
    return [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("sampler", ["confidence", "draft-and-verify", "left-to-right"])
def test_a_stream_brings_text_as_blocks_finish(client, models, sampler):
    ask = {"model": "blocks", "prompt": "the cat", "max_tokens": 20, "seed": 2, "sampler": sampler}
    texts = [event["choices"][0]["text"] for event in pieces(client, **ask)]
    whole = client.post("/v1/completions", json=ask).json()["choices"][0]["text"]
    assert "".join(texts) == whole
    assert len([text for text in texts if text]) >= 4  # blocks of 4 tokens
    (alone,) = models["blocks"].generate("the cat", max_new_tokens=20, seed=2, sampler=sampler)
    assert "the cat" + whole == alone


@pytest.mark.parametrize("sampler", ["confidence", "draft-and-verify", "left-to-right"])
def test_a_stop_string_ends_a_request_and_its_usage(client, sampler):
    ask = {"model": "blocks", "prompt": "the cat", "max_tokens": 24, "seed": 2, "sampler": sampler}
    whole = client.post("/v1/completions", json=ask).json()
    text = whole["choices"][0]["text"]
    stop = text[6:9]
    cut = client.post("/v1/completions", json={**ask, "stop": stop}).json()
    assert cut["choices"][0]["text"] == text[: text.find(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"] / 2
    streamed = pieces(client, **ask, stop=stop)
    assert "".join(event["choices"][0]["text"] for event in streamed) == text[: text.find(stop)]


def test_logprobs_of_drafted_tokens_are_those_of_the_left_to_right_reading(models):
    model, told = models["blocks"], Logprobs(1)
    row = model.prompt_row("the cat", max_new_tokens=9)
    canvas = model.rows.canvas([(row, 0), (row, 1)])
    tokens = model.fill(canvas, sampler=model.sampler("draft-and-verify"), seed=2, on_draw=told).tokens
    network = model.in_blocks(1).network
    with torch.no_grad():
        laws = network.logits(network.features(tokens).final).log_softmax(-1)
    expected = laws.gather(-1, tokens[..., None])[..., 0]
    torch.testing.assert_close(told.drawn[canvas.open], expected[canvas.open], atol=1e-3, rtol=0)
