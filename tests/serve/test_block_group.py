"""Requests that are written in blocks together: each writes what it writes alone, whatever the others do."""

import threading
import time

import pytest
import torch

from adlm.samplers import Ancestral, Blocks, Temperature, TopK
from adlm.samplers.ancestral import Remasking
from adlm.samplers.first_hitting import FirstHitting
from adlm.samplers.ordered import Ordered
from adlm.samplers.orders import AnyOrder
from adlm.samplers.paces import Above, EntropyBound, InSteps
from adlm.samplers.remasking import ByConfidence, Cap
from adlm.samplers.stopping import StopRule
from adlm.serve.engine import Engine
from adlm.serve.ticket import Cancelled
from adlm.text_model import TextModel
from tests.serve.conftest import tiny
from tests.serve.test_row_batch import Told

FILTERS = (TopK(20), Temperature(2.0))
INNER = {
    "confidence": Ordered(FILTERS, pace=InSteps(3)),
    "random order": Ordered(order=AnyOrder(), pace=InSteps(2)),
    "threshold": Ordered(pace=Above(0.2)),
    "entropy bound": Ordered(pace=EntropyBound(2.0)),
    "ancestral": Ancestral(FILTERS, steps=6),
    "first-hitting": FirstHitting(),
    "remasking": Remasking(steps=6, rule=Cap(0.3)),
    "remasking by confidence": Remasking(steps=6, rule=ByConfidence()),
    "stale anchors": Ordered(FILTERS, 2, pace=InSteps(4)),
    "agreeing": Ordered(FILTERS, pace=InSteps(4), agreeing=True),
}


CASES = [*(("anchored-blocks", each) for each in INNER), ("blocks", "confidence"), ("blocks", "ancestral")]


def told_by(inner) -> type[Told]:
    return type("ToldByBlocks", (Told,), {"samplers": [Blocks(inner=inner, size=4)]})


@pytest.fixture(scope="module")
def models() -> dict[str, TextModel]:
    return {kind: tiny(kind) for kind in ("blocks", "anchored-blocks")}


@pytest.fixture
def engine(models):
    engine = Engine(models)
    engine.start()
    yield engine
    engine.close()


def requests(model: TextModel, kind: type[Told]) -> list[Told]:
    """Of many kinds: several rows, an end token that comes early, stop strings, none."""
    eos, decode = model.tokenizer.roles.eos_id, model.tokenizer.decode
    rules = [StopRule(eos), StopRule(eos, ("e", "a"), decode), None, StopRule(7), StopRule(9, ("t",), decode)]
    return [kind(i, rows=1 + 2 * (i % 3 == 2), rule=rules[i % len(rules)]) for i in range(12)]


@pytest.mark.parametrize(("model", "inner"), CASES)
def test_each_request_is_told_what_it_is_told_alone(models, engine, model, inner):
    kind = told_by(INNER[inner])
    alone, together = requests(models[model], kind), requests(models[model], kind)
    expected = [each(models[model]) for each in alone]
    jobs = engine.submit(model, together)
    assert [job.future.result(60) for job in jobs] == expected
    assert engine.batchers[model].passes < sum(each.calls[0] for each in alone) / 2
    for one, other in zip(alone, together, strict=True):
        assert one.steps == other.steps
        assert one.calls == other.calls
        assert [draw[:3] for draw in one.draws] == [draw[:3] for draw in other.draws]
        assert [positions for positions, _ in one.predicted] == [positions for positions, _ in other.predicted]
        for (_, mine), (_, its) in zip(one.predicted, other.predicted, strict=True):
            assert torch.allclose(mine, its, atol=1e-4)
        for mine, its in zip(one.draws, other.draws, strict=True):
            assert torch.allclose(mine[3], its[3], atol=1e-4)


def test_requests_without_callbacks_write_what_they_write_alone(models, engine):
    sampler = Blocks(inner=Ancestral(steps=8), size=4)
    alone = [models["blocks"].generate("the cat", seed=i, sampler=sampler, n=2) for i in range(6)]
    works = [lambda model, _, i=i: model.generate("the cat", seed=i, sampler=sampler, n=2) for i in range(6)]
    assert [job.future.result(60) for job in engine.submit("blocks", works)] == alone


def test_requests_join_and_leave_between_blocks_and_nothing_is_kept(models, engine):
    kind = told_by(INNER["confidence"])
    first, begun = kind(0, length=64), threading.Event()
    told = first.step
    first.step = lambda event: (told(event), begun.set(), time.sleep(0.005))
    alone = [kind(i)(models["blocks"]) for i in range(1, 6)]
    (long,) = engine.submit("blocks", [first])
    assert begun.wait(10)
    jobs = [engine.submit("blocks", [kind(i)])[0] for i in range(1, 6)]
    assert [job.future.result(20) for job in jobs] == alone
    assert long.future.result(20) == kind(0, length=64)(models["blocks"])
    batcher = engine.batchers["blocks"]
    end = time.monotonic() + 10
    while (batcher._groups or batcher._pools._pools or batcher.running) and time.monotonic() < end:
        time.sleep(0.01)
    assert not batcher._groups
    assert not batcher._pools._pools
    assert batcher.running == 0


