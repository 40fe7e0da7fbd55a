"""The report of the second anchoring study: one table, two charts, and an answer computed from the outcomes."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from adlm_studies.experiments.anchoring_arms import ADLM, GAMMA_0, MDLM, SEARCH_SEED, TRICKS
from adlm_studies.experiments.statistics import interval_note, over_runs, paired
from adlm_studies.experiments.study import StepOutcome
from adlm_studies.experiments.tables import nats_of, select
from adlm_studies.experiments.trend import SIZE, TOKENS, Trend, fit_trend
from adlm_studies.report.sections import Cell, Chart, Interval, ReportPage, ReportTable, Section, Series

# Nats per token: 2 % in perplexity. Set before the first run (docs/studies/anchoring-2.md).
THRESHOLD = 0.02
MILLION = 1e6
STEADY = 0.7  # of a run, before its learning rate falls
_SETTING = ("corpus", "size", "tokens")
# Anchoring as a whole, the two stages alone, the anchor loss alone.
COMPARISONS = ((ADLM, MDLM), (GAMMA_0, MDLM), (ADLM, GAMMA_0))
_LEFT_TO_RIGHT = {"A2R": "AR"}


class Compared(NamedTuple):
    """Two models in one setting, by the seeds that both have on the same held-out rows.

    Args:
        gap: nats per token of the first less the second, over seeds.
        rows: half the 95 % interval over held-out rows, the mean of seeds: what the text alone leaves uncertain; None
            if the rows were not kept.
    """

    gap: Interval
    by_seed: dict[int, float]
    rows: float | None


def report_page(question: str, outcomes: Sequence[StepOutcome]) -> ReportPage:
    """All that the finished steps tell."""
    outcomes = [outcome for outcome in outcomes if outcome.labels["seed"] != SEARCH_SEED]
    sections: list[Section] = []
    if outcomes:
        sections = [_table(outcomes), *_efficiency(outcomes), *_over_tokens(outcomes), *_over_size(outcomes)]
    return ReportPage("Does anchoring help at equal compute?", f"{question} {answer(outcomes)}", sections)


def compare(outcomes: Sequence[StepOutcome], arm: str, base: str) -> Compared | None:
    """Of one setting; None if no seed has both."""
    pairs = []
    for one in select(outcomes, model=arm):
        for two in select(outcomes, model=base, seed=one.labels["seed"]):
            a, b = (next(iter(each.result["scores"].values())) for each in (one, two))
            if (a["data"], a["rows"]) == (b["data"], b["rows"]):
                pairs.append((one.labels["seed"], a, b))
    if not pairs:
        return None
    means = [[score["nats_per_token"]["mean"] for score in scores] for scores in list(zip(*pairs, strict=True))[1:]]
    seeds = [seed for seed, *_ in pairs]
    by_seed = {seed: a - b for seed, a, b in zip(seeds, *means, strict=True)}
    over_rows = [_over_rows(a, b) for _, a, b in pairs if "row_nats" in a and "row_nats" in b]
    return Compared(paired(*means), by_seed, float(np.mean(over_rows)) if over_rows else None)


def _over_rows(one: dict[str, object], two: dict[str, object]) -> float:
    rows = np.array(one["row_nats"]) - np.array(two["row_nats"])
    per_row = np.mean(np.array(one["row_nats"])) / one["nats_per_token"]["mean"]  # type: ignore[index]
    return float(1.96 * rows.std(ddof=1) / np.sqrt(len(rows)) / per_row) if len(rows) > 1 else 0.0


def verdict(gap: Interval) -> str:
    """By the rule of the design: a gain counts from `THRESHOLD` on, and needs an interval over seeds."""
    if gap.runs < 2:
        return "one seed"
    if gap.high < 0:
        return "yes" if gap.value <= -THRESHOLD else "yes, but a negligible one"
    if gap.low > 0:
        return "worse"
    return "no gain that matters" if gap.low > -THRESHOLD else "undecided"


def answer(outcomes: Sequence[StepOutcome]) -> str:
    """The answer to the study's question, from the setting of the main comparison with most seeds, then most tokens."""
    found: list[tuple[int, tuple[str, str, int], dict[tuple[str, str], Compared]]] = []
    for setting, here in _settings(outcomes):
        gaps = {pair: each for pair in COMPARISONS if (each := compare(here, *pair)) is not None}
        if len(gaps) == len(COMPARISONS):
            found.append((min(each.gap.runs for each in gaps.values()), setting, gaps))
    if not found:
        return "The main comparison has no finished pair yet."
    seeds, (corpus, size, tokens), gaps = max(found, key=lambda each: (each[0], each[1][2]))
    whole, stages, loss = (gaps[pair] for pair in COMPARISONS)
    told = [verdict(each.gap) for each in (whole, loss)]
    if seeds < 2:
        said = "Too few seeds are finished for an answer"
    elif told == ["yes", "yes"]:
        said = "Anchoring helps"
    elif "undecided" in told:
        said = "Whether anchoring helps is undecided"
    elif told[0] == "yes":
        said = "The two stages help and the anchor loss adds nothing that matters"
    else:
        said = "Anchoring does not help"
    text = (
        f"{said}: on {corpus}, size {size}, {tokens / MILLION:g} million tokens, {seeds} seeds, ADLM differs from the "
        f"MDLM of equal compute by {whole.gap} nats per token, its two stages alone (γ = 0) by {stages.gap}, and the "
        f"anchor loss changes that by {loss.gap}."
    )
    return f"{text} {_trend_told(outcomes, corpus)}".strip()


