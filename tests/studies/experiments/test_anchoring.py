"""The arms of the comparison are what their names say, and the study runs from training to its report."""

from dataclasses import replace

import pytest

from adlm.config import from_json, to_json
from adlm.errors import UnknownName
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.train.plan import summary
from adlm_studies.experiments import settings
from adlm_studies.experiments.anchoring import ARMS, MAIN, Anchoring
from adlm_studies.experiments.study import StepOutcome, Study, check_steps, run_study
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.report.sections import Chart, Interval, Player, ReportTable, Texts
from tests.errors import raises


def runs_of(study, **labels):
    return {
        step.labels["model"]: step.work.run
        for step in study.steps()
        if isinstance(step.work, TrainAndScore) and all(step.labels[k] == v for k, v in labels.items())
    }


def test_all_that_is_compared_reads_the_same_tokens_in_the_same_order():
    runs = runs_of(Anchoring(corpora=("kjv",)), corpus="kjv", seed=1)
    assert set(runs) == set(ARMS) - {"ADLM, hidden"}  # which is the recipe's own
    (train,) = {replace(run.train, micro_batch_size=1) for run in runs.values()}
    assert train.seed == 1
    assert len({run.data for run in runs.values()}) == 1


@pytest.mark.parametrize("corpus", settings.corpora("nano"))
def test_the_twins_match_in_what_they_are_named_for(corpus):
    runs = runs_of(Anchoring(corpora=(corpus,), seeds=1))
    adlm = summary(runs["ADLM"])
    assert summary(runs["MDLM, same parameters"]).parameters.total == pytest.approx(adlm.parameters.total, rel=0.03)
    cost = runs.get("MDLM, same cost", runs["MDLM, same parameters"])  # one run where it matches in both
    assert summary(cost).work == pytest.approx(adlm.work, rel=0.04)
    a2r = summary(runs["A2R"])
    assert summary(runs["AR"]).parameters.total == pytest.approx(a2r.parameters.total, rel=0.03)
    assert summary(runs.get("AR, same cost", runs["AR"])).work == pytest.approx(a2r.work, rel=0.05)
    assert runs["AR"].network.stack.causal
    assert runs["AR"].network.stack.input_reinjection == 0


def test_hand_overs_differ_from_the_recipe_in_nothing_else():
    runs = runs_of(Anchoring(corpora=("kjv",), seeds=1))
    own = runs["ADLM"]
    hand_overs = [run for name, run in runs.items() if name.startswith("ADLM, ") and name != "ADLM, γ = 0"]
    assert len(hand_overs) == 3
    for run in hand_overs:
        assert isinstance(own.network, TwoStageConfig)
        assert run.network == replace(own.network, hand_over=run.network.hand_over)
        assert run.objective == own.objective


def test_reading_once_is_all_that_a_control_changes():
    runs = runs_of(Anchoring(corpora=("kjv",), seeds=1))
    matched_baseline, control = runs["MDLM, same cost"], runs["MDLM, same cost, tokens read once"]
    assert matched_baseline.network.stack.input_reinjection == 3
    assert control.network == replace(
        matched_baseline.network, stack=replace(matched_baseline.network.stack, input_reinjection=0)
    )
    assert "MDLM, same cost, tokens read once" not in runs_of(Anchoring(scale="paper", seeds=1))  # published: always


@pytest.mark.parametrize("scale", ["nano", "small", "paper"])
def test_every_scale_has_its_steps_and_is_a_value(scale):
    study = Anchoring(scale=scale, seeds=2)
    check_steps(study.steps())
    assert from_json(Study, to_json(study)) == study  # type: ignore[type-abstract]
    corpora = settings.corpora(scale)
    for corpus in corpora[1:]:
        assert set(runs_of(study, corpus=corpus)) <= set(MAIN)


def test_the_study_runs_from_training_to_its_report(tmp_path, monkeypatch):
    monkeypatch.setitem(settings.NANO, "stories", replace(settings.NANO["stories"], source="stories:200"))
    monkeypatch.setattr(settings, "STACK", StackConfig(width=16, heads=2))
    monkeypatch.setattr(settings, "TOKENS", 256)
    study = Anchoring(seeds=2, corpora=("stories",), arms=("AR", "MDLM, same cost", "ADLM"), training_steps=2, rows=8)
    found = run_study(study, tmp_path)
    assert len(found) == 7
    report = study.report(found)
    (table,) = [section for section in report.sections if isinstance(section, ReportTable)]
    assert [row[0] for row in table.rows] == ["AR", "MDLM, same cost", "ADLM"]
    nats = [row[3] for row in table.rows]
    assert [cell.bound for cell in nats] == [False, True, True]
    assert all(isinstance(cell, Interval) and cell.runs == 2 for cell in nats)
    difference = table.rows[2][5]
    assert difference.value == pytest.approx(nats[2].value - nats[1].value)
    assert [type(section) for section in report.sections] == [ReportTable, Chart, Player, Texts]
    assert run_study(study, tmp_path) == found


def outcomes_of(nats):
    """Runs that ended with these nats, by model and seed."""

    def outcome(model, seed, nats):
        score = {"nats_per_token": {"mean": nats, "error": 0.1, "draws": 0 if model == "AR" else 8}}
        result = {"scores": {"x": score}, "parameters": 1, "work": 1, "curve": [[1, nats, 0.1]]}
        return StepOutcome(model, {"corpus": "x", "model": model, "seed": seed}, result)

    return [outcome(model, seed, value) for model, values in nats.items() for seed, value in enumerate(values)]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((2.0, 3.5, 2.5), "significantly lower on none, significantly higher on none of 1"),
        ((2.5, 3.51, 2.49), "significantly lower on 1, significantly higher on none of 1"),
        ((3.5, 4.51, 3.49), "significantly lower on none, significantly higher on 1 of 1"),
    ],
)
def test_the_lead_says_only_what_seeds_tell(ours, said):
    report = Anchoring().report(outcomes_of({"MDLM, same cost": (3.0, 4.0, 3.0), "ADLM": ours}))
    assert said in report.lead


def test_without_the_twin_the_lead_is_the_question():
    assert Anchoring().report(outcomes_of({"ADLM": (2.0,)})).lead == Anchoring.question


def test_the_gap_to_ar_is_counted_by_seed():
    found = outcomes_of({"AR": (1.0, 2.0), "MDLM, same cost": (3.0, 4.0), "ADLM": (2.0, 3.5)})
    table = next(section for section in Anchoring().report(found).sections if isinstance(section, ReportTable))
    closed = {row[0]: row[6] for row in table.rows}
    assert closed["ADLM"].value == pytest.approx(37.5)  # the mean of 50 and 25 %
    assert closed["MDLM, same cost"].value == 0
    assert closed["AR"].value == 100


def test_an_arm_that_is_not_in_the_study_is_named():
    with raises(UnknownName, kind="arm of the study", name="mdlm-same-cost"):
        Anchoring(arms=("mdlm-same-cost",))
