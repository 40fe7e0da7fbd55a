"""The study of anchors changes one thing at a time, trains each setting once, and reports what the numbers say."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm.anchors.rules import EveryToken, RareInSequence
from adlm.config import to_json, with_changes
from adlm.data.config import Corpus
from adlm.data.packing import Padded
from adlm.errors import ConfigError, UnknownName
from adlm.models.stack import StackConfig
from adlm.recipes.small import cpu_run
from adlm.train.run import Run
from adlm.train.run_folder import stored_run
from adlm_studies.experiments import settings
from adlm_studies.experiments.anchors import AXES, Anchors, changes, correlation
from adlm_studies.experiments.probing import (
    ContentTokens,
    HighTfIdf,
    RandomTokens,
    RareTokens,
    TrainAndProbe,
    TrainWithRuleFromData,
    marked,
)
from adlm_studies.experiments.study import StepContext, StepOutcome, StudyStep, check_steps, run_study
from adlm_studies.report.sections import Chart, ReportTable
from tests.errors import raises

ROWS = Padded(32, begin=False, crop=True, predict_padding=True)


def tiny_run(kind: str = "adlm", *, seed: int = 0, steps: int | None = None) -> Run:
    data = Corpus("stories:60", "words", ROWS)
    run = cpu_run(f"stories-{kind}", kind, data, StackConfig(16, 2, 2), (2, 1), steps=4, warmup=1, draws=2, rows=4)
    train = replace(run.train, seed=seed, steps=steps or run.train.steps)
    return replace(run, train=train, validation=replace(run.validation, every=2, num_rows=8))


@pytest.fixture
def tiny(monkeypatch):
    """Every run of the settings is a tiny one."""
    monkeypatch.setattr(
        settings, "study_run", lambda scale, corpus, kind, *, seed=0, steps=None: tiny_run(kind, seed=seed, steps=steps)
    )


def test_every_setting_has_a_name_of_its_own_and_differs_from_the_recipe_in_one_thing():
    study = Anchors(seeds=2)
    steps = study.steps()
    check_steps(steps)
    assert len(steps) == 2 * 24
    recipe = to_json(steps[0].work.run)
    for step in steps[1:24]:
        work = step.work.train if isinstance(step.work, TrainWithRuleFromData) else step.work
        run = to_json(work.run)
        parts = {name for name in run if run[name] != recipe[name]} - {"name"}
        counted = isinstance(step.work, TrainWithRuleFromData)
        assert parts == (
            set() if counted else {"network" if step.labels["axis"] in ("depth", "hand-over") else "objective"}
        )


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(("scale", "corpus"), [("nano", "kjv"), ("small", "wikitext2"), ("paper", "openwebtext")])
def test_the_recipes_own_value_is_on_every_axis_once(axis, scale, corpus):
    recipe = settings.study_run(scale, corpus, "adlm")
    values = changes(axis, recipe)
    assert sum(change == recipe for change in values.values()) == 1
    assert len(values) > 1


def test_a_split_of_the_depth_keeps_the_depth():
    recipe = settings.study_run("nano", "kjv", "adlm")
    splits = changes("depth", recipe)
    assert list(splits) == ["1+3", "2+2", "3+1"]
    networks = [run.network for run in splits.values()]
    assert {network.anchor.layers + network.denoiser_layers for network in networks} == {4}


def test_every_axis_gives_a_study_of_its_own_and_others_are_refused():
    assert [step.labels["value"] for step in Anchors(axes=("positions",), seeds=1).steps()] == ["recipe", "all"]
    assert with_changes(Anchors(), ['axes=["gamma"]']).axes == ("gamma",)
    with raises(UnknownName, kind="axis of the study"):
        Anchors(axes=("colour",))
    with raises(UnknownName, kind="corpus at nano scale", name="nothing"):
        Anchors(corpus="nothing").steps()


def test_a_tiny_study_goes_from_text_to_report(tiny, tmp_path):
    output_mask = ["recipe", "rare in the corpus", "1"]

    class Some(Anchors):
        def steps(self) -> list[StudyStep]:
            return [step for step in super().steps() if step.labels["value"] in output_mask]

    some = Some(axes=("rule", "wrong"), seeds=1, training_steps=2, rows=8, probed=8)
    found = run_study(some, tmp_path)
    assert [outcome.labels["value"] for outcome in found] == output_mask
    for outcome in found:
        anchors = outcome.result["anchors"]
        assert 0 <= anchors["anchor stage accuracy"]["mean"] <= 1
        assert anchors["anchor stage nats"]["mean"] > 0
        assert 0 < anchors["fraction"] <= 1
    rule = stored_run(tmp_path / found[1].name)["objective"]["rule"]
    assert rule["kind"] == "RareInCorpus"
    described = (tmp_path / "steps" / f"{found[1].name}.json").read_text()
    assert json.loads(described)["step"]["work"]["rule"] == to_json(RareTokens())
    assert str(tmp_path) not in described
    report = some.report(found)
    assert [type(section) for section in report.sections] == [ReportTable, ReportTable, Chart, Chart]


def made_up(axis: str, value: str, seed: int, nats: float, accuracy: float) -> StepOutcome:
    figure: Mapping[str, Any] = {"mean": accuracy, "error": 0.01}
    result = {
        "scores": {"kjv": {"nats_per_token": {"mean": nats, "error": 0.01, "draws": 8}}},
        "anchors": {"fraction": 0.9, "anchor stage accuracy": figure},
    }
    return StepOutcome(f"{axis}-{value}-{seed}", {"axis": axis, "value": value, "seed": seed}, result)


def test_the_report_compares_by_seed_and_puts_the_papers_figures_beside():
    outcomes = [
        made_up("", "recipe", 0, 4.0, 0.30), made_up("", "recipe", 1, 5.0, 0.30),
        made_up("gamma", "0", 0, 4.1, 0.20), made_up("gamma", "0", 1, 5.1, 0.20),
        made_up("gamma", "0.003", 0, 3.9, 0.31), made_up("gamma", "0.003", 1, 4.9, 0.31),
        made_up("gamma", "1", 0, 4.5, 0.10), made_up("gamma", "1", 1, 5.3, 0.10),
    ]  # fmt: skip
    report = Anchors(axes=("gamma",), seeds=2).report(outcomes)
    table, chart, scatter = report.sections
    rows = {row[0]: row for row in table.rows}
    assert list(rows) == ["0", "0.003", "0.05 (recipe)", "1"]
    against = table.columns.index("nats against the recipe")
    assert rows["0"][against].value == pytest.approx(0.1)
    assert rows["0"][against].high == pytest.approx(0.1)  # the same in both seeds: no spread
    assert rows["0.05 (recipe)"][against] is None
    assert rows["0.003"][-1] == 22.32
    assert rows["0"][-1] is None
    assert chart.x_log
    assert list(chart.series[0].x) == [0.003, 0.05, 1.0]
    assert chart.levels == [("γ = 0", pytest.approx(4.6))]
    assert {series.name for series in scatter.series} == {"recipe", "gamma"}
    assert "1 of 3 changes give a lower bound" in report.lead
    assert "The best is gamma 0.003, at -0.1000" in report.lead
    assert "r = -0.9" in report.lead


def test_a_report_says_what_is_missing_and_what_one_seed_cannot_tell():
    study = Anchors(axes=("wrong",), seeds=1)
    assert "not trained yet" in study.report([]).lead
    recipe = made_up("", "recipe", 0, 4.0, 0.3)
    assert "Only the recipe" in study.report([recipe]).lead
    lead = study.report([recipe, made_up("wrong", "1", 0, 4.2, 0.1)]).lead
    assert "cannot be distinguished from chance" in lead
    assert "always wrong changes the bound by +0.2000 nats" in lead
    assert "too few settings" in lead


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=4, max_size=20))
def test_a_correlation_lies_within_its_interval_and_knows_no_units(points):
    x, y = zip(*points, strict=True)
    r = correlation(x, y)
    if r is not None:
        assert -1 <= r.low <= r.value + 1e-9
        assert r.value - 1e-9 <= r.high <= 1
        scaled = correlation([2 * a for a in x], [-b for b in y])
        assert scaled is not None
        assert scaled.value == pytest.approx(-r.value, abs=1e-6)


def test_a_correlation_has_the_textbooks_value():
    r = correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5])
    assert r is not None
    assert r.value == pytest.approx(0.8)
    assert (r.low, r.high) == (pytest.approx(-0.28, abs=0.01), pytest.approx(0.986, abs=0.01))
    assert correlation([1, 2, 3], [1, 2, 3]) is None
    assert correlation([1, 1, 1, 1], [1, 2, 3, 4]) is None


def test_shares_are_counted_on_the_rows_themselves(tmp_path):
    data = tiny_run().data.prepare(cache=tmp_path)
    tokens, valid = data.train.tokens(np.arange(48)), data.train.valid(np.arange(48))
    once = sum(list(row[counts]).count(token) == 1 for row, counts in zip(tokens, valid, strict=True) for token in row)
    assert marked(RareInSequence(1), data.train, 48) == pytest.approx(once / valid.sum(), abs=1e-4)
    assert marked(EveryToken(), data.train) == 1


def test_rules_that_are_counted_mark_as_many_as_the_recipes(tmp_path):
    data = tiny_run().data.prepare(cache=tmp_path)
    recipe = RareInSequence(1)
    fraction = marked(recipe, data.train)
    assert marked(RandomTokens().make(data, recipe), data.train) == pytest.approx(fraction, abs=0.05)
    assert marked(HighTfIdf(0.5).make(data, recipe), data.train) == pytest.approx(0.5, abs=0.15)  # ties go together
    assert marked(RareTokens(10).make(data, recipe), data.train) < 1
    assert marked(ContentTokens().make(data, recipe), data.train) < marked(EveryToken(), data.train)


def test_a_run_without_anchors_cannot_be_probed(tmp_path):
    work = TrainWithRuleFromData(TrainAndProbe(tiny_run("ar")), RareTokens())
    with raises(ConfigError, subject="objective"):
        work.execute(StepContext(tmp_path, "ar", tmp_path))
