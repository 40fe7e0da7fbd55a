"""What is measured is what is taken: the reference implementations give what the library gives, at their cost."""

import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adlm.anchors.rules import RareInSequence
from adlm.diffusion.corruption import CountMasking
from adlm.errors import ConfigError
from adlm.models.costs import forward_work
from adlm.models.hand_over import Continued, HandOver, Hidden, Logits, Probabilities
from adlm.models.language_model import LanguageModel
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo
from adlm.randomness import Noise
from adlm.samplers.ancestral import Ancestral
from adlm.samplers.canvas import Canvas
from adlm.samplers.left_to_right import LeftToRight
from adlm_studies.experiments import settings
from adlm_studies.experiments.anchoring import Anchoring
from adlm_studies.experiments.efficiency import Efficiency
from adlm_studies.experiments.equal_quality import ADLM, AR, MDLM, needs, reached
from adlm_studies.experiments.study import StepContext, StepOutcome, check_steps, run_study
from adlm_studies.experiments.tensor_memory import peak_bytes
from adlm_studies.experiments.timing import TimeTraining, text_work
from adlm_studies.reference import ReferenceAnelbo, reference_ancestral, reference_left_to_right
from adlm_studies.report.sections import Chart, ReportTable
from tests.conftest import batch_of
from tests.errors import raises
from tests.studies.experiments.test_anchors import tiny_run

VOCABULARY = Vocabulary(13, 12)
STACK = StackConfig(16, 2, 2)
NOISE = Noise(5)
HAND_OVERS = [Logits(), Probabilities(), Hidden(), Continued()]


def moved(model: LanguageModel) -> LanguageModel:
    """Away from the zeros that models start from, where losses agree by chance."""
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.double()


@pytest.mark.parametrize("hand_over", HAND_OVERS)
@pytest.mark.parametrize("masked_only", [True, False])
def test_the_naive_loss_and_its_gradients_are_the_shipped_ones(hand_over: HandOver, masked_only: bool):
    shipped = Anelbo(CountMasking(), RareInSequence(1), gamma=0.3, masked_only=masked_only)
    reference = ReferenceAnelbo(**{field.name: getattr(shipped, field.name) for field in fields(shipped)})
    tokens = torch.randint(0, 12, (5, 9), generator=torch.Generator().manual_seed(0))
    valid = torch.arange(9) < torch.tensor([9, 7, 9, 3, 9])[:, None]
    found = []
    for objective in (shipped, reference):
        torch.manual_seed(0)
        model = moved(TwoStageConfig(STACK, 1, hand_over).build(VOCABULARY)).float()
        terms = objective(model, batch_of(tokens, valid), progress=1.0, noise=NOISE)
        terms.loss_sum.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([terms.loss_sum.detach(), terms.nll_sum, terms.tokens, *gradients])
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_reference_anchors_are_all_of_them():
    with raises(ConfigError, subject="fraction"):
        ReferenceAnelbo(fraction=0.5)


@pytest.mark.parametrize("network", [OneStageConfig(STACK), *(TwoStageConfig(STACK, 1, each) for each in HAND_OVERS)])
@pytest.mark.parametrize("steps", [1, 3, 20])
def test_naive_sampling_writes_the_same_tokens(network, steps):
    torch.manual_seed(0)
    model = moved(network.build(VOCABULARY)).eval()
    canvas = Canvas.continuing([[3, 1], [], [5]], 8, VOCABULARY.mask_id)
    shipped = Ancestral(steps=steps).sample(model, canvas, noise=NOISE)
    reference = reference_ancestral(model, canvas, steps=steps, noise=NOISE)
    assert torch.equal(shipped.tokens, reference.tokens)
    assert shipped.network_calls <= reference.network_calls == 3 * steps
    assert reference.anchor_calls == (3 * steps if isinstance(network, TwoStageConfig) else 0)


