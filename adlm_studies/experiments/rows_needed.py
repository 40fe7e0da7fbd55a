"""From excesses over an entropy to the rows that a model needs: how they grow with the size of the anchor set."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from adlm_studies.experiments.counting import ANCHORED
from adlm_studies.experiments.statistics import exponential, over_runs
from adlm_studies.experiments.study import StepOutcome
from adlm_studies.report.sections import Cell, Chart, Interval, ReportTable, Section, Series

LEVEL = 0.2  # of the entropy, which hardly changes with the anchors: an excess below it is small
_LEAST = 1e-3  # nats: held-out rows tell no smaller excess from none


class Curve(NamedTuple):
    """Excess against rows, of one model on one process."""

    model: str
    anchors: int
    seed: int
    counts: Sequence[int]
    excess: Sequence[float]
    entropy: float
    dependence: float

    @property
    def needed(self) -> float:
        """Rows until the excess stays below the level: 0 or infinite where they are fewer or more than were tried."""
        return crossing(self.counts, self.excess, LEVEL * self.entropy)


def crossing(counts: Sequence[int], values: Sequence[float], level: float) -> float:
    """The count from which on values are below the level, between two counts by a straight line of logarithms.

    0 where they are from the first count on, infinity where they are not at the last.
    """
    above = [i for i, value in enumerate(values) if value >= level]
    if not above or above[-1] + 1 == len(values):
        return math.inf if above else 0.0
    last = above[-1]
    (a, b), (high, low) = np.log(counts[last : last + 2]), np.log(np.maximum(values[last : last + 2], 1e-12))
    return float(math.exp(a + (b - a) * (high - math.log(level)) / (high - low)))


def curves_of(outcomes: Sequence[StepOutcome]) -> list[Curve]:
    """Networks first, in the study's order."""
    networks: dict[tuple[str, int, int], dict[int, Mapping[str, Any]]] = {}
    tables = []
    for outcome in outcomes:
        labels, result = outcome.labels, outcome.result
        key = labels["model"], labels["anchors"], labels["seed"]
        if "rows" in labels:
            networks.setdefault(key, {})[labels["rows"]] = result
        else:
            facts = result["entropy"], result["dependence"]
            tables += [Curve(model, *key[1:], result["counts"], of, *facts) for model, of in result["excess"].items()]
    found = []
    for key, by_rows in networks.items():
        counts = sorted(by_rows)
        facts = by_rows[counts[0]]["entropy"], by_rows[counts[0]]["dependence"]
        found.append(Curve(*key, counts, [by_rows[count]["excess"] for count in counts], *facts))
    return found + tables


def sections(curves: Sequence[Curve], values: int) -> list[Section]:
    """A chart for each size of the anchor set, and what follows from them together.

    Args:
        values: that a token can have, the theory's K.
    """
    sizes = sorted({curve.anchors for curve in curves})
    charts: list[Section] = [_chart(d, _by_size(curves, d)) for d in sizes]
    if not charts:
        return []
    return [*charts, _needed_chart(curves, sizes), _needed_table(curves, sizes, values), _last_table(curves, sizes)]


