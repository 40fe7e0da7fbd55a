import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.data.anchored_process import AnchoredProcess, spread
from adlm.data.synthetic import Synthetic
from adlm.errors import ConfigError, UnknownName
from adlm.models.costs import training_work
from adlm.train.plan import summary
from adlm.train.workload import known_vocabulary
from adlm_studies.experiments.counting import ANCHORED, ANY_ORDER, CHAIN, anchored_excess, chain_excess
from adlm_studies.experiments.rows_needed import crossing, curves_of, lead, sections
from adlm_studies.experiments.sample_complexity import SIZES, SampleComplexity, TrainOnProcess
from adlm_studies.experiments.study import SCALES, StepContext, StepOutcome, check_steps, run_study
from adlm_studies.report.sections import Chart, Interval, ReportTable
from tests.errors import raises

PROCESS = AnchoredProcess(values=3, length=4, anchors=(1, 2), concentration=0.5, count=40)


def all_rows(process):
    return list(itertools.product(range(process.values), repeat=process.length))


def smoothed(rows, given_positions, place, row, values):
    """(count + 1) / (sum + K), by going through the rows."""
    alike = [other for other in rows if all(other[i] == row[i] for i in given_positions)]
    return (sum(other[place] == row[place] for other in alike) + 1) / (len(alike) + values)


def brute_excess(process, rows, contexts):
    """Expected -log of the product of smoothed conditionals over every row there can be; contexts by place."""
    law, total = process.exact(), 0.0
    for row in all_rows(process):
        probability = math.exp(-law.nats(np.array([row]))[0])
        nats = -sum(math.log(smoothed(rows, before, place, row, process.values)) for place, before in contexts.items())
        total += probability * nats
    return total - law.entropy


@settings(deadline=None, max_examples=8)
@given(st.permutations(range(4)), st.integers(1, 40))
def test_tables_with_full_context_cost_what_going_through_all_rows_says(order, count):
    rows = PROCESS.rows("train").values(np.arange(count))
    contexts = {place: order[:step] for step, place in enumerate(order)}
    assert chain_excess(PROCESS.exact(), rows, order) == pytest.approx(brute_excess(PROCESS, rows.tolist(), contexts))


@pytest.mark.parametrize("count", [1, 5, 40])
def test_anchored_tables_cost_what_going_through_all_rows_says(count):
    rows = PROCESS.rows("train").values(np.arange(count))
    contexts = {1: [], 2: [1], 0: [1, 2], 3: [1, 2]}
    found = anchored_excess(PROCESS.exact(), rows, PROCESS.anchors)
    assert found == pytest.approx(brute_excess(PROCESS, rows.tolist(), contexts))


def test_a_dlm_of_tables_is_the_mean_over_orders():
    """Against its bound: the mean over mask counts k and sets of k positions, weighted L / k as in the bound."""
    rows = PROCESS.rows("train").values(np.arange(30)).tolist()
    orders = list(itertools.permutations(range(4)))
    mean = sum(chain_excess(PROCESS.exact(), np.array(rows), order) for order in orders) / len(orders)
    bound = 0.0
    for k in range(1, 5):
        hidden = list(itertools.combinations(range(4), k))
        for masked in hidden:
            visible = [place for place in range(4) if place not in masked]
            contexts = dict.fromkeys(masked, visible)
            bound += (brute_excess(PROCESS, rows, contexts) + PROCESS.exact().entropy) / k / len(hidden)
    assert mean == pytest.approx(bound - PROCESS.exact().entropy)


def test_anchored_tables_need_more_rows_with_each_anchor_by_a_factor_near_the_number_of_values():
    counts, needed = [2**i for i in range(2, 14)], []
    for d in (1, 2, 3):
        process = AnchoredProcess(4, 12, spread(d, 12), count=counts[-1])
        law, rows = process.exact(), process.rows("train").values(np.arange(counts[-1]))
        excess = [anchored_excess(law, rows[:count], process.anchors) for count in counts]
        needed.append(crossing(counts, excess, law.entropy / 5))
    assert 2.5 < (needed[2] / needed[0]) ** 0.5 < 6


def test_rows_needed_lie_where_the_line_of_logarithms_crosses_the_level():
    counts = [10, 100, 1000]
    assert crossing(counts, [1.0, 0.1, 0.01], 0.1 * 10**0.5) == pytest.approx(10 * 10**0.5)
    assert crossing(counts, [1.0, 0.1, 0.4], 0.5) < 100
    assert crossing(counts, [0.4, 0.6, 0.3], 0.5) > 100  # from there on, not the first time
    assert crossing(counts, [0.4, 0.3, 0.2], 0.5) == 0
    assert crossing(counts, [0.9, 0.8, 0.7], 0.5) == math.inf


