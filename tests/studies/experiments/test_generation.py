"""Samplers are compared on the same footing, at a cost that is counted, and the report says no more than seeds do."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adlm.data.config import Corpus
from adlm.errors import OutOfRange, UnknownName
from adlm.models.stack import StackConfig
from adlm.train.run import Run
from adlm_studies.experiments import settings
from adlm_studies.experiments.generation import ORDERS, RULES, SAMPLERS, SHARED, GenerateTexts, Generation
from adlm_studies.experiments.study import StepOutcome, check_steps, run_study
from adlm_studies.report.sections import Chart, ReportTable, Texts
from tests.errors import raises

NANO = settings.nano_run


def hardly_validated(data: Corpus, kind: str) -> Run:
    run = NANO(data, kind)
    return replace(run, validation=replace(run.validation, num_rows=8))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "STACK", StackConfig(width=32, heads=2, layers=1))
    monkeypatch.setattr(settings, "TOKENS", 256)
    monkeypatch.setattr(settings, "nano_run", hardly_validated)
    monkeypatch.setitem(settings.NANO, "stories", replace(settings.NANO["stories"], source="stories:1000"))


def table(found: Any, title: str) -> ReportTable:
    return next(each for each in found.sections if isinstance(each, ReportTable) and each.title == title)


def written(model: str, sampler: str, steps: int | None, seed: int, **figures: float | None) -> StepOutcome:
    named = {"corpus": "stories", "model": model, "sampler": sampler, "steps": steps, "seed": seed}
    result = {"figures": {"calls": float(steps or 64), "tokens_per_second": 100.0, **figures}, "texts": [f"{model}."]}
    return StepOutcome(f"texts/{model}/{sampler}/{steps}/{seed}", named, result)


def trained(model: str, seed: int, nats: float) -> StepOutcome:
    scores = {"stories": {"nats_per_token": {"mean": nats, "error": 0.0, "draws": 0}}}
    return StepOutcome(f"{model}/{seed}", {"corpus": "stories", "model": model, "seed": seed}, {"scores": scores})


@pytest.mark.parametrize("scale", ["nano", "small", "paper"])
def test_steps_have_names_of_their_own_and_come_after_what_they_need(scale: str) -> None:
    check_steps(Generation(scale=scale, seeds=2).steps())


def test_every_sampler_is_tried_and_mdlm_gets_the_shared_ones() -> None:
    steps = Generation(seeds=1).steps()
    by_model = {
        model: {step.labels["sampler"] for step in steps if step.labels["model"] == model and "sampler" in step.labels}
        for model in ("AR", "MDLM", "ADLM")
    }
    assert by_model == {"AR": {"left-to-right"}, "MDLM": set(SHARED), "ADLM": set(SAMPLERS)}


def test_settings_that_repeat_each_other_are_left_out() -> None:
    steps = [step for step in Generation(seeds=1).steps() if step.labels["model"] == "ADLM"]
    numbers = {name: [s.labels["steps"] for s in steps if s.labels.get("sampler") == name] for name in SAMPLERS}
    assert numbers["first-hitting"] == [None]
    assert all(max(numbers[name]) == 64 for name in ORDERS)  # rows of 64: no more than a token a step
    assert all(numbers[name] == [8, 32, 128] for name in RULES)


def test_texts_of_a_model_that_is_trained_otherwise_are_written_again() -> None:
    works = [[step.work for step in Generation(seeds=1, training_steps=n).steps()] for n in (10, 20)]
    assert all(a != b for a, b in zip(*works, strict=True))


def test_wrong_settings_show_before_anything_is_trained() -> None:
    with raises(UnknownName, name="remdm-lop"):
        Generation(samplers=("remdm-lop",))
    with raises(OutOfRange, subject="grid"):
        Generation(grid=(0, 4))


def test_a_named_judge_replaces_the_trained_one() -> None:
    steps = Generation(seeds=1, judge="smollm2").steps()
    assert "judge" not in {step.name for step in steps}
    assert all(step.work.judge == "smollm2" for step in steps if isinstance(step.work, GenerateTexts))


def test_a_small_study_is_carried_out_from_training_to_report(tmp_path: Path, tiny: None) -> None:
    study = Generation(
        seeds=1,
        samplers=("ancestral", "first-hitting", "anchor-first", "agreeing"),
        grid=(2, 4),
        texts=6,
        training_steps=2,
        rows=8,
    )
    found = run_study(study, tmp_path)
    assert len(found) == len(study.steps())
    texts = {outcome.name: outcome.result for outcome in found if "sampler" in outcome.labels}
    assert texts["texts/ADLM/ancestral/4/seed-0"]["figures"]["calls"] == pytest.approx(4)
    assert texts["texts/ADLM/anchor-first/2/seed-0"]["figures"]["calls"] == 2
    assert texts["texts/MDLM/first-hitting/own/seed-0"]["figures"]["calls"] == 64
    assert texts["texts/ADLM/agreeing/4/seed-0"]["figures"]["calls"] <= 4
    real = next(outcome.result["figures"] for outcome in found if outcome.labels.get("model") == "real text")
    assert real["flawless"] == 1
    assert real["mauve"] > 0.5
    assert all(each["figures"]["flawless"] == 0 for each in texts.values())  # after two steps of training

    report = study.report(found)
    json.dumps([vars(section) for section in report.sections], default=vars)
    rows = table(report, "Samplers at 4 steps").rows
    assert [row[:2] for row in rows][:2] == [["real text", ""], ["AR", "left-to-right"]]
    assert {row[1] for row in rows if row[0] == "ADLM"} == set(study.samplers)
    charts = [section for section in report.sections if isinstance(section, Chart)]
    assert {chart.x_label for chart in charts} == {"network calls per text", "tokens per second"}
    assert all(len(chart.series) <= 7 and chart.levels for chart in charts)
    (samples,) = [section for section in report.sections if isinstance(section, Texts)]
    assert {"real text", "AR, left-to-right", "MDLM, ancestral", "ADLM, agreeing"} <= {
        name for name, _ in samples.texts
    }
    assert report.lead.startswith(study.question)


def of_two_models(gaps: tuple[float, ...]) -> list[StepOutcome]:
    """ADLM with more flawless stories than MDLM by these gaps, a seed each."""
    found = []
    for seed, gap in enumerate(gaps):
        found += [trained("MDLM", seed, 1.0 + 0.01 * seed), trained("ADLM", seed, 0.9 + 0.01 * seed)]
        for model, more in (("MDLM", 0.0), ("ADLM", gap)):
            for steps in (8, 32):
                figures = {"flawless": 0.5 + more, "perplexity": 4.0 - more, "mauve": 0.5, "entropy": 3.0}
                found.append(written(model, "ancestral", steps, seed, **figures))
    return found


def test_an_advantage_is_claimed_only_where_seeds_agree() -> None:
    significant = Generation().report(of_two_models((0.20, 0.21, 0.22)))
    assert (
        "ADLM writes better texts than MDLM: fraction of flawless stories differs by 0.210 ± 0.025" in significant.lead
    )
    worse = Generation().report(of_two_models((-0.20, -0.21, -0.22)))
    assert "ADLM writes worse texts" in worse.lead
    for gaps in ((0.3, -0.2, 0.1), (0.2,)):  # seeds that disagree, or a single one
        assert "the texts of ADLM and MDLM do not differ significantly" in Generation().report(of_two_models(gaps)).lead


def test_the_grammar_decides_only_where_it_tells_samplers_apart() -> None:
    nothing = [written("ADLM", "ancestral", 8, 0, flawless=0.0, perplexity=9.0, mauve=0.4)]
    assert "the best MAUVE is that of ADLM, ancestral: 0.4" in Generation().report(nothing).lead


def test_at_equal_cost_dearer_settings_do_not_count() -> None:
    outcomes = [
        written("ADLM", "ancestral", 8, 0, flawless=0.3, perplexity=5.0, mauve=0.5),
        written("ADLM", "ancestral", 32, 0, flawless=0.9, perplexity=2.0, mauve=0.9),
        written("ADLM", "remdm-loop", 8, 0, flawless=0.4, perplexity=6.0, mauve=0.4),
        written("AR", "left-to-right", None, 0, flawless=1.0, perplexity=1.0, mauve=1.0),
    ]
    study = Generation()
    rows = {row[0]: row for row in table(study.report(outcomes), "Best at equal cost").rows}
    assert rows[32][3] == "ADLM, ancestral: 0.9"  # and not AR, whose calls are of another kind
    rows = {
        row[0]: row
        for row in table(
            study.report([each for each in outcomes if each.labels["steps"] != 32]), "Best at equal cost"
        ).rows
    }
    assert rows[8] == [8, "ADLM, ancestral: 5", "ADLM, ancestral: 0.5", "ADLM, remdm-loop: 0.4"]


def test_figures_that_are_missing_leave_a_gap_and_no_error() -> None:
    nothing = written("ADLM", "confidence", 8, 0, flawless=0.0, perplexity=None)
    report = Generation().report([nothing])
    assert table(report, "Samplers at 8 steps").rows[-1][:2] == ["ADLM", "confidence"]
    assert Generation().report([]).sections == []
