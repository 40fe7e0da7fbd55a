"""From outcomes to what a report shows of them."""

from collections.abc import Sequence
from typing import Any

from adlm_studies.experiments.statistics import over_runs
from adlm_studies.experiments.study import StepOutcome
from adlm_studies.report.sections import Chart, Series


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


def curves(title: str, outcomes: Sequence[StepOutcome], *, label: str = "model") -> Chart:
    """Validation bounds over the tokens read, the mean of seeds with its interval."""
    series = []
    for name in dict.fromkeys(outcome.labels[label] for outcome in outcomes):
        runs = [outcome.result["curve"] for outcome in select(outcomes, **{label: name})]
        points = [(here[0][0], over_runs([point[1] for point in here])) for here in zip(*runs, strict=False)]
        series.append(Series.of(name, points))
    note = "Bands are 95 % intervals over seeds."
    return Chart(f"Learning on {title}", note, "tokens read", "nats per token, validation", series)