@pytest.mark.parametrize("scale", SCALES)
def test_steps_have_names_of_their_own_and_networks_the_same_rows(scale):
    study = SampleComplexity(scale=scale, seeds=2)
    steps, size = study.steps(), SIZES[scale]
    check_steps(steps)
    networks = [step for step in steps if isinstance(step.work, TrainOnProcess)]
    assert len(networks) == 2 * len(size.anchors) * len(size.counts) * len(size.arms)
    for step in networks:
        process = step.work.run.data
        assert len(process.anchors) == step.labels["anchors"]
        assert process.count == step.labels["rows"]
        assert (process.law, process.seed) == (step.labels["seed"],) * 2


@pytest.mark.parametrize("scale", SCALES)
def test_all_models_of_a_scale_cost_nearly_the_same(scale):
    steps = SampleComplexity(scale=scale, seeds=1, anchors=(3,), counts=(512,)).steps()
    runs = [step.work.run for step in steps if isinstance(step.work, TrainOnProcess)]
    options = {"length": SIZES[scale].length, "rows": 32, "scored": 1.0}
    works = [training_work(run.network, known_vocabulary(run.data), **options) for run in runs]
    assert max(works) / min(works) < 1.03
    parameters = [summary(run).parameters.total for run in runs]
    assert max(parameters) / min(parameters) < 1.03


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    sizes = {"anchors": (1,), "counts": (8, 64), "tables": (4, 16, 64), "training_steps": 4}
    study = SampleComplexity(seeds=1, arms=("ADLM",), **sizes)
    root = tmp_path_factory.mktemp("study")
    return study, run_study(study, root), root


def test_a_tiny_study_runs_to_its_end_and_leaves_no_models(tiny):
    study, outcomes, root = tiny
    assert [outcome.labels["model"] for outcome in outcomes] == ["tables", "ADLM", "ADLM"]
    for outcome in outcomes:
        assert outcome.result["entropy"] > 0
        assert outcome.result["dependence"] > 0
    assert not [path for path in (root / "models").rglob("*") if path.is_file()]
    assert run_study(study, root) == outcomes


def test_the_report_has_a_chart_for_each_size_and_the_rows_needed(tiny):
    study, outcomes, _ = tiny
    report = study.report(outcomes)
    charts = [section for section in report.sections if isinstance(section, Chart)]
    tables = [section for section in report.sections if isinstance(section, ReportTable)]
    assert [chart.title for chart in charts] == [
        "1 anchor: excess against training rows",
        "Rows needed against the size of the anchor set",
    ]
    assert [series.name for series in charts[0].series] == ["ADLM", CHAIN, ANY_ORDER, ANCHORED]
    assert all(y > 0 for series in charts[0].series for y in (*series.y, *series.low))
    assert [table.title for table in tables] == ["Rows needed", "How far from the entropy"]
    assert tables[0].rows[0][1] == "> 64"  # four steps teach nothing
    assert isinstance(tables[0].rows[-1][1], Interval)


def test_a_report_of_nothing_asks_the_question():
    report = SampleComplexity().report([])
    assert report.lead == SampleComplexity.question
    assert not report.sections


def outcomes_with(needed):
    """Networks whose excess falls as 1 / rows and is a fifth of the entropy at `needed(model, d, seed)` rows."""
    return [
        StepOutcome(
            f"{model} {d} {seed} {rows}",
            {"model": model, "anchors": d, "seed": seed, "rows": rows},
            {"excess": 2 * needed(model, d, seed) / rows, "entropy": 10.0, "dependence": 8.0},
        )
        for model in ("AR", "MDLM", "ADLM")
        for d in (1, 2)
        for seed in (0, 1, 2)
        for rows in (10, 100, 1000, 10_000)
    ]


def test_growth_and_ratios_are_those_of_the_curves():
    def needed(model, d, seed):
        growth = (5.2, 5.0, 5.0 / 1.04)[seed]
        return {"AR": 30, "MDLM": 40, "ADLM": (19, 20, 400 / 19)[seed]}[model] * growth**d

    curves = curves_of(outcomes_with(needed))
    table = next(each for each in sections(curves, 5) if isinstance(each, ReportTable))
    for row in table.rows:
        assert row[3].value == pytest.approx(5)
        assert row[3].runs == 3
    assert table.rows[2][1].value == pytest.approx(100)
    said = lead(curves, 5)
    assert "ADLM needs 0.500 ± 0.064 times the rows of MDLM (fewer)." in said
    assert "times the rows of AR (fewer)." in said


def test_the_lead_claims_no_difference_where_seeds_disagree():
    def needed(model, d, seed):
        return 50 * 5**d * (1.0 if model != "ADLM" else (0.5, 1.0, 2.0)[seed])

    said = lead(curves_of(outcomes_with(needed)), 5)
    assert said.count("no significant difference") == 2
    assert "fewer" not in said


def test_other_data_is_refused(tmp_path):
    (step, *_) = [step for step in SampleComplexity(seeds=1).steps() if isinstance(step.work, TrainOnProcess)]
    work = TrainOnProcess(replace(step.work.run, data=Synthetic()))
    with raises(ConfigError, subject="data"):
        work.execute(StepContext(tmp_path, "x", tmp_path))


def test_a_network_that_is_not_in_the_study_is_named():
    with raises(UnknownName, name="mdlm"):
        SampleComplexity(arms=("mdlm",))