def test_naive_writing_from_left_to_right_needs_no_cache_for_the_same_tokens():
    torch.manual_seed(0)
    model = moved(OneStageConfig(replace(STACK, attention="causal")).build(VOCABULARY)).eval()
    canvas = Canvas.blank(3, 8, VOCABULARY.mask_id)
    shipped = LeftToRight().sample(model, canvas, noise=NOISE)
    reference = reference_left_to_right(model, canvas, noise=NOISE)
    assert torch.equal(shipped.tokens, reference.tokens)
    assert (shipped.network_calls, reference.network_calls) == (24, 24)


def test_memory_is_the_most_that_is_alive_at_once():
    given = torch.ones(1000)

    def work() -> None:
        first = given + 1
        second = first * 2
        first.add_(second)
        view = second[:10]
        del first, second
        view.sum()
        torch.empty(1500)

    assert peak_bytes(work) == 4 * 2500  # of the view its whole storage lives on
    assert peak_bytes(lambda: given.add_(1)) == 0


def test_a_text_costs_one_pass_where_one_is_made():
    network = TwoStageConfig(STACK, 1, Continued())
    work = forward_work(network, VOCABULARY, 8)
    assert text_work(network, VOCABULARY, 8, passes=1, anchor_passes=1) == work.forward(8, 8)
    stale = text_work(network, VOCABULARY, 8, passes=4, anchor_passes=1)
    fresh = text_work(network, VOCABULARY, 8, passes=4, anchor_passes=4)
    alone = forward_work(OneStageConfig(STACK), VOCABULARY, 8)
    assert fresh - stale == 3 * 8 * (alone.token + alone.output)


def test_steps_have_names_of_their_own_and_are_those_of_the_find_study_anchoring():
    steps = Efficiency(seeds=2).steps()
    check_steps(steps)
    anchoring = {step.name: step for step in Anchoring(seeds=2, corpora=("kjv",)).steps()}
    assert len(steps) == 8
    for step in steps[:6]:
        assert anchoring[step.name] == step


def test_the_naive_runs_differ_in_nothing_but_the_objective():
    timed = Efficiency()._timed()
    assert list(timed) == [AR, MDLM, ADLM, "ADLM, logits", "ADLM, reference", "ADLM, logits, reference"]
    assert timed["ADLM, reference"].network == timed[ADLM].network
    assert isinstance(timed["ADLM, logits, reference"].network.hand_over, Logits)


def test_runs_of_different_data_are_not_timed_together(tmp_path):
    other = replace(tiny_run(), data=replace(tiny_run().data, source="stories:61"))
    with raises(ConfigError, subject="runs"):
        TimeTraining({"a": tiny_run(), "b": other}).execute(StepContext(tmp_path, "time", tmp_path))


def test_a_tiny_study_goes_from_text_to_report(monkeypatch, tmp_path):
    def tiny(scale: str, corpus: str, kind: str, *, seed: int = 0, steps: int | None = None) -> Any:
        run = tiny_run({"ar-same-parameters": "ar", "mdlm-same-cost": "mdlm"}.get(kind, kind), seed=seed)
        data = replace(run.data, packing=replace(run.data.packing, length=16))
        return replace(run, data=data, train=replace(run.train, steps=4))

    monkeypatch.setattr(settings, "study_run", tiny)
    study = Efficiency(seeds=1, rows=8, rounds=2, sampling_rounds=1, sampling_steps=(4,), texts=2)
    found = run_study(study, tmp_path)
    training, sampling = found[-2].result, found[-1].result
    assert {name: len(each["seconds"]) for name, each in training["models"].items()} == dict.fromkeys(study._timed(), 2)
    fast, reference = training["models"]["ADLM"], training["models"]["ADLM, reference"]
    assert reference["loss"] == pytest.approx(fast["loss"], rel=1e-5)
    assert reference["bytes"] > fast["bytes"]
    assert reference["work"] > fast["work"]
    methods = {(m["model"], m["sampler"], m["steps"], m["stale"], m["reference"]): m for m in sampling["methods"]}
    assert len(methods) == len(sampling["methods"]) == 2 + 3 + 5
    stale, fresh = methods[ADLM, "ancestral", 4, 4, False], methods[ADLM, "ancestral", 4, 1, False]
    assert stale["anchor_calls"] == 1 < fresh["anchor_calls"] == fresh["calls"] <= 4
    assert stale["work"] < fresh["work"] < methods[ADLM, "ancestral", 4, 1, True]["work"]
    assert methods[ADLM, "first hitting", 16, 1, False]["calls"] == 16
    report = study.report(found)
    assert [type(section) for section in report.sections] == [
        ReportTable,
        ReportTable,
        ReportTable,
        Chart,
        Chart,
        ReportTable,
        Chart,
        Chart,
    ]
    assert "A training step of ADLM takes" in report.lead
    assert "Tokens per second, at 4 steps: MDLM, same cost" in report.lead
    assert "For the quality that MDLM has at 4 steps" in report.sections[-1].note
    for section in report.sections:
        if isinstance(section, ReportTable):
            assert all(len(row) == len(section.columns) for row in section.rows)


