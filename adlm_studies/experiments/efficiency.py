"""What does anchoring cost? Training and sampling of ADLM, MDLM and AR, and of reference implementations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any, ClassVar

from adlm.models.hand_over import Logits
from adlm.objectives.nelbo import Anelbo
from adlm.train.run import Run
from adlm_studies.experiments import settings
from adlm_studies.experiments.equal_quality import (
    ADLM,
    AR,
    ARMS,
    MDLM,
    Result,
    curves_over_cost,
    needed_table,
    needed_words,
    needs,
    reached,
)
from adlm_studies.experiments.study import StepOutcome, Study, StudyStep
from adlm_studies.experiments.timing import TimeSampling, TimeTraining
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.reference import ReferenceAnelbo
from adlm_studies.report.sections import Cell, Chart, Interval, ReportPage, ReportTable, Section, Series

LOGITS = "ADLM, logits"
_REFERENCE = ", reference"


@dataclass(frozen=True)
class Efficiency(Study):
    """The study of what training and sampling cost, with reference implementations.

    Args:
        corpus: by its name at the scale; by default kjv where the scale has it, or its first one.
        training_steps: the scale's own by default.
        rows: held-out rows to score on.
        rounds: in which training steps take turns.
        sampling_rounds: in which samplers do.
        sampling_steps: of ancestral sampling.
        texts: written at a time.
    """

    name: ClassVar[str] = "efficiency"
    question: ClassVar[str] = "What does anchoring cost in training and in sampling, and at equal quality?"

    corpus: str = ""
    training_steps: int = 0
    rows: int = 400
    rounds: int = 12
    sampling_rounds: int = 5
    sampling_steps: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    texts: int = 16

    def steps(self) -> Sequence[StudyStep]:
        corpus = self._corpus
        trained = []
        for seed in range(self.seeds):
            for arm in ARMS:
                run = self._run(arm, seed)
                labels = {"corpus": corpus, "model": arm, "seed": seed}
                trained.append(
                    StudyStep(f"{corpus}/{run.name}/seed-{seed}", TrainAndScore(run, rows=self.rows), labels)
                )
        first = {step.labels["model"]: step.name for step in trained if step.labels["seed"] == 0}
        sampling = TimeSampling(
            first, judge=AR, steps=self.sampling_steps, texts=self.texts, rounds=self.sampling_rounds
        )
        return [
            *trained,
            StudyStep(
                f"{corpus}/time-training", TimeTraining(self._timed(), rounds=self.rounds), {"timed": "training"}
            ),
            StudyStep(f"{corpus}/time-sampling", sampling, {"timed": "sampling"}, needs=tuple(first.values())),
        ]

    def _timed(self) -> dict[str, Run]:
        """The three models, ADLM that hands over logits as published, and reference implementations of both ADLMs."""
        runs = {arm: self._run(arm, 0) for arm in ARMS}
        anchored = runs[ADLM]
        published = replace(anchored, network=anchored.network.variant(hand_over=Logits()))
        both = {ADLM: anchored} if published == anchored else {ADLM: anchored, LOGITS: published}
        return runs | both | {f"{name}{_REFERENCE}": _reference(run) for name, run in both.items()}

    @property
    def _corpus(self) -> str:
        return self.corpus or settings.default_corpus(self.scale)

    def _run(self, arm: str, seed: int) -> Run:
        return settings.study_run(self.scale, self._corpus, ARMS[arm], seed=seed, steps=self.training_steps or None)

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        trained = [outcome for outcome in outcomes if "model" in outcome.labels]
        timed = {outcome.labels["timed"]: outcome.result for outcome in outcomes if "timed" in outcome.labels}
        steps = timed.get("training")
        sections: list[Section] = []
        if steps:
            sections += [_steps_table(steps), _reference_table(steps)]
        needed = needs(trained, steps)
        if trained:
            sections += [needed_table(needed), *curves_over_cost(trained, steps)]
        if sampling := timed.get("sampling"):
            sections += [_sampling_table(sampling), _speed_chart(sampling), _quality_chart(sampling)]
        found = [*_step_words(steps), *needed_words(needed), *_sampling_words(timed.get("sampling"))]
        return ReportPage("What anchoring costs", " ".join([self.question, *found]), sections)


def _reference(run: Run) -> Run:
    objective = run.objective
    assert isinstance(objective, Anelbo)
    values = {field.name: getattr(objective, field.name) for field in fields(objective)}
    return replace(run, name=f"{run.name}-reference", objective=ReferenceAnelbo(**values))


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """The median over rounds of the ratio within a round."""
    return median(x / y for x, y in zip(a, b, strict=True))


def _steps_table(steps: Result) -> ReportTable:
    base = steps["models"][MDLM]
    rows: list[list[Cell]] = []
    for name, found in steps["models"].items():
        seconds = median(found["seconds"])
        rows.append([
            name,
            f"{found['parameters'] / 1e6:.2f} M",
            1000 * seconds,
            steps["tokens"] / seconds,
            found["work"] / 1e9,
            found["work"] / seconds / 1e9,
            found["bytes"] / 1e6,
            ratio(found["seconds"], base["seconds"]),
        ])  # fmt: skip
    note = (
        f"Medians of {len(base['seconds'])} rounds with all models in turn, {steps['tokens']:,} tokens per step, "
        f"{steps['threads']} threads ({steps['device']}). Memory is the peak of tensors above weights and "
        "optimizer states. FLOP are those of matrix products."
    )
    columns = ("model", "parameters", "ms per step", "tokens per second", "GFLOP per step", "GFLOP per second",
               "memory, MB", "times MDLM's time")  # fmt: skip
    return ReportTable("A step of training", note, columns, rows, ("", "", "low", "high", "low", "high", "low", "low"))


def _reference_table(steps: Result) -> ReportTable:
    rows: list[list[Cell]] = []
    for name, fast in steps["models"].items():
        if reference := steps["models"].get(f"{name}{_REFERENCE}"):
            rows.append([
                name,
                ratio(reference["seconds"], fast["seconds"]),
                reference["work"] / fast["work"],
                reference["bytes"] / fast["bytes"],
                f"{abs(reference['loss'] / fast['loss'] - 1):.1e}",
            ])  # fmt: skip
    note = (
        "The reference computes both heads at every position, keeps tensors [B, L, V] for the backward pass and hands "
        "logits over through W_in as published. Figures are the reference's divided by the library's. Both start from "
        "the same weights and see the same noise, so first losses differ by rounding. Savings grow with the vocabulary."
    )
    columns = ("model", "times the time", "times the FLOP", "times the memory", "first losses differ by")
    return ReportTable("Training against the reference", note, columns, rows)


def _name(method: Result) -> str:
    stale = f", anchors stale by {method['stale']}" if method["stale"] > 1 else ""
    return f"{method['model']}{stale}{_REFERENCE if method['reference'] else ''}"


def _ms(method: Result, sampling: Result) -> float:
    """Milliseconds per text."""
    return float(1000 * median(method["seconds"]) / sampling["texts"])


def _speed(method: Result, sampling: Result) -> float:
    """Tokens per second."""
    return float(sampling["texts"] * sampling["length"] / median(method["seconds"]))


def _sampling_table(sampling: Result) -> ReportTable:
    rows: list[list[Cell]] = []
    reference = {_key(method): method for method in sampling["methods"] if method["reference"]}
    for method in sampling["methods"]:
        if method["reference"]:
            continue
        other = reference.get(_key(method)) if method["stale"] == 1 else None
        rows.append([
            _name(method),
            f"{method['sampler']}, {method['steps']}",
            _ms(method, sampling),
            _speed(method, sampling),
            method["calls"],
            method["anchor_calls"],
            method["work"] / 1e9,
            method["bytes"] / 1e6,
            ratio(other["seconds"], method["seconds"]) if other else None,
            other["work"] / method["work"] if other else None,
            _interval(method["nats"]),
            method["entropy"],
        ])  # fmt: skip
    note = (
        f"{sampling['texts']} texts of {sampling['length']} tokens at a time, {sampling['threads']} threads; medians "
        "of rounds with all methods in turn. Calls are passes of one row, per text. The reference computes every "
        "row and every logit at every step, left to right without a cache. The last columns are quality: nats per "
        f"token under {AR} of the first seed (its own texts included), ± two standard errors over texts, and the "
        "entropy of the tokens of a text, which falls if texts repeat themselves."
    )
    columns = ("model", "sampler, steps", "ms per text", "tokens per second", "calls", "anchor stage's",
               "GFLOP per text", "memory, MB", "reference, times the time", "reference, times the FLOP",
               f"nats by {AR}", "entropy")  # fmt: skip
    best = ("", "", "low", "high", "low", "", "low", "low", "", "", "low", "high")
    return ReportTable("Sampling", note, columns, rows, best)


def _key(method: Result) -> tuple[Any, ...]:
    return method["model"], method["sampler"], method["steps"]


def _interval(found: Mapping[str, float]) -> Interval:
    mean, half = found["mean"], 2 * found["error"]
    return Interval(mean, mean - half, mean + half)


def _ancestral(sampling: Result) -> dict[str, list[Result]]:
    """Methods over steps, by name; anchors that are never stale."""
    found: dict[str, list[Result]] = {}
    for method in sampling["methods"]:
        if method["sampler"] == "ancestral" and method["stale"] == 1:
            found.setdefault(_name(method), []).append(method)
    return found


def _speed_chart(sampling: Result) -> Chart:
    series = [
        Series(name, [method["steps"] for method in methods], [_speed(method, sampling) for method in methods])
        for name, methods in _ancestral(sampling).items()
    ]
    levels = [(_name(m), _speed(m, sampling)) for m in sampling["methods"] if m["sampler"] == "left to right"]
    note = "Ancestral sampling; a row is computed only in steps that write in it. AR has no steps to choose."
    return Chart("Speed of sampling", note, "steps", "tokens per second", series, x_log=True, y_log=True, levels=levels)


def _quality_chart(sampling: Result) -> Chart:
    def points(name: str, methods: Sequence[Result]) -> Series:
        found = [(_ms(m, sampling), _interval(m["nats"])) for m in methods]
        return Series.of(name, found, labels=[str(m["steps"]) for m in methods], line=len(methods) > 1)

    over_steps = {name: each for name, each in _ancestral(sampling).items() if not name.endswith(_REFERENCE)}
    shown = [points(name, methods) for name, methods in over_steps.items()]
    for method in sampling["methods"]:
        if not method["reference"] and (method["sampler"] != "ancestral" or method["stale"] > 1):
            shown.append(points(f"{_name(method)}, {method['sampler']}", [method]))
    note = f"Lower left is better. Quality is nats per token under {AR}; numbers are steps."
    if over_steps.keys() >= {MDLM, ADLM}:
        best = over_steps[MDLM][-1]
        same = reached([[_ms(m, sampling), m["nats"]["mean"]] for m in over_steps[ADLM]], best["nats"]["mean"])
        taken = "does not reach it" if same is None else f"takes {same:.0f} (interpolated)"
        note += (
            f" For the quality that MDLM has at {best['steps']} steps, in {_ms(best, sampling):.0f} ms, ADLM {taken}."
        )
    return Chart("Quality over time of sampling", note, "ms per text", f"nats per token, by {AR}", shown, x_log=True)


def _step_words(steps: Result | None) -> list[str]:
    if not steps:
        return []
    models = steps["models"]
    reference = [
        f"{_times(models, f'{name}{_REFERENCE}', name)} that ({name})" for name in (ADLM, LOGITS) if name in models
    ]
    return [
        f"A training step of ADLM takes {_times(models, ADLM, MDLM)} the time of the MDLM of equal cost; "
        f"the reference implementation {' or '.join(reference)}."
    ]


def _times(models: Mapping[str, Result], slow: str, fast: str) -> str:
    return f"{ratio(models[slow]['seconds'], models[fast]['seconds']):.2f} times"


def _sampling_words(sampling: Result | None) -> list[str]:
    if not sampling:
        return []
    last = {name: methods[-1] for name, methods in _ancestral(sampling).items()}
    last |= {_name(m): m for m in sampling["methods"] if m["sampler"] == "left to right"}
    shown = [name for name in last if not name.endswith(_REFERENCE)]
    speeds = ", ".join(f"{name} {_speed(last[name], sampling):,.0f}" for name in shown)
    reference = ", ".join(f"{_times(last, f'{name}{_REFERENCE}', name)} ({name})" for name in shown)
    return [
        f"Tokens per second, at {last[shown[0]]['steps']} steps: {speeds}. The reference takes {reference} as long."
    ]
