"""The engine without HTTP: what it shares, bounds and stops."""

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.serve.batcher import Batcher
from adlm.serve.engine import Engine
from adlm.serve.limits import RequestRefused, ServerLimits
from adlm.serve.ticket import Cancelled, Ticket
from adlm.text_model import TextModel
from tests.serve.conftest import tiny

LONG = 1e9
ASKS = [
    {"prompt": "the cat", "sampler": "ancestral", "steps": 16},
    {"prompt": "a dog sat on", "sampler": "confidence", "steps": 8, "temperature": 0.7},
    {"prompt": "", "sampler": "first-hitting", "top_p": 0.9},
    {"prompt": "the", "sampler": "remdm-cap", "steps": 12},
    {"prompt": "a bird", "sampler": "ancestral", "steps": 16, "max_new_tokens": 5},
    {"prompt": "the log", "sampler": "ancestral", "steps": 9, "n": 3},
]

ASK_FIELDS = {name for ask in ASKS for name in ask}


def written(model: TextModel, ask: dict[str, object], seed: int) -> list[str]:
    return model.generate(seed=seed, **ask)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["adlm", "mdlm", "padded", "ar"])
def test_a_seed_writes_the_same_text_alone_and_under_load(engine, models, kind):
    usable = ("prompt", "n", "top_p", "max_new_tokens") if kind == "ar" else ASK_FIELDS
    asks = [({name: value for name, value in ask.items() if name in usable}, i) for i, ask in enumerate(ASKS)]
    alone = [written(models[kind], *each) for each in asks]
    jobs = engine.submit(kind, [lambda model, _, each=each: written(model, *each) for each in asks])
    assert [job.future.result(20) for job in jobs] == alone


def test_stale_anchors_and_anchor_orders_are_shared_too(engine, models):
    asks = [{"sampler": "ancestral", "steps": 8, "stale_anchors": 3}, {"sampler": "anchor-first", "steps": 8}] * 3
    alone = [written(models["adlm"], ask, i) for i, ask in enumerate(asks)]
    works = [lambda model, _, i=i, ask=ask: written(model, ask, i) for i, ask in enumerate(asks)]
    assert [job.future.result(20) for job in engine.submit("adlm", works)] == alone


def test_lanes_beside_each_other_write_what_one_does(models, monkeypatch):
    alone = [written(models["adlm"], ask, i) for i, ask in enumerate(ASKS)]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    engine = Engine({"adlm": models["adlm"]})
    engine.start()
    assert len(engine.batchers["adlm"]._lanes) == 3
    jobs = engine.submit("adlm", [lambda model, _, i=i: written(model, ASKS[i], i) for i in range(len(ASKS))])
    assert [job.future.result(20) for job in jobs] == alone
    engine.close()


def test_requests_of_different_lengths_share_passes(models):
    engine = Engine({"padded": models["padded"]})
    # All are there before the first pass, so that the count does not hang on the machine's mood.
    works = [
        lambda model, ticket, i=i: (model.generate(seed=i, max_new_tokens=4 + i, sampler="first-hitting"), ticket)[1]
        for i in range(8)
    ]
    jobs = engine.submit("padded", works)
    while engine.running < 8:
        time.sleep(0.001)
    engine.batchers["padded"]._took = LONG  # very patient
    engine.start()
    asked = sum(job.future.result(20).calls for job in jobs)
    batcher = engine.batchers["padded"]
    engine.close()
    assert asked == sum(range(4, 12)) == batcher.rows
    assert batcher.passes < asked / 2


def test_a_new_request_joins_those_that_run(engine):
    began, later = threading.Event(), threading.Event()

    def first(model, ticket):
        def watch(view):
            began.set()
            later.wait(10)

        return model.generate(sampler="first-hitting", on_step=watch), ticket.calls

    (slow,) = engine.submit("adlm", [first])
    assert began.wait(10)
    (quick,) = engine.submit("adlm", [lambda model, _: model.generate(sampler="ancestral", steps=1)])
    quick.future.result(10)
    assert not slow.future.done()
    later.set()
    assert slow.future.result(10)[1] == 32


def test_a_cancelled_request_makes_no_further_pass(engine):
    began = threading.Event()

    def work(model, ticket):
        def watch(view):
            if view.step == 2:
                began.set()
                while not ticket.cancelled:
                    time.sleep(0.001)

        return model.generate(sampler="first-hitting", on_step=watch)

    (job,) = engine.submit("adlm", [work])
    assert began.wait(10)
    job.cancel()
    with pytest.raises(Cancelled):
        job.future.result(10)
    assert job.ticket.calls == 3
    assert engine.cancelled == 1