def _models(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    found: dict[str, list[Curve]] = {}
    for curve in curves:
        found.setdefault(curve.model, []).append(curve)
    return found


def _geometric(values: Sequence[float]) -> Interval:
    """Mean and interval of logarithms, since rows and excesses go over orders of magnitude."""
    return exponential(over_runs([math.log(max(value, _LEAST)) for value in values]))


def _chart(d: int, curves: Sequence[Curve]) -> Chart:
    series = []
    for model, mine in _models(curves).items():
        by_rows: dict[int, list[float]] = {}
        for curve in mine:
            for count, excess in zip(curve.counts, curve.excess, strict=True):
                by_rows.setdefault(count, []).append(excess)
        series.append(Series.of(model, [(count, _geometric(by_rows[count])) for count in sorted(by_rows)]))
    entropy = math.fsum(curve.entropy for curve in curves) / len(curves)
    dependence = math.fsum(curve.dependence for curve in curves) / len(curves)
    note = (
        f"Expected nats per row above the exact entropy ({entropy:.2f}). Bands are 95 % intervals over seeds, each "
        "with its own process. Networks have the weights with the best validation; the excess of masked ones is that "
        "of the bound. Tables are counted with add-one smoothing, those of a DLM for every set of visible positions. "
        "The upper line is a model that knows only the frequencies at each position."
    )
    levels = [("a fifth of the entropy", LEVEL * entropy), ("frequencies alone", dependence)]
    return Chart(
        f"{d} anchor{'s' * (d > 1)}: excess against training rows", note, "training rows", "excess, nats per row",
        series, x_log=True, y_log=True, levels=levels,
    )  # fmt: skip


def _needed(curves: Sequence[Curve]) -> Cell:
    """Rows needed, over the seeds of one model and one d."""
    needed = [curve.needed for curve in curves]
    if not needed:
        return None
    if all(0 < each < math.inf for each in needed):
        return _geometric(needed)
    return f"< {curves[0].counts[0]:,}" if min(needed) == 0 else f"> {curves[0].counts[-1]:,}"


def _by_size(curves: Sequence[Curve], d: int) -> list[Curve]:
    return [curve for curve in curves if curve.anchors == d]


def _growth(curves: Sequence[Curve]) -> Interval | None:
    """Of one model: by what factor the rows needed grow with each anchor, from a line through log n*(d) of each seed.

    Over the d whose n* is among the rows tried; None where some seed has fewer than two of them.
    """
    slopes = []
    for seed in {curve.seed for curve in curves}:
        mine = [curve for curve in curves if curve.seed == seed and 0 < curve.needed < math.inf]
        if len(mine) < 2:
            return None
        line = np.polyfit([curve.anchors for curve in mine], [math.log(curve.needed) for curve in mine], 1)
        slopes.append(float(line[0]))
    return exponential(over_runs(slopes)) if slopes else None


def _needed_chart(curves: Sequence[Curve], sizes: Sequence[int]) -> Chart:
    series = []
    for model, mine in _models(curves).items():
        cells = [(d, _needed(_by_size(mine, d))) for d in sizes]
        points = [(float(d), cell) for d, cell in cells if isinstance(cell, Interval)]
        if points:
            series.append(Series.of(model, points))
    note = "A straight line means a constant factor per anchor: K, according to the theory of anchored tables."
    return Chart("Rows needed against the size of the anchor set", note, "anchors", "rows needed", series, y_log=True)


def _needed_table(curves: Sequence[Curve], sizes: Sequence[int], values: int) -> ReportTable:
    rows: list[list[Cell]] = []
    for model, mine in _models(curves).items():
        theory = f"{values}" if model in (ANCHORED, "ADLM") else "1"
        rows.append([model, *(_needed(_by_size(mine, d)) for d in sizes), _growth(mine), theory])
    note = (
        "Training rows until the excess stays below a fifth of the entropy, interpolated linearly in logarithms "
        "between two counts. The growth is fitted where that level was reached within the rows tried. The theory is "
        "about tables: anchored ones have K^(d + 1) entries per position, those with full context K^L for any d. It "
        "counts entries; tables with full context fill up from the most likely entries on, and there are about "
        "exp(entropy) of those."
    )
    columns = ("model", *(f"d = {d}" for d in sizes), "growth per anchor", "in theory, for tables")
    return ReportTable("Rows needed", note, columns, rows, ("", *("low" for _ in sizes), "", ""))


def _last_table(curves: Sequence[Curve], sizes: Sequence[int]) -> ReportTable:
    rows: list[list[Cell]] = []
    for model, mine in _models(curves).items():
        fractions = ([100 * c.excess[-1] / c.entropy for c in _by_size(mine, d)] for d in sizes)
        rows.append([model, f"{mine[0].counts[-1]:,}", *(over_runs(each) if each else None for each in fractions)])
    note = "Excess in percent of the exact entropy, at the largest number of rows tried."
    return ReportTable(
        "How far from the entropy", note, ("model", "rows", *(f"d = {d}" for d in sizes)), rows,
        ("", "", *("low" for _ in sizes)),
    )  # fmt: skip


def lead(curves: Sequence[Curve], values: int) -> str:
    """The findings in words, from the numbers."""
    models = _models(curves)
    growths = {model: _growth(mine) for model, mine in models.items()}
    said = [f"{model} {growth}" for model, growth in growths.items() if growth is not None]
    parts = []
    if said:
        parts.append(
            f"With each further anchor, the rows needed grow by these factors: {', '.join(said)}; "
            f"the theory of anchored tables says {values}."
        )
    parts += [_against(models, "ADLM", other) for other in ("MDLM", "AR") if {"ADLM", other} <= models.keys()]
    return " ".join(part for part in parts if part)


def _against(models: Mapping[str, Sequence[Curve]], model: str, other: str) -> str:
    """How many rows one model needs for each of another's: the mean over d of each seed's logarithms, over seeds."""
    theirs = {(curve.anchors, curve.seed): curve.needed for curve in models[other]}
    by_seed: dict[int, list[float]] = {}
    for curve in models[model]:
        pair = curve.needed, theirs.get((curve.anchors, curve.seed), 0.0)
        if all(0 < each < math.inf for each in pair):
            by_seed.setdefault(curve.seed, []).append(math.log(pair[0] / pair[1]))
    if not by_seed:
        return ""
    ratio = exponential(over_runs([math.fsum(logs) / len(logs) for logs in by_seed.values()]))
    if ratio.runs == 1:
        verdict = "one seed has no interval"
    elif ratio.low <= 1 <= ratio.high:
        verdict = "no significant difference"
    else:
        verdict = "fewer" if ratio.high < 1 else "more"
    return f"{model} needs {ratio} times the rows of {other} ({verdict})."
