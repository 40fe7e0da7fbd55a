"""The arms of the second study are what the design says, and its report answers by the rules of the design."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from adlm.config import from_json, to_json
from adlm.data.synthetic import Synthetic
from adlm.errors import UnknownName
from adlm.models.hand_over import Hidden, Logits
from adlm.models.network import Vocabulary
from adlm.train.plan import summary
from adlm_studies.experiments.anchoring_2 import PHASES, Anchoring2
from adlm_studies.experiments.anchoring_2_report import answer, base_of, compare, tokens_ratio, trend, verdict
from adlm_studies.experiments.anchoring_arms import (
    ADLM,
    ARMS,
    CORPORA,
    GAMMA_0,
    MAIN,
    MDLM,
    SEARCH,
    SEARCH_SEED,
    TRICKS,
)
from adlm_studies.experiments.paired_rows import TrainBestOfSearch, score_rows
from adlm_studies.experiments.settings import NANO
from adlm_studies.experiments.study import StepContext, StepOutcome, Study, check_steps, run_study
from adlm_studies.report.sections import Chart, Interval, ReportTable
from tests.conftest import TableModel
from tests.errors import raises

MILLION = 1_000_000


all_steps = cache(Anchoring2().steps)


def runs(**labels):
    """The runs of a setting, by model."""
    wanted = {"corpus": "books", "size": "A", "tokens": 5 * MILLION, "seed": 0, **labels}
    return {
        step.labels["model"]: getattr(step.work, "train", step.work).run
        for step in all_steps()
        if not isinstance(step.work, TrainBestOfSearch) and all(step.labels[k] == v for k, v in wanted.items())
    }


@pytest.mark.parametrize("scale", ["nano", "small", "paper"])
def test_every_scale_has_its_steps_and_is_a_value(scale):
    study = Anchoring2(scale=scale)
    check_steps(study.steps())
    assert from_json(Study, to_json(study)) == study  # type: ignore[type-abstract]


def test_every_arm_is_trained_and_compared_with_one_that_is():
    found = {step.labels["model"] for step in all_steps()}
    assert set(ARMS) <= found
    for model in found:
        if "rate x" not in model and "γ = 0." not in model:
            assert base_of(model) in found | {""}
            assert base_of(model) != model
    assert all(base_of(trick) == without for trick, without in TRICKS.items())


def test_runs_go_from_small_to_large_and_end_with_whole_comparisons():
    phases = [(phase.size, phase.tokens // MILLION) for phase in PHASES[:3]]
    assert phases == [("S", 5), ("A", 5), ("A", 20)]
    names = [(step.labels["model"], step.labels["seed"]) for step in all_steps()[:15]]
    assert names == [(model, seed) for seed in range(5) for model in MAIN]


@pytest.mark.parametrize("size", ["S", "A", "B"])
def test_the_main_arms_take_equal_operations_and_read_the_same(size):
    mine = runs(size=size)
    adlm = summary(mine[ADLM])
    assert summary(mine[MDLM]).work == pytest.approx(adlm.work, rel=0.04)
    assert 0.8 * adlm.work < summary(mine[GAMMA_0]).work <= adlm.work
    assert len({mine[name].train for name in MAIN}) == 1
    assert len({mine[name].data for name in MAIN}) == 1
    assert len({mine[name].validation for name in MAIN}) == 1
    assert mine[ADLM].network == mine[GAMMA_0].network
    assert mine[ADLM].network.hand_over == Hidden()
    assert (mine[ADLM].objective.gamma, mine[GAMMA_0].objective.gamma) == (0.05, 0.0)


def test_sizes_are_those_of_the_design():
    sizes = {size: summary(runs(size=size)[ADLM]).parameters.stacks / MILLION for size in "SAB"}
    assert sizes == pytest.approx({"S": 0.36, "A": 1.24, "B": 4.11}, abs=0.005)


def test_arms_in_blocks_take_adlms_operations():
    mine = runs()
    adlm = summary(mine[ADLM]).all_work
    for name, run in mine.items():
        if name.startswith(("blocks", "two towers")):
            assert summary(run).all_work == pytest.approx(adlm, rel=0.01), name
            assert run.network.block_size == (4 if "of 4" in name else 16)
            assert run.train.steps < mine[ADLM].train.steps


def test_tricks_differ_from_their_base_in_the_trick_alone():
    mine = runs()
    own = mine[ADLM]
    assert mine["annealed to zero"].objective == replace(own.objective, zero_at=0.5)
    for most, name in ((1, "once"), (2, "twice")):
        assert mine[f"rare: {name} in its row"].objective.rule.most == most
    longer = mine["rows of 256"], mine["rows of 256, MDLM"]
    assert {run.data.packing.length for run in longer} == {256}
    assert {run.train.tokens_per_step for run in (*longer, own)} == {4096}
    assert mine["ADLM, logits"].network.hand_over == Logits()
    assert mine["ADLM, logits"].objective.gamma == 3e-3


def test_every_searched_arm_has_as_many_settings_and_they_are_tried_with_another_seed():
    assert {len(settings) for settings in SEARCH.values()} == {5}
    for name, settings in SEARCH.items():
        assert ARMS[name] in settings.values()
    tried = [step for step in Anchoring2(phases=("search",)).steps() if step.labels["seed"] == SEARCH_SEED]
    assert len(tried) == 5 * len(SEARCH)


def test_unknown_phases_are_named():
    with raises(UnknownName, kind="phase of the study", name="all"):
        Anchoring2(phases=("all",))


def test_rows_are_spread_over_the_held_out_text_and_their_nats_add_up():
    table = Synthetic(vocabulary=12, length=8, count=100).prepare().train
    model = TableModel(Vocabulary(12, 11), lambda tokens: torch.zeros(*tokens.shape, 12))
    found = score_rows(model, table, 10, 4)
    assert found["rows"] == len(found["row_nats"]) == 10
    assert found["nats_per_token"]["mean"] == pytest.approx(np.log(11), rel=1e-4)
    assert found["row_nats"] == pytest.approx([8 * np.log(11)] * 10, abs=0.01)


def test_the_study_runs_from_training_to_its_report(tmp_path, monkeypatch):
    monkeypatch.setitem(CORPORA, "stories", replace(NANO["stories"], source="stories:200"))
    study = Anchoring2(scale="nano", seeds=1, phases=("main",), training_tokens=8192, rows=8)
    found = run_study(study, tmp_path)
    assert len(found) == len(study.steps()) == 3
    assert all(len(each.result["curve"]) > 1 for each in found)
    report = study.report(found)
    (table,) = [section for section in report.sections if isinstance(section, ReportTable)]
    assert [row[3] for row in table.rows[:3]] == list(MAIN)
    assert [section.title for section in report.sections if isinstance(section, Chart)] == [
        "Difference over tokens",
        "Difference over size",
    ]
    assert "Too few seeds" in report.lead


def test_anchored_masking_is_scored_by_its_own_bound_too(tmp_path, monkeypatch):
    monkeypatch.setitem(CORPORA, "stories", replace(NANO["stories"], source="stories:200"))
    study = Anchoring2(scale="nano", seeds=1, phases=("tricks",), training_tokens=8192, rows=8)
    step = next(step for step in study.steps() if step.labels["model"] == "anchors masked later")
    found = step.work.execute(StepContext(tmp_path, step.name, tmp_path / "data"))
    own, usual = found["own_bound"]["nats_per_token"], found["scores"]["stories:200"]["nats_per_token"]
    assert own["mean"] > 0
    assert own["mean"] != usual["mean"]


def outcome(model, seed, nats, *, size="A", tokens=20 * MILLION, data="key"):
    rows = [8 * nats, 8 * nats + 1, 8 * nats - 1]
    score = {"rows": 3, "data": data, "row_nats": rows, "nats_per_token": {"mean": nats, "error": 0.1, "draws": 8}}
    result = {
        "scores": {"books": score},
        "stack_parameters": {"S": 360_000, "A": 1_240_000, "B": 4_110_000}[size],
        "work": 1e12,
        "curve": [[0, 9.0, 0.1], [tokens // 2, nats + 1, 0.1], [tokens, nats, 0.1]],
    }
    labels = {"corpus": "books", "size": size, "tokens": tokens, "model": model, "seed": seed}
    return StepOutcome(f"{model}/{seed}/{size}/{tokens}", labels, result)


def main_outcomes(stages, loss, **setting):
    """MDLM at 4 nats, γ = 0 `stages` from it, ADLM `loss` from that, with a little noise by seed."""
    found = []
    for seed, noise in enumerate((0.0, 0.002, -0.002, 0.001, -0.001)):
        base = 4 + 0.3 * seed
        values = base, base + stages + noise, base + stages + loss - noise
        found += [outcome(model, seed, nats, **setting) for model, nats in zip(MAIN, values, strict=True)]
    return found


@pytest.mark.parametrize(
    ("stages", "loss", "said"),
    [
        (-0.05, -0.05, "Anchoring helps"),
        (-0.05, 0.0, "The two stages help and the anchor loss adds nothing that matters"),
        (0.0, 0.0, "Anchoring does not help"),
        (0.05, 0.05, "Anchoring does not help"),
        (0.0, -0.01, "Anchoring does not help"),  # a gain too small to matter
    ],
)
def test_the_answer_follows_from_the_differences(stages, loss, said):
    assert answer(main_outcomes(stages, loss)).startswith(said)


def test_differences_are_within_seeds_and_on_the_same_rows_only():
    found = main_outcomes(-0.05, 0.0)
    gap = compare(found, GAMMA_0, MDLM).gap
    assert gap.value == pytest.approx(-0.05)
    assert gap.high - gap.low < 0.01  # though seeds differ by 0.3
    other = [outcome(MDLM, 0, 4.0, data="other"), *(each for each in found if each.labels["model"] != MDLM)]
    assert compare(other, ADLM, MDLM) is None


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.05, -0.03, "yes"),
        (-0.02, -0.01, "yes, but a negligible one"),
        (-0.01, 0.01, "no gain that matters"),
        (0.01, 0.02, "worse"),
        (-0.06, 0.02, "undecided"),
    ],
)
def test_verdicts_are_those_of_the_design(low, high, said):
    assert verdict(Interval((low + high) / 2, low, high, runs=5)) == said
    assert verdict(Interval(low, low, low)) == "one seed"


def test_the_trend_over_sizes_and_budgets_is_told():
    found = [
        *main_outcomes(-0.04, 0.0),
        *main_outcomes(-0.08, 0.0, tokens=5 * MILLION),
        *main_outcomes(-0.04, 0.0, size="S"),
    ]
    plane = trend(found, "books")
    assert plane.slope(1).value == pytest.approx(0.04 / np.log10(4), rel=0.05)
    assert plane.turn(1).value == pytest.approx(80 * MILLION, rel=0.2)
    assert "the sign changes at" in answer(found)
    assert "no change of sign can be located" in answer(found)  # along size
    assert answer([]) == "The main comparison has no finished pair yet."


def test_the_tokens_to_the_same_bound_are_compared_where_both_reach_it():
    def curve(speed):  # a bound that falls by 1 per factor of e in tokens
        return [(0, 9.0, 0.1), *((x, 8 - np.log(x * speed), 0.1) for x in range(1, 11))]

    assert tokens_ratio(curve(1.25), curve(1.0), 7) == pytest.approx(0.8)
    assert tokens_ratio(curve(1.0), curve(1.25), 7) == pytest.approx(1.25)
    assert tokens_ratio(curve(1.0)[:2], curve(1.0), 7) is None
    assert tokens_ratio(curve(100.0), curve(1.0), 7) is None  # one is below from its first point on
