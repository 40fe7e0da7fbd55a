"""Domains are compared in one measure, and those that are not there are named."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from adlm.data.catalog import open_source
from adlm.data.config import Corpus
from adlm.data.stories import Stories
from adlm.errors import ConfigError
from adlm.evaluate.documents import packed_rows
from adlm.evaluate.likelihoods import score_items
from adlm.models.stack import StackConfig
from adlm.objectives.bound import clean_objective
from adlm.text_model import load
from adlm.train.plan import summary
from adlm.train.run import Run
from adlm_studies.experiments import settings
from adlm_studies.experiments.domains import MODELS, Domains, TrainWithSharedTokenizer
from adlm_studies.experiments.study import StepOutcome, check_steps, run_study
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.report.sections import Chart, Interval, ReportPage, ReportTable
from tests.errors import raises

TWO = ("openwebtext", "arxiv")


NANO = settings.nano_run


def hardly_validated(data: Corpus, kind: str) -> Run:
    run = NANO(data, kind)
    return replace(run, validation=replace(run.validation, num_rows=8))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of two corpora, and a small network."""
    texts = [" ".join(Stories().story("train", 20 * n + i) for i in range(20)) for n in range(40)]
    for name, field, write in (("openwebtext", "text", str), ("arxiv", "article", str.upper)):
        file = tmp_path / "kept" / name / "part.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("".join(json.dumps({field: write(text)}) + "\n" for text in texts))
    monkeypatch.setenv("ADLM_DATA", str(tmp_path / "kept"))
    monkeypatch.setattr(settings, "STACK", StackConfig(width=32, heads=2, layers=1))
    monkeypatch.setattr(settings, "TOKENS", 256)
    monkeypatch.setattr(settings, "nano_run", hardly_validated)
    return tmp_path / "kept"


def table(report: ReportPage, title: str) -> ReportTable:
    return next(each for each in report.sections if isinstance(each, ReportTable) and each.title == title)


def outcomes(gains: dict[str, float], *, seeds: int = 3, left_out: tuple[str, ...] = ()) -> list[StepOutcome]:
    """Every byte a token; MDLM takes 2 bits at home and 3 away, AR less, and ADLM less by a domain's gain."""
    shared = {"bytes_per_token": dict.fromkeys(gains, 1.0), "left_out": list(left_out)}
    found = [StepOutcome("tokenizer", {}, shared)]
    for seed in range(seeds):
        for home in gains:
            for model in MODELS:
                scores = {}
                for name in (home, *(each for each in gains if each != home)):
                    bits = (2.0 if name == home else 3.0) + 0.01 * seed * (1 + 0.1 * (model == "ADLM"))
                    bits -= {"AR": 0.5, "MDLM": 0.0, "ADLM": gains[name]}[model]
                    scores[name] = {"nats_per_token": {"mean": bits * math.log(2), "error": 0.0, "draws": 4}}
                labels = {"corpus": home, "model": model, "seed": seed}
                found.append(StepOutcome(f"{home}/{model}/seed-{seed}", labels, {"scores": scores}))
    return found


