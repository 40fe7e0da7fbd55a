"""Every arm of the study has the same compute, starts from what its name says, and reaches the report."""

from dataclasses import replace

import pytest

from adlm.config import from_json, to_json
from adlm.diffusion.blocks import BlockMasking
from adlm.errors import OutOfRange, UnknownName
from adlm.models.stack import StackConfig
from adlm.objectives.nelbo import Anelbo
from adlm.train.plan import summary
from adlm_studies.experiments import settings
from adlm_studies.experiments.blocks import ARMS, BlockSizes, TrainFromLeftToRight
from adlm_studies.experiments.study import StepOutcome, Study, check_steps, run_study
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.report.sections import Chart, Interval, ReportTable
from tests.errors import raises

SOME = (
    *("AR", "MDLM", "b = 4", "b = 4, anchored", "b = 4, from AR", "b = 4, anchored, from AR"),
    "b = 4, a layer more, anchored, from AR",
)


def works_of(study):
    """By arm; the left-to-right models that others start from are left out."""
    return {
        step.labels["model"]: step.work
        for step in study.steps()
        if isinstance(step.work, TrainAndScore) and step.labels["model"] in ARMS
    }


def test_all_arms_have_the_same_compute_their_left_to_right_start_included():
    works = works_of(BlockSizes(seeds=1))
    assert set(works) == set(ARMS)
    budget = summary(works["MDLM"].run).all_work
    for name, work in works.items():
        spent = summary(work.run).all_work
        if isinstance(work, TrainFromLeftToRight):
            assert ", from AR" in name
            spent += summary(work.source).all_work
        assert spent == pytest.approx(budget, rel=0.01), name


def test_two_copies_are_paid_for_in_steps():
    works = works_of(BlockSizes(seeds=1))
    assert works["b = 4"].run.train.steps < 0.6 * works["MDLM"].run.train.steps


def test_arms_of_one_stage_have_the_same_layers_and_anchors_have_their_loss():
    works = works_of(BlockSizes(seeds=1))
    shapes = {
        (work.run.network.layers, work.run.network.width) for work in works.values() if work.run.network.stages == 1
    }
    assert len(shapes) == 1
    for name, work in works.items():
        objective = work.run.objective
        assert (isinstance(objective, Anelbo) and objective.gamma > 0) == ("anchored" in name or name == "ADLM")
        if name.startswith("b = "):
            assert work.run.objective.corruption == BlockMasking((work.run.network.block_size,))
            assert name.startswith(f"b = {work.run.network.block_size}")


def test_what_is_decisive_is_trained_first_with_all_its_seeds():
    models = [step.labels["model"] for step in BlockSizes(seeds=3).steps()]
    assert models[:6] == ["AR"] * 3 + ["MDLM"] * 3
    assert models.index("b = 16, anchored, from AR") < models.index("ADLM")
    assert set(models) == {*ARMS, "start-ar"}


def test_a_start_is_trained_once_for_all_sizes_and_comes_before_what_needs_it():
    study = BlockSizes(seeds=2)
    steps = study.steps()
    check_steps(steps)
    assert sum(step.name.startswith("start-") for step in steps) == 2
    for step in steps:
        if isinstance(step.work, TrainFromLeftToRight):
            assert step.needs == (step.work.start,)


@pytest.mark.parametrize("scale", ["nano", "small"])
def test_the_study_is_a_value_at_every_scale_it_has(scale):
    study = BlockSizes(scale=scale, corpus="wikitext2", seeds=1, arms=("AR", "MDLM", "b = 4, from AR"))
    check_steps(study.steps())
    assert from_json(Study, to_json(study)) == study  # type: ignore[type-abstract]


def test_rows_per_step_change_the_batch_of_every_arm_and_no_arm_loses_its_share_of_compute():
    works = works_of(BlockSizes(seeds=1, rows_per_step=16, training_steps=100))
    assert {work.run.train.tokens_per_step for work in works.values()} == {16 * 64}
    assert works["MDLM"].run.train.steps == 100


@pytest.mark.slow
def test_the_study_runs_from_training_to_its_report(tmp_path, monkeypatch):
    monkeypatch.setitem(settings.NANO, "stories", replace(settings.NANO["stories"], source="stories:200"))
    monkeypatch.setattr(settings, "STACK", StackConfig(width=16, heads=2))
    monkeypatch.setattr(settings, "TOKENS", 256)
    study = BlockSizes(seeds=2, corpus="stories", arms=SOME, training_steps=4, rows=4)
    found = run_study(study, tmp_path)
    assert len(found) == 2 * (len(SOME) + 1)
    report = study.report(found)
    bounds = next(section for section in report.sections if isinstance(section, ReportTable))
    nats = {row[0]: row[4] for row in bounds.rows}
    assert set(nats) == {*SOME, "start-ar"}
    assert {name for name, cell in nats.items() if not cell.bound} == {"AR", "start-ar"}
    assert all(isinstance(cell, Interval) and cell.runs == 2 for cell in nats.values())


def outcomes_of(nats):
    def outcome(model, seed, nats):
        score = {"nats_per_token": {"mean": nats, "error": 0.1, "draws": 8}}
        result = {"scores": {"x": score}, "parameters": 1, "work": 1, "tokens": 1}
        return StepOutcome(f"{model}-{seed}", {"model": model, "seed": seed}, result)

    return [outcome(model, seed, value) for model, values in nats.items() for seed, value in enumerate(values)]


def test_the_gap_is_counted_by_seed_and_told_in_the_lead():
    found = outcomes_of({"AR": (1.0, 2.0), "MDLM": (3.0, 4.0), "b = 4": (2.0, 3.5)})
    report = BlockSizes().report(found)
    (table,) = report.sections
    closed = {row[0]: row[-1] for row in table.rows}
    assert closed["b = 4"].value == pytest.approx(37.5)  # the mean of 50 and 25 %
    assert str(closed["b = 4"]) in report.lead


def test_several_sizes_are_drawn_over_their_size_beside_ar_and_mdlm():
    found = outcomes_of({"AR": (1.0,), "MDLM": (3.0,), "b = 4": (2.0,), "b = 16": (2.5,), "b = 4, from AR": (1.5,)})
    (chart,) = [section for section in BlockSizes().report(found).sections if isinstance(section, Chart)]
    assert [(each.name, list(each.x)) for each in chart.series] == [("from AR", [4]), ("from scratch", [4, 16])]
    assert dict(chart.levels) == {"AR": 1.0, "MDLM": 3.0}


def test_without_runs_the_lead_is_the_question():
    assert BlockSizes().report([]).lead == BlockSizes.question


def test_what_the_study_has_not_is_named():
    with raises(UnknownName, kind="arm of the study", name="b = 5"):
        BlockSizes(arms=("b = 5",))
    with raises(UnknownName, kind="scale", name="paper"):
        BlockSizes(scale="paper")
    with raises(OutOfRange, subject="ar_fraction"):
        BlockSizes(ar_fraction=1.0)
    with raises(OutOfRange, subject="rows_per_step"):
        BlockSizes(rows_per_step=-1)
