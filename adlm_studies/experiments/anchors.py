"""What do anchors have to be like? One thing about them is changed at a time, around a scale's own ADLM."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple

from adlm.anchors.rules import AnchorRule, EveryToken, RandomFraction, RareInSequence
from adlm.models.hand_over import Continued, HandOver, Hidden, Logits, Probabilities
from adlm.objectives.degraded import DegradedAnelbo
from adlm.objectives.nelbo import Anelbo
from adlm.train.run import Run
from adlm_studies.experiments import settings
from adlm_studies.experiments.probing import (
    ContentTokens,
    HighTfIdf,
    RandomTokens,
    RareTokens,
    RuleFromData,
    TrainAndProbe,
    TrainWithRuleFromData,
)
from adlm_studies.experiments.statistics import exponential, interval_note, over_runs, paired
from adlm_studies.experiments.study import StepOutcome, Study, StudyStep, StudyWork, check_names
from adlm_studies.experiments.tables import nats_of, select
from adlm_studies.report.sections import Cell, Chart, Interval, ReportPage, ReportTable, Section, Series

# What is changed, in the words of the report.
AXES: dict[str, str] = {
    "rule": "Which tokens are anchors",
    "threshold": "Rarity threshold: how often an anchor may occur in its row",
    "gamma": "Weight of the anchor loss, γ",
    "positions": "Positions of the anchor loss",
    "depth": "Layers of the anchor stage + of the denoiser",
    "hand-over": "What the anchor stage hands over",
    "wrong": "Fraction of anchors that are deliberately wrong",
}
# Perplexities of the paper's ablations: OpenWebText, 78 billion tokens (arXiv 2505.18456).
PAPER: dict[str, dict[str, float]] = {
    "threshold": {"1": 23.17, "5": 22.32, "10": 23.01, "20": 23.98},
    "gamma": {"0.03": 22.39, "0.003": 22.32, "3e-05": 23.72},
}
_THRESHOLDS = (1, 5, 10, 20)
_GAMMAS = (0.0, 3e-5, 3e-3, 3e-2, 0.05, 1.0)
_WRONG = (0.0, 0.25, 0.5, 1.0)
_SPLITS = 6  # of the depth; each but the ends is a setting
_HAND_OVERS: dict[str, HandOver] = {
    "logits": Logits(), "probabilities": Probabilities(), "hidden": Hidden(), "continued": Continued(),
}  # fmt: skip
_RECIPE = "recipe"


class _Point(NamedTuple):
    """A setting that was trained: nats by seed, anchor accuracy by seed, and the fraction of tokens marked."""

    axis: str
    value: str
    nats: dict[int, float]
    accuracy: dict[int, float]
    fraction: float

    @property
    def mean(self) -> Interval:
        return over_runs(list(self.nats.values()), bound=True)


@dataclass(frozen=True)
class Anchors(Study):
    """The study of what anchors have to be like: one setting is changed at a time.

    Args:
        corpus: by its name at the scale; by default kjv where the scale has it, or its first one.
        axes: what to change, by name; all by default.
        training_steps: the scale's own by default.
        rows: held-out rows to score on.
        probed: held-out rows at which anchor stages are asked.
    """

    name: ClassVar[str] = "anchors"
    question: ClassVar[str] = "Which properties of anchors improve the bound?"

    corpus: str = ""
    axes: tuple[str, ...] = ()
    training_steps: int = 0
    rows: int = 400
    probed: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("axis of the study", self.axes, AXES)

    def steps(self) -> Sequence[StudyStep]:
        return [step for seed in range(self.seeds) for step in self._of_seed(seed)]

    def _of_seed(self, seed: int) -> list[StudyStep]:
        recipe = self._recipe(seed)
        work: dict[tuple[str, str], StudyWork] = {("", _RECIPE): self._probed(recipe)}
        for axis in self._axes:
            for value, change in changes(axis, recipe).items():
                if change == recipe:
                    continue
                run = recipe if isinstance(change, RuleFromData) else change
                train = self._probed(replace(run, name=f"{recipe.name}-{axis}-{_slug(value)}"))
                work[axis, value] = TrainWithRuleFromData(train, change) if isinstance(change, RuleFromData) else train
        return [
            StudyStep(
                "/".join(filter(None, (self._corpus, axis, _slug(value), f"seed-{seed}"))),
                each,
                {"corpus": self._corpus, "model": "ADLM", "axis": axis, "value": value, "seed": seed},
            )
            for (axis, value), each in work.items()
        ]

    def _probed(self, run: Run) -> TrainAndProbe:
        return TrainAndProbe(run, rows=self.rows, probed=self.probed)

    @property
    def _axes(self) -> tuple[str, ...]:
        return self.axes or tuple(AXES)

    @property
    def _corpus(self) -> str:
        return self.corpus or settings.default_corpus(self.scale)

    def _recipe(self, seed: int = 0) -> Run:
        return settings.study_run(self.scale, self._corpus, "adlm", seed=seed, steps=self.training_steps or None)

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        title = "Which properties of anchors matter?"
        recipe = _point("", _RECIPE, outcomes)
        if recipe is None:
            return ReportPage(title, f"{self.question} The recipe's own model is not trained yet.", [])
        run = self._recipe()
        sections: list[Section] = []
        changed: list[_Point] = []
        for axis in self._axes:
            values = changes(axis, run)
            own = next((value for value, change in values.items() if change == run), None)
            found = (recipe._replace(value=v) if v == own else _point(axis, v, outcomes) for v in values)
            points = [point for point in found if point is not None]
            changed += [point for point in points if point.value != own]
            sections += [_table(axis, points, recipe, own), *_chart(axis, points)]
        sections.append(_scatter([recipe, *changed]))
        return ReportPage(title, _lead(recipe, changed), sections)


def changes(axis: str, recipe: Run) -> Mapping[str, Run | RuleFromData]:
    """The values on an axis: each a run that differs from the recipe in one setting, or the rule it will have.

    The recipe's own value is among them, and gives the recipe itself.
    """
    objective, network = recipe.objective, recipe.network
    assert isinstance(objective, Anelbo)

    def by(rule: AnchorRule) -> Run:
        return replace(recipe, objective=replace(objective, rule=rule))

    if axis == "rule":
        return {
            "rare in its row": recipe,
            "rare in the corpus": RareTokens(),
            "high tf-idf, half": HighTfIdf(0.5),
            "content words": ContentTokens(),
            "every token": by(EveryToken()),
            "at random, as many": RandomTokens(),
            "at random, half": by(RandomFraction(0.5)),
        }
    if axis == "threshold":
        return {str(most): by(RareInSequence(most)) for most in _THRESHOLDS}
    if axis == "gamma":
        gammas = sorted({*_GAMMAS, objective.gamma})
        return {f"{gamma:g}": replace(recipe, objective=replace(objective, gamma=gamma)) for gamma in gammas}
    if axis == "positions":
        named = {"masked": True, "all": False}
        return {name: replace(recipe, objective=replace(objective, masked_only=m)) for name, m in named.items()}
    if axis == "depth":
        total = sum(network.layers)
        splits = {round(total * k / _SPLITS) for k in range(1, _SPLITS)} | {network.layers[0]}
        return {
            f"{a}+{total - a}": replace(recipe, network=network.variant(layers=(a, total - a)))
            for a in sorted(splits)
            if 0 < a < total
        }
    if axis == "hand-over":
        return {
            name: replace(recipe, network=network.variant(hand_over=hand_over))
            for name, hand_over in _HAND_OVERS.items()
        }
    values = {field.name: getattr(objective, field.name) for field in fields(objective)}
    return {
        f"{wrong:g}": replace(recipe, objective=DegradedAnelbo(**values, wrong=wrong)) if wrong else recipe
        for wrong in _WRONG
    }


def _slug(value: str) -> str:
    return "-".join("".join(c if c.isalnum() or c in "+.-" else " " for c in value).split())


def _point(axis: str, value: str, outcomes: Sequence[StepOutcome]) -> _Point | None:
    found = select(outcomes, axis=axis, value=value)
    if not found:
        return None
    accuracy = {
        outcome.labels["seed"]: 100 * outcome.result["anchors"]["anchor stage accuracy"]["mean"] for outcome in found
    }
    return _Point(axis, value, nats_of(found), accuracy, found[0].result["anchors"]["fraction"])


def _against(point: _Point, recipe: _Point) -> Interval | None:
    shared = sorted(set(point.nats) & set(recipe.nats))
    return paired([point.nats[s] for s in shared], [recipe.nats[s] for s in shared]) if shared else None


def _table(axis: str, points: Sequence[_Point], recipe: _Point, own: str | None) -> ReportTable:
    paper = PAPER.get(axis, {})
    rows: list[list[Cell]] = []
    for point in points:
        mean = point.mean
        rows.append([
            f"{point.value} (recipe)" if point.value == own else point.value,
            f"{100 * point.fraction:.0f} %",
            over_runs(list(point.accuracy.values())),
            mean,
            exponential(mean),
            None if point.value == own else _against(point, recipe),
            *([paper.get(point.value)] if paper else []),
        ])  # fmt: skip
    columns = ["", "tokens that are anchors", "anchor accuracy, %", "nats per token", "perplexity",
               "nats against the recipe"]  # fmt: skip
    note = (
        "Everything else is as in the recipe. Anchor accuracy is that of the first stage at masked tokens that are "
        f"rare in their row, the same tokens for all. {interval_note(len(recipe.nats))}; differences are within a seed."
    )
    if axis == "gamma":
        note += " γ ramps up with the fraction of the run that is done, up to its value: 1 is reached only at the end."
    if paper:
        columns.append("the paper's perplexity")
        note += " The paper's figures are of OpenWebText with 78 billion tokens: compare the trend, not the values."
    best = ["", "", "high", "low", "low", "low", *(["low"] if paper else [])]
    return ReportTable(AXES[axis], note, columns, rows, best)


def _chart(axis: str, points: Sequence[_Point]) -> list[Section]:
    """Of axes with numbers on them; a weight of 0 has no place on a logarithmic axis and is a level across."""
    if axis not in ("threshold", "gamma", "wrong"):
        return []
    log = axis != "wrong"
    shown = [point for point in points if not log or float(point.value) > 0]
    levels = [("γ = 0", point.mean.value) for point in points if log and float(point.value) == 0]
    series = [Series.of("ADLM", [(float(point.value), point.mean) for point in shown])] if shown else []
    note = "Bars are 95 % intervals over seeds, where there are several."
    return [Chart(AXES[axis], note, axis, "nats per token", series, x_log=log, levels=levels)]


def _scatter(points: Sequence[_Point]) -> Chart:
    series = []
    for axis in dict.fromkeys(point.axis for point in points):
        here = [point for point in points if point.axis == axis]
        series.append(
            Series(
                axis or _RECIPE,
                [_accuracy(point) for point in here],
                [point.mean.value for point in here],
                labels=[point.value for point in here],
                line=False,
            )
        )
    note = (
        f"Every point is a setting; {_correlated(points)} Some settings change more than the quality of the anchors: a "
        "deeper anchor stage predicts them better, but leaves fewer layers for the denoiser."
    )
    return Chart("Anchor accuracy and the final bound", note, "anchor accuracy, %", "nats per token", series)


def _accuracy(point: _Point) -> float:
    return over_runs(list(point.accuracy.values())).value


def _correlated(points: Sequence[_Point]) -> str:
    r = correlation([_accuracy(point) for point in points], [point.mean.value for point in points])
    if r is None:
        return "there are too few settings for a correlation."
    return f"the correlation is r = {r.value:.2f} (95 % interval {r.low:.2f} to {r.high:.2f}, {len(points)} settings)."


def correlation(x: Sequence[float], y: Sequence[float]) -> Interval | None:
    """Pearson's r with its 95 % interval by Fisher's transform; None of fewer than four points, or of equal ones."""
    n = len(x)
    mean_x, mean_y = math.fsum(x) / max(n, 1), math.fsum(y) / max(n, 1)
    xx, yy = math.fsum((a - mean_x) ** 2 for a in x), math.fsum((b - mean_y) ** 2 for b in y)
    if n < 4 or xx == 0 or yy == 0:
        return None
    r = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / math.sqrt(xx * yy)
    z, half = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r))), 1.96 / math.sqrt(n - 3)
    return Interval(r, math.tanh(z - half), math.tanh(z + half), runs=n)


def _lead(recipe: _Point, changed: Sequence[_Point]) -> str:
    """What the numbers say, with how much they can say."""
    found = [(point, difference) for point in changed if (difference := _against(point, recipe)) is not None]
    if not found:
        return "Only the recipe's own model is trained so far."
    better = sum(difference.value < 0 for _, difference in found)
    text = f"{better} of {len(found)} changes give a lower bound than the recipe"
    seeds = len(recipe.nats)
    if seeds > 1:
        surely_better = sum(difference.high < 0 for _, difference in found)
        surely_worse = sum(difference.low > 0 for _, difference in found)
        text += (
            f", {surely_better} of them beyond the 95 % interval over {seeds} seeds; {surely_worse} give a higher one "
            f"beyond it. By chance alone about {0.05 * len(found):.1f} would fall outside."
        )
    else:
        text += ". With one seed, small differences cannot be distinguished from chance."
    best, gain = min(found, key=lambda each: each[1].value)
    text += f" The best is {best.axis} {best.value}, at {_signed(gain)} nats per token against the recipe."
    for point, difference in found:
        if (point.axis, point.value) == ("wrong", "1"):
            text += f" An anchor loss that is always wrong changes the bound by {_signed(difference)} nats."
    return f"{text} For anchor accuracy and bound, {_correlated([recipe, *changed])}"


def _signed(found: Interval) -> str:
    half = (found.high - found.low) / 2
    return f"{found.value:+.4f}" + (f" ± {half:.4f}" if half else "")