def _settings(outcomes: Sequence[StepOutcome]) -> Iterator[tuple[tuple[str, str, int], list[StepOutcome]]]:
    for corpus, size, tokens in dict.fromkeys(tuple(each.labels[name] for name in _SETTING) for each in outcomes):
        yield (corpus, size, tokens), select(outcomes, corpus=corpus, size=size, tokens=tokens)


def trend(outcomes: Sequence[StepOutcome], corpus: str, arm: str = ADLM, base: str = MDLM) -> Trend | None:
    """Of the difference on a corpus, over all finished settings and seeds; around size A and 20 million tokens."""
    points = []
    for (_, _, tokens), here in _settings(select(outcomes, corpus=corpus)):
        if (found := compare(here, arm, base)) is not None:
            size = select(here, model=arm)[0].result["stack_parameters"]
            points += [(float(tokens), float(size), gap) for gap in found.by_seed.values()]
    middle = select(outcomes, corpus=corpus, size="A", model=arm)
    return fit_trend(points, (20 * MILLION, middle[0].result["stack_parameters"])) if middle else None


def _trend_told(outcomes: Sequence[StepOutcome], corpus: str) -> str:
    found = trend(outcomes, corpus)
    if found is None:
        return ""
    parts = []
    for axis, name, unit in ((TOKENS, "tokens", "million tokens"), (SIZE, "parameters", "million parameters")):
        turn = found.turn(axis)
        where = "no change of sign can be located"
        if turn is not None:
            low, value, high = (x / MILLION for x in (turn.low, turn.value, turn.high))
            where = f"the sign changes at {value:.3g} {unit} (95 % interval {low:.3g} to {high:.3g})"
        parts.append(f"ten times the {name} change it by {found.slope(axis)}, and {where}")
    return f"Over all sizes and budgets, {'; '.join(parts)}."


def _table(outcomes: Sequence[StepOutcome]) -> ReportTable:
    rows: list[list[Cell]] = []
    for (corpus, size, tokens), here in _settings(outcomes):
        for model in dict.fromkeys(each.labels["model"] for each in here):
            mine = select(here, model=model)
            first = mine[0].result
            bound = next(iter(first["scores"].values()))["nats_per_token"]["draws"] > 0
            base = base_of(model)
            found = compare(here, model, base) if base else None
            rows.append([
                corpus, size, f"{tokens / MILLION:g}", model,
                f"{first['stack_parameters'] / MILLION:.2f}",
                f"{first['work'] / 1e12:.3g}",
                over_runs(list(nats_of(mine).values()), bound=bound),
                base if found else "",
                found.gap if found else None,
                f"{found.rows:.3f}" if found and found.rows is not None else "",
                verdict(found.gap) if found else "",
            ])  # fmt: skip
    columns = (
        *("corpus", "size", "M tokens", "model", "M parameters in stacks", "training work, TFLOP", "nats per token"),
        *("against", "difference", "± by rows", "better?"),
    )
    seeds = max(len(nats_of(select(here, model=MDLM))) for _, here in _settings(outcomes))
    note = (
        f"{interval_note(seeds)}, or over as many as are finished; differences are within a seed: same rows, order "
        "and masks. ± by rows is the 95 % interval over held-out rows alone. yes: the interval is below 0 and "
        f"the mean at most -{THRESHOLD}. ≤ marks a bound."
    )
    return ReportTable("Paired differences", note, columns, rows)


def base_of(model: str) -> str:
    """What a model is compared with: the same without anchors, at equal compute."""
    plain = model.removesuffix(", best of search")
    if plain in (MDLM, "AR") or (plain in TRICKS.values() and plain != GAMMA_0):
        return "" if plain == model else plain
    if model != plain:
        return f"{MDLM}, best of search"
    if plain.startswith("blocks of"):
        blocks = plain.split(",")[0]
        return "" if blocks == plain else blocks
    return TRICKS.get(plain) or _LEFT_TO_RIGHT.get(plain) or MDLM