def test_a_prompt_is_read_before_the_request_joins(models, engine, monkeypatch):
    """Beside others, all of their rows would have as many positions as the prompt."""
    network, sites = models["blocks"].network, []
    read = type(network).read_block

    def counted(self, tokens, start, cache, *, rows, **options):
        numbers = range(len(tokens)) if rows is None else rows
        sites.append((len(tokens), max(n - cache.lengths[row] for n, row in zip(start, numbers, strict=True))))
        return read(self, tokens, start, cache, rows=rows, **options)

    monkeypatch.setattr(type(network), "read_block", counted)
    sampler = Blocks(inner=INNER["confidence"], size=4)
    prompt = "the cat sat on the mat and the dog sat on the log and a bird saw the cat and the dog"
    works = [lambda model, _, i=i: model.generate(prompt, seed=i, sampler=sampler) for i in range(4)]
    for job in engine.submit("blocks", works):
        job.future.result(60)
    assert [rows for rows, clean in sites if clean > 8] == [1, 1, 1, 1]
    assert max(rows for rows, _ in sites) > 1


def test_a_cancelled_or_failing_request_leaves_the_others_alone(engine, models):
    kind = told_by(INNER["confidence"])

    class Failing(kind):  # type: ignore[valid-type,misc]
        def step(self, event) -> None:
            raise ZeroDivisionError

    others = [kind(i, length=32) for i in range(1, 4)]
    slow = others[0].step
    others[0].step = lambda event: (slow(event), time.sleep(0.01))
    kept = engine.submit("blocks", others)
    gone, wrong = engine.submit("blocks", [kind(4, length=32), Failing(5)])
    gone.cancel()
    with pytest.raises(ZeroDivisionError):
        wrong.future.result(20)
    with pytest.raises(Cancelled):
        gone.future.result(20)
    assert [job.future.result(20) for job in kept] == [kind(i, length=32)(models["blocks"]) for i in range(1, 4)]


def test_an_error_in_the_middle_of_a_block_is_one_request_s_error_and_others_are_told_once(engine, models, monkeypatch):
    """The block is then written by each alone, and what was told before is not told again."""
    kind = told_by(INNER["first-hitting"])
    alone = [kind(i, length=32) for i in range(1, 4)]
    expected = [each(models["blocks"]) for each in alone]
    real, failed = Told.record, []

    def record(self, found) -> None:
        if self.number == 4 and len(self.predicted) == 9:
            failed.append(1)
            raise ZeroDivisionError
        real(self, found)

    monkeypatch.setattr(Told, "record", record)
    together = [kind(i, length=32) for i in range(1, 5)]
    *kept, wrong = engine.submit("blocks", together)
    with pytest.raises(ZeroDivisionError):
        wrong.future.result(20)
    assert [job.future.result(20) for job in kept] == expected
    for one, other in zip(alone, together, strict=False):
        assert one.steps == other.steps
    assert failed


def test_a_request_whose_reader_is_behind_pauses_and_others_go_on(engine, models):
    kind = told_by(INNER["first-hitting"])
    behind, told = threading.Event(), kind(1, length=64)
    step = told.step
    told.step = lambda event: (step(event), event.step == 9 and behind.set())
    (paused,) = engine.submit("blocks", [told])
    paused.ticket.held = behind.is_set
    (other,) = engine.submit("blocks", [kind(2)])
    assert other.future.result(20) == kind(2)(models["blocks"])
    assert behind.wait(10)
    time.sleep(0.1)
    assert not paused.future.done()
    assert len(told.steps) == 10
    behind.clear()
    expected = kind(1, length=64)
    assert paused.future.result(20) == expected(models["blocks"])
    assert told.steps == expected.steps


def test_a_request_that_is_alone_stops_before_its_next_pass(engine, models):
    kind = told_by(FirstHitting())
    told = kind(0, length=64)
    step = told.step
    told.step = lambda event: (step(event), job.cancel() if event.step == 5 else None)
    go = threading.Event()
    (job,) = engine.submit("blocks", [lambda model, _: (go.wait(10), told(model))[1]])
    go.set()
    with pytest.raises(Cancelled):
        job.future.result(20)
    assert len(told.steps) == 6


def test_an_error_of_the_network_ends_the_requests_and_nothing_waits_forever(models, monkeypatch):
    engine = Engine({"blocks": models["blocks"]})
    engine.start()
    kind = told_by(INNER["confidence"])

    def broken(self, *given, **named):
        raise MemoryError

    for name in ("read_block", "logits"):
        with monkeypatch.context() as patch:
            patch.setattr(type(models["blocks"].network), name, broken)
            for job in engine.submit("blocks", [kind(1), kind(2), kind(3)]):
                with pytest.raises(MemoryError):
                    job.future.result(20)
    (job,) = engine.submit("blocks", [kind(1)])
    assert job.future.result(20) == kind(1)(models["blocks"])
    engine.close()


def test_closing_the_engine_ends_requests_in_the_middle_of_a_block(models):
    engine = Engine({"blocks": models["blocks"]})
    engine.start()
    kind, begun = told_by(INNER["first-hitting"]), threading.Event()
    told = [kind(i, length=64) for i in range(3)]
    for each in told:
        each.step = lambda event: (begun.set(), time.sleep(0.01))
    jobs = engine.submit("blocks", told)
    assert begun.wait(10)
    engine.close()
    for job in jobs:
        with pytest.raises(Cancelled):
            job.future.result(20)
