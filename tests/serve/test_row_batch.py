"""Left-to-right requests as rows of one batch: each writes what it writes alone, whatever the others do."""

import threading
import time
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.models.cache import Cache
from adlm.samplers import Canvas, LeftToRight, RepetitionPenalty, Temperature, TopK
from adlm.samplers.recording import RecordingNetwork
from adlm.samplers.sampler import Sampler
from adlm.samplers.stopping import StopRule
from adlm.serve.engine import Engine
from adlm.serve.ticket import Cancelled
from adlm.text_model import TextModel
from tests.serve.conftest import several_readings, tiny
from tests.serve.test_engine import READERS

SAMPLERS = [
    LeftToRight(),
    LeftToRight((TopK(4), Temperature(2.0))),
    LeftToRight((RepetitionPenalty(1.7),)),
    LeftToRight((TopK(4), Temperature(2.0))),
]
PROMPTS: list[list[int]] = [[], [5, 6, 7], [8], [5, 6, 7], [9, 10, 11, 12, 13], []]


class Told:
    """One request, and everything that it is told."""

    samplers: Sequence[Sampler] = SAMPLERS

    def __init__(self, number: int, rows: int = 1, rule: StopRule | None = None, length: int = 0) -> None:
        self.number, self.rows, self.rule = number, rows, rule
        self.length = length or 10 + 2 * number
        self.steps: list[tuple[int, int | None, list[list[int]], list[list[bool]]]] = []
        self.draws: list[tuple[list[int], list[int], list[int], torch.Tensor]] = []
        self.predicted: list[tuple[list[int], torch.Tensor]] = []

    def __call__(self, model: TextModel, _: object = None) -> list[list[int]]:
        prompt = PROMPTS[self.number % len(PROMPTS)]
        canvas = Canvas.continuing([prompt] * self.rows, self.length, model.tokenizer.mask_id)
        sampler = self.samplers[self.number % len(self.samplers)]
        model = model.read_by(sampler)
        network = RecordingNetwork(model.network, canvas, self.record) if self.rows == 1 else None
        sample = model.fill(
            canvas, sampler=sampler, seed=self.number, stop=self.rule, on_step=self.step, on_draw=self.draw,
            network=network,
        )  # fmt: skip
        self.calls = sample.network_calls, sample.anchor_calls
        return sample.tokens.tolist()

    def record(self, found) -> None:
        self.predicted.append((found.positions, found.logits.clone()))

    def step(self, event) -> None:
        self.steps.append((event.step, event.steps, event.tokens.tolist(), event.fresh.tolist()))

    def draw(self, sites, prediction) -> None:
        where = sites.row.tolist(), sites.position.tolist()
        self.draws.append((*where, prediction.drawn.tolist(), prediction.own_confidence.clone()))


def requests(model: TextModel) -> list[Told]:
    """Of many kinds: several rows, an end token that comes early, stop strings, none."""
    eos, decode = model.tokenizer.roles.eos_id, model.tokenizer.decode
    rules = [StopRule(eos), StopRule(eos, ("e", "a"), decode), None, StopRule(7), StopRule(9, ("t",), decode)]
    return [Told(i, rows=1 + 2 * (i % 3 == 2), rule=rules[i % len(rules)]) for i in range(12)]


@pytest.mark.parametrize("kind", ["ar", "blocks", "anchored-blocks"])
def test_each_request_is_told_what_it_is_told_alone(kind):
    model = tiny("ar") if kind == "ar" else several_readings(kind).in_blocks(1)
    alone, together = requests(model), requests(model)
    expected = [each(model) for each in alone]
    engine = Engine({"model": model})
    engine.start()
    try:
        jobs = engine.submit("model", together)
        assert [job.future.result(60) for job in jobs] == expected
        assert engine.batchers["model"].passes < sum(len(each.draws) for each in alone) / 2
    finally:
        engine.close()
    for one, other in zip(alone, together, strict=True):
        assert one.steps == other.steps
        assert one.calls == other.calls
        assert [draw[:3] for draw in one.draws] == [draw[:3] for draw in other.draws]
        assert [positions for positions, _ in one.predicted] == [positions for positions, _ in other.predicted]
        for (_, mine), (_, its) in zip(one.predicted, other.predicted, strict=True):
            assert torch.allclose(mine, its, atol=1e-4)
        for mine, its in zip(one.draws, other.draws, strict=True):
            assert torch.allclose(mine[3], its[3], atol=1e-4)


def test_rows_join_and_leave_while_others_are_written(engine, models):
    first = Told(0, length=32)
    begun = threading.Event()
    told = first.step
    first.step = lambda event: (told(event), begun.set(), time.sleep(0.005))
    alone = [Told(i)(models["ar"]) for i in range(1, 6)]
    (long,) = engine.submit("ar", [first])
    assert begun.wait(10)
    jobs = [engine.submit("ar", [Told(i)])[0] for i in range(1, 6)]
    assert [job.future.result(20) for job in jobs] == alone
    assert long.future.result(20) == Told(0, length=32)(models["ar"])
    assert not engine.batchers["ar"]._batches