def test_steps_have_names_of_their_own_and_come_after_what_they_need(kept: Path) -> None:
    steps = Domains(seeds=2, domains=TWO).steps()
    check_steps(steps)
    assert len(steps) == 1 + 2 * 2 * len(MODELS)


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_larger_scales_take_what_the_hub_has(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADLM_DATA", raising=False)
    steps = Domains(scale=scale, seeds=1, domains=("openwebtext", "pubmed")).steps()
    check_steps(steps)
    assert {step.labels.get("corpus") for step in steps} == {None, "openwebtext", "pubmed"}


def test_models_of_a_domain_cost_the_same(kept: Path) -> None:
    works = [step.work for step in Domains(seeds=1, domains=TWO).steps()[1:4]]
    # A left-to-right model takes the loss everywhere, which is a little more.
    costs = [summary(work.run).work for work in works if isinstance(work, TrainAndScore)]
    assert len(costs) == 3
    assert max(costs) / min(costs) < 1.25


def test_a_domain_without_files_is_left_out_and_named(kept: Path) -> None:
    steps = Domains(seeds=1, domains=(*TWO, "pubmed")).steps()
    assert {step.labels["corpus"] for step in steps[1:]} == set(TWO)
    assert steps == Domains(seeds=1, domains=(*TWO, "pubmed")).steps()
    assert steps[0].work.left_out == ("pubmed, biomedical: no files in the folder pubmed of $ADLM_DATA",)
    report = Domains().report(outcomes({"kjv": 0.1, "pycode": 0.1}, left_out=steps[0].work.left_out))
    assert "Left out: pubmed, biomedical" in report.lead


def test_damaged_files_leave_a_domain_out(kept: Path) -> None:
    (kept / "pubmed").mkdir()
    (kept / "pubmed" / "train.jsonl").write_text("{no json")
    assert "pubmed" in Domains(seeds=1, domains=(*TWO, "pubmed")).steps()[0].work.left_out[0]


def test_other_domains_are_another_tokenizer_and_other_models(kept: Path) -> None:
    (kept / "pubmed").mkdir()
    (kept / "pubmed" / "part.jsonl").write_text((kept / "arxiv" / "part.jsonl").read_text())
    two, three = Domains(seeds=1, domains=TWO).steps(), Domains(seeds=1, domains=(*TWO, "pubmed")).steps()
    assert two[0].name != three[0].name
    assert two[1].name == three[1].name
    assert two[1].work != three[1].work


def test_a_single_domain_is_refused(kept: Path) -> None:
    with raises(ConfigError, subject="domains"):
        Domains(domains=("arxiv", "pubmed")).steps()


def test_a_small_study_gives_the_bits_per_byte_of_every_model_everywhere(kept: Path, tmp_path: Path) -> None:
    study = Domains(seeds=1, domains=TWO, training_steps=2, rows=8, draws=2)
    root = tmp_path / "study"
    found = run_study(study, root)
    assert len(found) == len(study.steps()) == 7
    report = study.report(found)
    assert [section.title for section in report.sections if isinstance(section, ReportTable)] == [
        "How much worse on other domains",
        *(f"{model}, trained on one and tested on all" for model in MODELS),
        "The effect of anchoring",
    ]
    for model in MODELS:
        trained = load(root / "openwebtext" / model.lower() / "seed-0")
        rows = packed_rows(open_source("arxiv"), "test", trained.tokenizer, trained.config.packing, limit=8)
        exact = score_items(trained.network, rows, clean_objective(trained.network), draws=2).figures()["bits_per_byte"]
        shown = table(report, f"{model}, trained on one and tested on all").rows[0][2]
        assert isinstance(shown, Interval)
        assert shown.value == pytest.approx(exact.value, rel=1e-5)
    assert isinstance(study.steps()[1].work, TrainWithSharedTokenizer)


def test_away_from_home_is_measured_against_the_model_that_is_at_home_there() -> None:
    report = Domains().report(outcomes({"kjv": 0.0, "pycode": 0.0}, seeds=1))
    row = table(report, "How much worse on other domains").rows[-1]
    assert row[0] == "all"
    assert [str(cell) for cell in row[1:4]] == ["1.667", "1.5", "1.5"]


def test_a_gain_on_code_is_called_different_only_where_seeds_agree() -> None:
    different = Domains().report(outcomes({"kjv": 0.0, "arxiv": 0.0, "pycode": 0.2}))
    assert "on the other domains: a significant difference." in different.lead
    worth = {row[0]: row for row in table(different, "The effect of anchoring").rows}
    assert worth["code"][3].value == pytest.approx(-0.199)
    assert "no significant difference" in Domains().report(outcomes({"kjv": 0.1, "pycode": 0.1})).lead
    assert "no significant difference" in Domains().report(outcomes({"kjv": 0.0, "pycode": 0.2}, seeds=1)).lead


def test_the_chart_has_a_point_for_every_pair_of_domains() -> None:
    report = Domains().report(outcomes({"kjv": 0.1, "arxiv": 0.0, "pycode": 0.2}))
    (chart,) = [section for section in report.sections if isinstance(section, Chart)]
    assert [len(series.x) for series in chart.series] == [3, 6]
    assert chart.series[0].labels == ["prose", "scientific", "code"]


def test_what_is_done_so_far_can_be_reported() -> None:
    every = outcomes({"kjv": 0.1, "arxiv": 0.0, "pycode": 0.2}, seeds=2)
    for count in range(len(every)):
        Domains().report(every[:count])
    assert Domains().report([]).sections == []
