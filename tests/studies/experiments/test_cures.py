"""Every arm is the MDLM with one thing changed, reads as many tokens, and is compared within seeds."""

from dataclasses import replace

import pytest

from adlm.config import from_json, to_json
from adlm.errors import UnknownName
from adlm.models.stack import StackConfig
from adlm.objectives.nelbo import Nelbo
from adlm_studies.experiments import settings
from adlm_studies.experiments.cures import ARMS, Cures
from adlm_studies.experiments.study import StepOutcome, Study, check_steps, run_study
from adlm_studies.report.sections import Interval, ReportTable
from tests.errors import raises


def runs_of(study):
    return {step.labels["model"]: step.work.run for step in study.steps()}


def test_arms_read_as_many_tokens_and_differ_from_mdlm_in_one_thing():
    runs = runs_of(Cures(seeds=1, corpora=("stories",), training_steps=7))
    assert set(runs) == set(ARMS)
    base = runs["MDLM"]
    tokens = base.train.tokens_per_step
    for name, run in runs.items():
        assert run.train.steps == 7
        assert run.train.tokens_per_step * run.objective.corruption.copies == tokens
        assert type(run.objective) is Nelbo
        changed = {
            "objective": run.objective != base.objective,
            "network": run.network != base.network,
            "optimizer": run.train.optimizer != base.train.optimizer,
        }
        expected = {"objective", "network"} if "shifted" in name else {"optimizer"} if "rate" in name else {"objective"}
        assert {part for part, differs in changed.items() if differs} == (set() if name == "MDLM" else expected)
        train = replace(base.train, tokens_per_step=run.train.tokens_per_step, optimizer=run.train.optimizer)
        assert run.train == train


def test_the_base_is_always_trained_and_unknown_arms_are_refused():
    study = Cures(seeds=2, corpora=("kjv",), arms=("bell",))
    assert [step.labels["model"] for step in study.steps()] == ["MDLM", "bell"] * 2
    with raises(UnknownName):
        Cures(arms=("prayer",))


def test_the_study_is_a_value():
    study = Cures(seeds=1)
    check_steps(study.steps())
    assert from_json(Study, to_json(study)) == study  # type: ignore[type-abstract]


@pytest.mark.slow
def test_the_study_runs_from_training_to_its_report(tmp_path, monkeypatch):
    monkeypatch.setitem(settings.NANO, "stories", replace(settings.NANO["stories"], source="stories:200"))
    monkeypatch.setattr(settings, "STACK", StackConfig(width=16, heads=2))
    monkeypatch.setattr(settings, "TOKENS", 256)
    some = ("bell", "mirror masks", "half by confidence", "shifted, half AR")
    study = Cures(seeds=1, corpora=("stories",), training_steps=2, rows=4, arms=some)
    found = run_study(study, tmp_path)
    (table,) = study.report(found).sections
    assert isinstance(table, ReportTable)
    assert [row[0] for row in table.rows] == ["MDLM", *some]
    assert all(isinstance(row[4], Interval) and row[4].bound for row in table.rows)


def outcomes_of(nats):
    def outcome(model, seed, nats):
        score = {"nats_per_token": {"mean": nats, "error": 0.1, "draws": 8}}
        result = {"scores": {"x": score}, "work": 1, "tokens": 1e6 if model == "mirror masks" else 2e6}
        return StepOutcome(f"{model}-{seed}", {"corpus": "x", "model": model, "seed": seed}, result)

    return [outcome(model, seed, value) for model, values in nats.items() for seed, value in enumerate(values)]


def test_differences_are_within_seeds_and_only_sure_ones_are_told():
    found = outcomes_of({"MDLM": (3.0, 4.0, 5.0), "bell": (2.0, 3.01, 4.02), "mirror masks": (3.1, 3.8, 5.2)})
    report = Cures().report(found)
    (table,) = report.sections
    differences = {row[0]: row[-1] for row in table.rows}
    assert differences["MDLM"] is None
    assert differences["bell"].value == pytest.approx(-0.99)
    assert differences["mirror masks"].value == pytest.approx(0.1 / 3)
    assert f"bell ({differences['bell']})" in report.lead
    assert "mirror" not in report.lead
    assert "2.00 M" in table.note  # both copies of a row are read: all arms read as much


def test_seeds_that_are_not_finished_are_left_out_of_the_pairs():
    (table,) = Cures().report(outcomes_of({"MDLM": (3.0, 4.0), "bell": (2.5,)})).sections
    bell = table.rows[1]
    assert bell[2] == 1
    assert bell[-1].value == pytest.approx(-0.5)
    assert bell[-1].runs == 1


def test_one_seed_tells_nothing():
    lead = Cures().report(outcomes_of({"MDLM": (3.0,), "bell": (2.5,)})).lead
    assert "one seed" in lead
    assert "significantly" not in lead
