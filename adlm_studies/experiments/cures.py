"""Which of the published cheap cures make masked models learn faster at this size?

Every arm is the MDLM with one thing changed in its training, and reads as many tokens: where a row is read twice, a
step has half as many rows. All are scored by the same clean bound, under the same noise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import Corruption, CountMasking
from adlm.diffusion.masks_in_training import ConfidenceMasking, LeftToRightMasking, MirrorMasking
from adlm.diffusion.times_in_training import Bell, Window
from adlm.errors import OutOfRange
from adlm.objectives.nelbo import Nelbo
from adlm.train.run import Run
from adlm_studies.experiments import settings
from adlm_studies.experiments.statistics import interval_note, over_runs, significant
from adlm_studies.experiments.study import StepOutcome, Study, StudyStep, check_names
from adlm_studies.experiments.tables import nats_of, seed_difference, select
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.report.sections import Cell, Interval, ReportPage, ReportTable, Section

_BASE = "MDLM"


def _masked_by(corruption: Corruption) -> Callable[[Run], Run]:
    def change(run: Run) -> Run:
        train = replace(run.train, tokens_per_step=run.train.tokens_per_step // corruption.copies)
        return replace(run, objective=Nelbo(corruption), train=train)

    return change


def _embedding_lr(run: Run) -> Run:
    optimizer = replace(run.train.optimizer, embedding_lr=1e-2)
    return replace(run, train=replace(run.train, optimizer=optimizer))


def _shifted(*sizes: int) -> Callable[[Run], Run]:
    def change(run: Run) -> Run:
        network = run.network.variant(shift=True, input_reinjection=0)
        return replace(run, network=network, objective=Nelbo(BlockMasking(sizes)))

    return change


# By the name in tables: the name of the folder, the paper, and what is changed in the run.
ARMS: dict[str, tuple[str, str, Callable[[Run], Run] | None]] = {
    _BASE: ("mdlm", "2406.07524", None),
    "bell": ("bell", "2605.13026", _masked_by(CountMasking(times=Bell()))),
    "bell, corrected": ("bell-bound", "", _masked_by(CountMasking(times=Bell(weighting="bound")))),
    "uniform, unweighted": ("unweighted", "", _masked_by(CountMasking(times=Window(0.0, 1.0, weighting="none")))),
    "window": ("window", "2601.22450", _masked_by(CountMasking(times=Window()))),
    "10 % left to right": ("left-to-right", "2506.19935", _masked_by(LeftToRightMasking())),
    "mirror masks": ("mirror", "2511.18159", _masked_by(MirrorMasking())),
    "half by confidence": ("confidence", "2602.10314", _masked_by(ConfidenceMasking())),
    "embedding rate 1e-2": ("embedding-lr", "", _embedding_lr),
    "shifted, read once": ("shifted", "", _shifted(0)),
    "shifted, half AR": ("shifted-ar", "2512.14549", _shifted(1, 0)),
}


@dataclass(frozen=True)
class Cures(Study):
    """Args:
    corpora: by their names at the scale.
    arms: by name; all by default. MDLM is always among them.
    training_steps, rows_per_step: the scale's own by default.
    rows: held-out rows to score on.
    """

    name: ClassVar[str] = "cures"
    question: ClassVar[str] = "Which published cures for slow masked training lower the bound at equal tokens?"

    corpora: tuple[str, ...] = ("stories", "kjv")
    arms: tuple[str, ...] = ()
    training_steps: int = 0
    rows_per_step: int = 0
    rows: int = 400

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("arm of the study", self.arms, ARMS)
        check_names(f"corpus at {self.scale} scale", self.corpora, settings.corpora(self.scale))
        if self.rows_per_step < 0 or self.rows_per_step % 2:
            raise OutOfRange("rows_per_step", self.rows_per_step, "even, or 0 for the scale's own")

    def steps(self) -> Sequence[StudyStep]:
        names = dict.fromkeys((_BASE, *(self.arms or ARMS)))
        return [
            StudyStep(
                f"{corpus}/{ARMS[arm][0]}/seed-{seed}",
                TrainAndScore(self._run(corpus, arm, seed), rows=self.rows, texts=0),
                {"corpus": corpus, "model": arm, "seed": seed},
            )
            for corpus in self.corpora
            for seed in range(self.seeds)
            for arm in names
        ]

    def _run(self, corpus: str, arm: str, seed: int) -> Run:
        folder, _, change = ARMS[arm]
        steps, rows = self.training_steps, self.rows_per_step
        run = settings.study_run(self.scale, corpus, "mdlm", seed=seed, steps=steps, rows_per_step=rows)
        # One type for all arms: what `auto` measures on a busy machine may differ from run to run.
        run = replace(run, name=f"{corpus}-{folder}", train=replace(run.train, precision="float32"))
        return run if change is None else change(run)

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        found = dict.fromkeys(outcome.labels["corpus"] for outcome in outcomes)
        sections: list[Section] = [_table(corpus, select(outcomes, corpus=corpus)) for corpus in found]
        lead = " ".join([self.question, *(_found(corpus, select(outcomes, corpus=corpus)) for corpus in found)])
        return ReportPage("Cures for slow masked training", lead, sections)


def _differences(outcomes: Sequence[StepOutcome]) -> dict[str, Interval | None]:
    """Nats per token of every arm that there is, less those of MDLM."""
    nats = {arm: nats_of(found) for arm in ARMS if (found := select(outcomes, model=arm))}
    return {arm: seed_difference(nats, arm, _BASE) for arm in nats}


def _found(corpus: str, outcomes: Sequence[StepOutcome]) -> str:
    """Which arms are surely below MDLM, and which surely above."""
    gaps = {arm: gap for arm, gap in _differences(outcomes).items() if gap is not None and gap.runs > 1}
    if not gaps:
        return f"On {corpus} only one seed is finished, which is only an indication."
    told = []
    for word, sign in (("lower", -1), ("higher", 1)):
        sure = [f"{arm} ({gap})" for arm, gap in gaps.items() if significant(gap) and gap.value * sign > 0]
        told.append(f"significantly {word}: {', '.join(sure) or 'none'}")
    return f"On {corpus}, nats per token against {_BASE}, {'; '.join(told)}."


def _table(corpus: str, outcomes: Sequence[StepOutcome]) -> ReportTable:
    rows: list[list[Cell]] = []
    differences = _differences(outcomes)
    for arm, difference in differences.items():
        here = select(outcomes, model=arm)
        nats = nats_of(here)
        rows.append([
            arm,
            ARMS[arm][1],
            len(nats),
            f"{here[0].result['work'] / 1e12:.3g}",
            over_runs(list(nats.values()), bound=True),
            None if arm == _BASE else difference,
        ])  # fmt: skip
    columns = ("training", "arXiv", "seeds", "training work, TFLOP", "nats per token", f"nats against {_BASE}")
    seeds = max(len(select(outcomes, model=arm)) for arm in differences)
    tokens = max(outcome.result["tokens"] for outcome in outcomes)  # in pairs of masks, half of what is read
    note = (
        f"Held-out text of {corpus}, the same rows and noise for all. {interval_note(seeds)}; "
        f"differences are within a seed. ≤ marks a bound. Every model reads {tokens / 1e6:.2f} M tokens. Work "
        "does not include the passes that choose masks."
    )
    return ReportTable(f"Held-out bound on {corpus}", note, columns, rows, ("", "", "", "", "low", "low"))