def test_a_cancelled_or_failing_request_leaves_the_others_alone(engine, models):
    class Failing(Told):
        def step(self, event) -> None:
            raise ZeroDivisionError

    others = [Told(i, length=32) for i in range(1, 4)]
    slow = others[0].step
    others[0].step = lambda event: (slow(event), time.sleep(0.01))
    kept = engine.submit("ar", others)
    gone, wrong = engine.submit("ar", [Told(4, length=32), Failing(5)])
    gone.cancel()
    with pytest.raises(ZeroDivisionError):
        wrong.future.result(20)
    with pytest.raises(Cancelled):
        gone.future.result(20)
    assert [job.future.result(20) for job in kept] == [Told(i, length=32)(models["ar"]) for i in range(1, 4)]


def test_a_request_whose_reader_is_behind_pauses_and_others_go_on(engine, models):
    behind, told = threading.Event(), Told(1, length=32)
    step = told.step
    told.step = lambda event: (step(event), event.step == 9 and behind.set())
    (paused,) = engine.submit("ar", [told])
    paused.ticket.held = behind.is_set
    (other,) = engine.submit("ar", [Told(2)])
    assert other.future.result(20) == Told(2)(models["ar"])
    assert behind.wait(10)
    time.sleep(0.1)
    assert not paused.future.done()
    assert len(told.steps) == 10
    behind.clear()
    assert paused.future.result(20) == Told(1, length=32)(models["ar"])


def test_a_paused_request_can_be_cancelled(engine):
    (job,) = engine.submit("ar", [Told(1, length=32)])
    job.ticket.held = lambda: True
    time.sleep(0.1)
    job.cancel()
    with pytest.raises(Cancelled):
        job.future.result(20)


def test_a_prompt_that_cannot_be_read_is_one_request_s_error(models):
    """Those of one length are read together, unless that fails."""
    engine = Engine({"ar": models["ar"]})

    def bad(model, _):
        canvas = Canvas.continuing([[5, 9_999, 7]], 12, model.tokenizer.mask_id)
        return model.fill(canvas, sampler=LeftToRight())

    jobs = engine.submit("ar", [bad, Told(1), Told(3)])
    while not engine.batchers["ar"]._batches or engine.batchers["ar"]._batches[0].load < 12 + 12 + 16:
        time.sleep(0.001)
    engine.start()
    with pytest.raises(IndexError):
        jobs[0].future.result(20)
    assert [job.future.result(20) for job in jobs[1:]] == [Told(i)(models["ar"]) for i in (1, 3)]
    engine.close()


def test_an_error_of_the_network_ends_the_requests_and_nothing_waits_forever(models, monkeypatch):
    engine = Engine({"ar": models["ar"]})
    engine.start()

    def broken(self, *given, **named):
        raise MemoryError

    for name in ("extend", "logits", "cache"):
        with monkeypatch.context() as patch:
            patch.setattr(type(models["ar"].network), name, broken)
            jobs = engine.submit("ar", [Told(1), Told(2), Told(3)])
            for job in jobs:
                with pytest.raises(MemoryError):
                    job.future.result(20)
    (job,) = engine.submit("ar", [Told(1)])
    assert job.future.result(20) == Told(1)(models["ar"])
    engine.close()


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_joined_caches_predict_what_each_does_alone(data):
    """Of any lengths and rows, over several tokens, joined again and again, with and without a short convolution."""
    network = READERS[data.draw(st.sampled_from(sorted(READERS)))]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    alone: list[Cache] = []
    joined: Cache | None = None
    for _ in range(data.draw(st.integers(1, 3))):
        new = []
        for _ in range(data.draw(st.integers(1, 3))):
            rows, length = data.draw(st.integers(1, 2)), data.draw(st.integers(0, 5))
            tokens = torch.randint(0, 200, (rows, length), generator=generator)
            for caches in (new, alone):
                caches.append(network.cache(rows, 16, torch.zeros(rows)))
                network.extend(tokens, caches[-1])
        joined = Cache.joined([*([] if joined is None else [joined]), *new], 3)
        for _ in range(data.draw(st.integers(1, 2))):
            news = [torch.randint(0, 200, (cache.rows, 1), generator=generator) for cache in alone]
            expected = [network.extend(token, cache).final for token, cache in zip(news, alone, strict=True)]
            found = network.extend(torch.cat(news), joined).final
            assert torch.allclose(found, torch.cat(expected), atol=1e-5)
        kept = torch.rand(joined.rows, generator=generator) < 0.7
        kept[0] = True
        parts, first = joined.part(kept), 0
        joined.keep(kept)
        assert parts.rows == joined.rows
        left = []
        for cache in alone:
            own = kept[first : first + cache.rows]
            first += cache.rows
            if bool(own.any()):
                cache.keep(own)
                left.append(cache)
        alone = left