def test_a_request_given_up_while_it_waits_makes_room_at_once(models):
    engine, go_on = Engine(models, ServerLimits(running=1, waiting=1)), threading.Event()
    engine.start()
    try:
        (first,) = engine.submit("adlm", [lambda model, ticket: go_on.wait(10)])
        (second,) = engine.submit("adlm", [lambda model, ticket: pytest.fail("it was given up")])
        with pytest.raises(RequestRefused):
            engine.submit("adlm", [lambda model, ticket: None])
        second.cancel()
        assert second.future.cancelled()
        assert (engine.waiting, engine.cancelled) == (0, 1)
        (third,) = engine.submit("adlm", [lambda model, ticket: 3])
        go_on.set()
        assert first.future.result(10)
        assert third.future.result(10) == 3
        first.cancel()  # it is done: nothing happens
        assert engine.cancelled == 1
    finally:
        go_on.set()
        engine.close()


def test_a_future_cancelled_from_outside_costs_no_thread(models):
    engine, go_on = Engine(models, ServerLimits(running=1, waiting=2)), threading.Event()
    engine.start()
    try:
        engine.submit("adlm", [lambda model, ticket: go_on.wait(10)])
        (second,) = engine.submit("adlm", [lambda model, ticket: pytest.fail("it was given up")])
        (third,) = engine.submit("adlm", [lambda model, ticket: 3])
        assert second.future.cancel()
        go_on.set()
        assert third.future.result(10) == 3
        assert engine.submit("adlm", [lambda model, ticket: 4])[0].future.result(10) == 4
        assert engine.waiting == 0
    finally:
        go_on.set()
        engine.close()


def test_a_request_ends_at_its_time_limit(models):
    engine = Engine({"adlm": models["adlm"]}, ServerLimits(seconds=1))
    engine.start()
    (job,) = engine.submit("adlm", [lambda model, _: [model.generate(seed=i) for i in range(100_000)]])
    with pytest.raises(RequestRefused) as caught:
        job.future.result(20)
    engine.close()
    assert caught.value.status == 408
    assert caught.value.headers == {"x-should-retry": "false"}


def test_the_queue_is_bounded_and_takes_all_of_a_request_or_none(models):
    engine = Engine({"adlm": models["adlm"]}, ServerLimits(running=1, waiting=2))
    engine.start()
    go = threading.Event()
    jobs = engine.submit("adlm", [lambda model, _: go.wait(10)] * 2)
    with pytest.raises(RequestRefused) as caught:
        engine.submit("adlm", [lambda model, _: True] * 2)
    assert caught.value.status == 429
    assert 1 <= int(caught.value.headers["Retry-After"]) <= 60
    jobs += engine.submit("adlm", [lambda model, _: True])
    go.set()
    assert all(job.future.result(10) for job in jobs)
    engine.close()