def _efficiency(outcomes: Sequence[StepOutcome]) -> Iterator[Section]:
    """How many tokens one model needs for a bound that the other reaches too."""
    rows: list[list[Cell]] = []
    for (corpus, size, tokens), here in _settings(outcomes):
        for arm, base in COMPARISONS:
            ratios = [
                ratio
                for one in select(here, model=arm)
                for two in select(here, model=base, seed=one.labels["seed"])
                if (ratio := tokens_ratio(one.result["curve"], two.result["curve"], STEADY * tokens)) is not None
            ]
            if ratios:
                rows.append([corpus, size, f"{tokens / MILLION:g}", f"{arm} / {base}", over_runs(ratios)])
    if rows:
        note = (
            "The bound is the lowest that both reach on validation rows before the learning rate falls. Below 1 the "
            "first model needs fewer tokens. As both take the same operations per token, it is the ratio of compute "
            "too; γ = 0 takes fewer."
        )
        columns = ("corpus", "size", "M tokens", "models", "tokens to the same bound, ratio")
        yield ReportTable("Sample efficiency", note, columns, rows)


def tokens_ratio(one: Sequence[Sequence[float]], two: Sequence[Sequence[float]], until: float) -> float | None:
    """The tokens that the first needs, as a multiple of those of the second, for the lowest bound that both reach.

    Args:
        one, two: validation curves: tokens and nats per token at each point.
        until: later points are not looked at.
    """
    curves = [[(x, y) for x, y, *_ in curve if 0 < x <= until] for curve in (one, two)]
    if any(len(curve) < 2 for curve in curves):
        return None
    target = max(min(y for _, y in curve) for curve in curves)
    needed = [_tokens_to(target, curve) for curve in curves]
    return None if None in needed else needed[0] / needed[1]  # type: ignore[operator]


def _tokens_to(target: float, curve: Sequence[tuple[float, float]]) -> float | None:
    """Where a curve first reaches the bound, on straight lines over log tokens; None if that is its first point."""
    for (x, y), (later, lower) in pairwise(curve):
        if lower <= target < y:
            fraction = (y - target) / (y - lower)
            return float(np.exp(np.log(x) + fraction * (np.log(later) - np.log(x))))
    return None


def _over_tokens(outcomes: Sequence[StepOutcome]) -> Iterator[Section]:
    """Validation differences while models train, on the corpus with the main comparison."""
    series = []
    for (corpus, size, tokens), here in _settings(outcomes):
        if corpus != outcomes[0].labels["corpus"]:
            continue
        for arm, base in COMPARISONS[::2]:
            points = _curve_gaps(here, arm, base)
            if points:
                series.append(Series.of(f"{arm} - {base}, {size}, {tokens / MILLION:g} M"[:60], points))
    if series:
        note = (
            "On validation rows, at the same token counts, within seeds; bands are 95 % intervals over seeds. Below 0 "
            "the first model is better. In the last 30 % of a run the learning rate falls."
        )
        axes = "tokens read", "difference, nats per token"
        yield Chart("Difference over tokens", note, *axes, series[:7], x_log=True, levels=[("no difference", 0.0)])


def _curve_gaps(here: Sequence[StepOutcome], arm: str, base: str) -> list[tuple[float, Interval]]:
    gaps: dict[float, list[float]] = {}
    for one in select(here, model=arm):
        for two in select(here, model=base, seed=one.labels["seed"]):
            other = {point[0]: point[1] for point in two.result["curve"]}
            for tokens, nats, *_ in one.result["curve"]:
                if tokens and tokens in other:
                    gaps.setdefault(tokens, []).append(nats - other[tokens])
    most = max(map(len, gaps.values()), default=0)
    return [(tokens, over_runs(found)) for tokens, found in sorted(gaps.items()) if len(found) == most]


def _over_size(outcomes: Sequence[StepOutcome]) -> Iterator[Section]:
    series = []
    for number, (arm, base) in enumerate(COMPARISONS):
        by_tokens: dict[int, list[tuple[float, Interval]]] = {}
        for (corpus, _, tokens), here in _settings(outcomes):
            found = compare(here, arm, base) if corpus == outcomes[0].labels["corpus"] else None
            if found is not None:
                size = float(select(here, model=arm)[0].result["stack_parameters"])
                beside = size * 1.05 ** (number - 1)  # so that bars do not cover each other
                by_tokens.setdefault(tokens, []).append((beside, found.gap))
        series += [
            Series.of(f"{arm} - {base}, {tokens / MILLION:g} M"[:60], sorted(points, key=lambda each: each[0]))
            for tokens, points in by_tokens.items()
        ]
    if series:
        note = (
            "On test rows after complete runs; bars are 95 % intervals over seeds, where there are several. Models of "
            "one size are drawn side by side."
        )
        axes = "parameters in stacks", "difference, nats per token"
        yield Chart("Difference over size", note, *axes, series[:7], x_log=True, levels=[("no difference", 0.0)])