def test_a_report_of_nothing_asks_the_question():
    report = Efficiency().report([])
    assert (report.lead, report.sections) == (Efficiency.question, [])


def test_tokens_to_a_bound_are_read_off_on_a_logarithmic_scale():
    curve = [[100, 5.0, 0.1], [400, 3.0, 0.1], [1600, 2.5, 0.1]]
    assert reached(curve, 4.0) == pytest.approx(200)
    assert reached(curve, 2.5) == pytest.approx(1600)
    assert reached(curve, 2.0) is None
    assert reached(curve, 6.0) == 100
    assert reached([[0, 9.0, 0.1], *curve], 4.0) == pytest.approx(200)


@given(st.lists(st.floats(0.5, 9), min_size=1, max_size=8), st.floats(0.5, 9))
def test_a_bound_is_reached_within_the_curve_or_not_at_all(nats, target):
    curve = [[100.0 * 2**i, value, 0.0] for i, value in enumerate(nats)]
    found = reached(curve, target)
    assert (found is None) == (min(nats) > target)
    if found is not None:
        assert 100 <= found <= curve[-1][0] * (1 + 1e-9)
        assert math.isfinite(found)


def trained(model: str, seed: int, last: float) -> StepOutcome:
    curve = [[1e6, 6.0, 0.0], [4e6, last, 0.0]]
    result = {"curve": curve, "work": 8e12, "tokens": 4e6, "seconds": 40.0}
    return StepOutcome(f"{model}-{seed}", {"model": model, "seed": seed, "corpus": "kjv"}, result)


def test_equal_quality_is_asked_seed_by_seed_and_not_reached_is_said():
    outcomes = [trained(MDLM, 0, 4.0), trained(MDLM, 1, 5.0), trained(ADLM, 0, 4.5), trained(ADLM, 1, 4.0)]
    needed = needs(outcomes, None)
    assert needed[ADLM][0] is None
    assert needed[ADLM][1] == {
        "tokens": pytest.approx(2e6), "work": pytest.approx(4e12), "seconds": pytest.approx(20),
    }  # fmt: skip
    report = Efficiency(seeds=2).report(outcomes)
    rows = {row[0]: row for row in report.sections[0].rows}
    assert rows[ADLM][1] == "1 of 2"
    assert rows[ADLM][-1].value == pytest.approx(0.5)
    assert rows[MDLM][-1].value == pytest.approx(1)
    assert "With 1 of 2 seeds, ADLM reaches" in report.lead
    assert "after 0.5 of its training time" in report.lead
    never = Efficiency(seeds=1).report([trained(MDLM, 0, 4.0), trained(ADLM, 0, 4.5)])
    assert never.sections[0].rows[1][2:] == ["not reached"] * 4
    assert "does not reach" in never.lead
