"""From outcomes to what a report shows of them."""

from collections.abc import Sequence
from typing import Any

from adlm_studies.experiments.statistics import over_runs, paired
from adlm_studies.experiments.study import StepOutcome
from adlm_studies.report.sections import Chart, Interval, Series

Nats = dict[str, dict[int, float]]  # by arm and seed


def select(outcomes: Sequence[StepOutcome], **labels: Any) -> list[StepOutcome]:
    """The outcomes that have these labels."""
    return [each for each in outcomes if all(each.labels.get(name) == value for name, value in labels.items())]


def nats_of(outcomes: Sequence[StepOutcome], source: str | None = None) -> dict[int, float]:
    """Nats per token on the corpus a model was trained on, or on another, by seed."""
    found = {}
    for outcome in outcomes:
        scores = outcome.result["scores"]
        score = scores[source or next(iter(scores))]
        found[outcome.labels["seed"]] = score["nats_per_token"]["mean"]
    return found


def curves(title: str, outcomes: Sequence[StepOutcome]) -> Chart:
    """Validation bounds over the tokens read, the mean of seeds with its interval."""
    series = []
    for name in dict.fromkeys(outcome.labels["model"] for outcome in outcomes):
        runs = [outcome.result["curve"] for outcome in select(outcomes, model=name)]
        points = [(here[0][0], over_runs([point[1] for point in here])) for here in zip(*runs, strict=False)]
        series.append(Series.of(name, points))
    note = "Bands are 95 % intervals over seeds."
    return Chart(f"Learning on {title}", note, "tokens read", "nats per token, validation", series)


def shared_seeds(nats: Nats, *arms: str | None) -> list[int]:
    """The seeds that all of these arms have; none if an arm is missing."""
    if any(arm is None or arm not in nats for arm in arms):
        return []
    return sorted(set.intersection(*(set(nats[arm]) for arm in arms if arm)))


def seed_difference(nats: Nats, arm: str, base: str | None) -> Interval | None:
    """Nats of an arm less those of another, within seeds."""
    shared = shared_seeds(nats, arm, base)
    return paired([nats[arm][s] for s in shared], [nats[base][s] for s in shared]) if base and shared else None


def gap_closed(nats: Nats, arm: str, base: str | None) -> Interval | None:
    """How much of the gap from a masked model to AR an arm closes, in percent: 0 is `base`, 100 is AR."""
    shared = shared_seeds(nats, arm, base, "AR")
    if not base or not shared:
        return None
    gaps = [(nats[base][s] - nats[arm][s]) / (nats[base][s] - nats["AR"][s]) for s in shared]
    return over_runs([100 * gap for gap in gaps])