def test_what_is_wrong_with_one_request_is_not_felt_by_others(models):
    network = models["mdlm"].network
    batcher = Batcher(network)
    results: dict[str, object] = {}

    def ask(name: str, tokens: torch.Tensor) -> None:
        try:
            results[name] = batcher.shared(Ticket(time.monotonic() + 10)).features(tokens).final
        except Exception as error:
            results[name] = error

    good, bad = torch.zeros(1, 4, dtype=torch.long), torch.full((1, 4), 10_000)
    threads = [threading.Thread(target=ask, args=each) for each in (("good", good), ("bad", bad))]
    for thread in threads:
        thread.start()
    while len(batcher._waiting) < 2:
        time.sleep(0.001)
    batcher.start()
    for thread in threads:
        thread.join(10)
    batcher.close()
    assert isinstance(results["bad"], IndexError)
    with torch.no_grad():
        assert torch.allclose(results["good"], network.features(good).final, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_passes_together_equal_passes_alone(data):
    """Any lengths, any segments, wanted or not, one or two stages."""
    from adlm.serve.network_calls import NetworkInput, join, run_pass, split

    network = data.draw(st.sampled_from([MODELS["adlm"], MODELS["mdlm"]])).network
    kinds = ("features", "anchor_stage", "denoise") if network.anchor_head is not None else ("features",)
    kind = data.draw(st.sampled_from(kinds))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    parts = []
    for _ in range(data.draw(st.integers(2, 4))):
        rows, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
        tokens = torch.randint(0, 200, (rows, length), generator=generator)
        segments = torch.zeros_like(tokens) if data.draw(st.booleans()) else None
        output_mask = torch.rand(rows, length, generator=generator) < 0.5 if data.draw(st.booleans()) else None
        with torch.no_grad():
            stage = network.anchor_stage(tokens) if kind == "denoise" else None
        if kind == "anchor_stage":
            output_mask = None
        parts.append(NetworkInput(tokens, None, segments, output_mask, stage))
    with network.inference_weights():
        alone = [run_pass(network, kind, part) for part in parts]
        together = join(parts, network.vocabulary.mask_id)
        found = split(parts, together, run_pass(network, kind, together))
    for one, other in zip(alone, found, strict=True):
        for a, b in zip(*([x] if isinstance(x, torch.Tensor) else x for x in (one, other)), strict=True):
            assert a is b is None or torch.allclose(a, b, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_left_to_right_rows_read_together_as_they_do_alone(data):
    """Caches of any lengths and rows, over several tokens, with and without a short convolution."""
    from adlm.serve.batched_cache import CachedReading, read_together

    network = READERS[data.draw(st.sampled_from(sorted(READERS)))]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    together, alone = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        rows, length = data.draw(st.integers(1, 2)), data.draw(st.integers(0, 6))
        tokens = torch.randint(0, 200, (rows, length), generator=generator)
        for caches in (together, alone):
            caches.append(network.cache(rows, 12, torch.zeros(rows)))
            network.extend(tokens, caches[-1])
    for _ in range(3):
        news = [torch.randint(0, 200, (cache.rows, 1), generator=generator) for cache in alone]
        found = read_together(network, [CachedReading(new, cache) for new, cache in zip(news, together, strict=True)])
        for new, cache, other in zip(news, alone, found, strict=True):
            one = network.extend(new, cache)
            assert torch.allclose(one.final, other.final, atol=1e-5)
            assert one.anchor is other.anchor is None or torch.allclose(one.anchor, other.anchor, atol=1e-5)
    assert [cache.length for cache in together] == [cache.length for cache in alone]


def test_a_pass_that_fails_leaves_the_caches_as_they_were(models):
    from adlm.serve.batched_cache import CachedReading, read_together

    network = models["ar"].network
    caches = [network.cache(1, 8) for _ in range(2)]
    for cache in caches:
        network.extend(torch.tensor([[1, 2]]), cache)
    with pytest.raises(IndexError):
        read_together(
            network, [CachedReading(torch.tensor([[3]]), caches[0]), CachedReading(torch.tensor([[9999]]), caches[1])]
        )
    assert [cache.length for cache in caches] == [3, 3]
    expected = network.extend(torch.tensor([[1, 2, 3]]), network.cache(1, 8)).final
    (found,) = read_together(network, [CachedReading(torch.tensor([[3]]), caches[0])])
    assert torch.allclose(found.final, expected, atol=1e-5)


def test_left_to_right_requests_share_passes(models):
    engine = Engine({"ar": models["ar"]})
    jobs = engine.submit("ar", [lambda model, ticket, i=i: (model.generate(seed=i), ticket)[1] for i in range(6)])
    while engine.running < 6:
        time.sleep(0.001)
    batcher = engine.batchers["ar"]
    batcher._took = LONG  # very patient
    engine.start()
    asked = sum(job.future.result(20).calls for job in jobs)
    engine.close()
    assert asked == batcher.rows
    assert batcher.passes < asked / 2


def _readers() -> dict[str, object]:
    torch.manual_seed(0)
    stack = StackConfig(width=32, heads=2, layers=2, attention="causal", convolution=3, query_key_norm=True)
    vocabulary = Vocabulary(220, 219)
    found = {
        "one stage": OneStageConfig(stack).build(vocabulary),
        "two stages": TwoStageConfig(stack, 1, positions=16).build(vocabulary),
    }
    for network in found.values():
        for weight in network.eval().parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.25)
    return found


READERS = _readers()
MODELS = {kind: tiny(kind) for kind in ("adlm", "mdlm")}


def test_logits_are_computed_for_several_requests_at_once(models, monkeypatch):
    model = models["padded"]
    engine, calls, logits = Engine({"padded": model}), [], model.network.logits
    monkeypatch.setattr(type(model.network), "logits", lambda self, final: calls.append(len(final)) or logits(final))
    works = [
        lambda model, ticket, i=i: model.generate(seed=i, max_new_tokens=6, sampler="first-hitting") for i in range(8)
    ]
    jobs = engine.submit("padded", works)
    while engine.running < 8:
        time.sleep(0.001)
    engine.batchers["padded"]._took = LONG  # very patient
    engine.start()
    for job in jobs:
        job.future.result(60)
    engine.close()
    assert sum(calls) == 48
    assert len(calls) < 24


def test_an_engine_gives_memory_back_now_and_then_and_when_it_is_idle(engine, monkeypatch):
    released: list[float] = []
    monkeypatch.setattr("adlm.serve.engine.release_freed_memory", lambda: released.append(1))
    monkeypatch.setattr("adlm.serve.engine._IDLE", 100.0)
    monkeypatch.setattr("adlm.serve.engine._BUSY", 1000.0)

    def after(seconds: float) -> int:
        """How often one request gives memory back, so long after the last time."""
        engine._released, before = time.monotonic() - seconds, len(released)
        engine.submit("adlm", [lambda model, _: None])[0].future.result(10)
        deadline = time.monotonic() + (10 if seconds else 0.1)
        while len(released) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        return len(released) - before

    assert [after(0), after(200), after(2000)] == [0, 1, 1]
