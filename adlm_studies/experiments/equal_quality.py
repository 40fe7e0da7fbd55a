"""What models need to come to the same bound: tokens, operations, seconds."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from adlm_studies.experiments.statistics import over_runs
from adlm_studies.experiments.study import StepOutcome
from adlm_studies.experiments.tables import select
from adlm_studies.report.sections import Cell, Chart, Interval, ReportTable, Section, Series

# The kinds of run, by the names that the study of anchoring has for them: in its folder they are not trained again.
ARMS = {"AR": "ar-same-parameters", "MDLM, same cost": "mdlm-same-cost", "ADLM": "adlm"}
AR, MDLM, ADLM = ARMS
Result = Mapping[str, Any]
Needed = dict[str, dict[int, dict[str, float] | None]]  # by model and seed; None: not reached


def reached(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """Tokens at which a validation curve first comes down to `target`: a straight line over the log of tokens.

    None where it does not. A curve that begins below has reached it at its first point, or before.
    """
    before: tuple[float, float] | None = None
    for tokens, nats, *_ in curve:
        if tokens <= 0:
            continue
        if nats <= target:
            if before is None:
                return tokens
            part = (before[1] - target) / (before[1] - nats)
            return math.exp(math.log(before[0]) + part * (math.log(tokens) - math.log(before[0])))
        before = tokens, nats
    return None


def needs(trained: Sequence[StepOutcome], steps: Result | None) -> Needed:
    """What each model needs to reach the bound at which the MDLM of equal cost ends, by seed."""
    targets = {outcome.labels["seed"]: outcome.result["curve"][-1][1] for outcome in select(trained, model=MDLM)}
    found: Needed = {}
    for outcome in trained:
        model, seed, result = outcome.labels["model"], outcome.labels["seed"], outcome.result
        if seed not in targets:
            continue
        tokens = reached(result["curve"], targets[seed])
        found.setdefault(model, {})[seed] = None if tokens is None else {
            "tokens": tokens,
            "work": tokens * result["work"] / result["tokens"],
            "seconds": tokens * _seconds_per_token(model, result, steps),
        }  # fmt: skip
    return found


def _seconds_per_token(model: str, result: Result, steps: Result | None) -> float:
    """By the rounds in turn, which are fair to all; by the run's own clock where they are not there."""
    if steps and model in steps["models"]:
        return median(steps["models"][model]["seconds"]) / steps["tokens"]
    return float(result["seconds"] / result["tokens"])


def needed_table(needed: Needed) -> ReportTable:
    """The table of what each model needs to reach equal quality."""
    rows: list[list[Cell]] = []
    base = needed.get(MDLM, {})
    for model, by_seed in needed.items():
        there = {seed: found for seed, found in by_seed.items() if found is not None}
        if not there:
            rows.append([model, f"0 of {len(by_seed)}", *(["not reached"] * 4)])
            continue
        rows.append([
            model,
            f"{len(there)} of {len(by_seed)}",
            over_runs([found["tokens"] / 1e6 for found in there.values()]),
            over_runs([found["work"] / 1e12 for found in there.values()]),
            over_runs([found["seconds"] for found in there.values()]),
            _fraction(there, base),
        ])  # fmt: skip
    note = (
        "To reach the validation bound at which the MDLM of equal cost ends, seed by seed; ± is a 95 % interval over "
        "the seeds that reach it. Between validations, values are interpolated linearly over the log of tokens. The "
        "learning rate falls at the end of a run, and the bound with it, so models that get there early would need "
        "fewer tokens than are counted here if their run were planned to end there. AR's figure is a likelihood, the "
        "others' are bounds. Seconds are computed from the steps timed in turn."
    )
    columns = ("model", "seeds that reach it", "M tokens", "TFLOP", "seconds", "times MDLM's time")
    return ReportTable("To equal quality", note, columns, rows, ("", "", "low", "low", "low", "low"))


def _fraction(there: Mapping[int, dict[str, float]], base: Mapping[int, dict[str, float] | None]) -> Interval | None:
    fractions = [found["seconds"] / other["seconds"] for seed, found in there.items() if (other := base.get(seed))]
    return over_runs(fractions) if fractions else None


def curves_over_cost(trained: Sequence[StepOutcome], steps: Result | None) -> list[Section]:
    """Validation bounds over operations and over seconds, the mean of seeds."""
    work: list[Series] = []
    clock: list[Series] = []
    for model in dict.fromkeys(outcome.labels["model"] for outcome in trained):
        runs = select(trained, model=model)
        result = runs[0].result
        points = [
            (here[0][0], over_runs([point[1] for point in here]))
            for here in zip(*(run.result["curve"] for run in runs), strict=False)
            if here[0][0] > 0
        ]
        for series, a_token in (
            (work, result["work"] / result["tokens"] / 1e12),
            (clock, _seconds_per_token(model, result, steps)),
        ):
            series.append(Series.of(model, [(tokens * a_token, mean) for tokens, mean in points]))
    note = "Validation; bands are 95 % intervals over seeds."
    return [
        Chart("Bound over work", note, "TFLOP", "nats per token", work, x_log=True),
        Chart("Bound over time", note, "seconds", "nats per token", clock, x_log=True),
    ]


def needed_words(needed: Needed) -> list[str]:
    """A sentence about what ADLM needs to reach the quality of the MDLM of equal cost."""
    by_seed = needed.get(ADLM)
    if not by_seed or MDLM not in needed:
        return []
    there = {seed: found for seed, found in by_seed.items() if found is not None}
    if not there:
        return [f"ADLM does not reach the bound at which that MDLM ends, with any of {len(by_seed)} seeds."]
    fraction = _fraction(there, needed[MDLM])
    return [
        f"With {len(there)} of {len(by_seed)} seeds, ADLM reaches the bound at which that MDLM ends, after {fraction} "
        "of its training time."
    ]
