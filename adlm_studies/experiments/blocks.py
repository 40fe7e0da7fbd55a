"""How much of the gap between masked diffusion and AR do blocks close, at equal training compute?

All arms of one stage have the same layers; anchored arms have two stages that cost as much per step. Every arm gets the
operations of the MDLM's run: a step in blocks, which reads two copies of each row, costs more, so block models take
fewer steps and read fewer tokens. Arms "from AR" spend a part of their operations on the left-to-right model they start
from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from adlm.diffusion.blocks import BlockMasking
from adlm.errors import OutOfRange, UnknownName
from adlm.models.network import NetworkConfig
from adlm.objectives.objective import CrossEntropy, MaskedObjective
from adlm.train.init import AnchorFrom, Finetune
from adlm.train.lr_schedules import StableDecay
from adlm.train.plan import summary
from adlm.train.run import Run
from adlm_studies.experiments import settings
from adlm_studies.experiments.decoding import TimeDecoding, decoding_table
from adlm_studies.experiments.statistics import exponential, interval_note, over_runs
from adlm_studies.experiments.study import StepContext, StepOutcome, Study, StudyStep, check_names
from adlm_studies.experiments.tables import Nats, gap_closed, nats_of, seed_difference, select
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.report.sections import Cell, Chart, ReportPage, ReportTable, Section, Series

SCALES = ("nano", "small")
SIZES = (4, 8, 16)
_DECODING = "decoding"


class BlockArm(NamedTuple):
    """A model of the study.

    Args:
        kind: of the recipe.
        size: tokens per block; 0: the recipe's own attention.
        start: kind of the left-to-right model that it starts from; "" starts from random weights.
    """

    kind: str
    size: int = 0
    start: str = ""

    @property
    def file_name(self) -> str:
        """The name of its folder."""
        size = f"-{self.size}" if self.size else ""
        return f"{self.kind}{size}{'-from-ar' if self.start else ''}"


_ONE, _TWO = "block-same-cost", "adlm-block"
_AR, _AR_ANCHOR = "ar", "ar-anchor"  # with the layers of one stage, and of the anchor stage
# The kinds of arms in blocks: what is appended to "b = 4", the recipe and the start.
FORMS = {
    "": (_ONE, ""),
    ", anchored": (_TWO, ""),
    ", from AR": (_ONE, _AR),
    ", anchored, from AR": (_TWO, _AR_ANCHOR),
}
ARMS: dict[str, BlockArm] = {
    "AR": BlockArm(_AR),
    "MDLM": BlockArm("mdlm-same-cost"),
    "ADLM": BlockArm("adlm"),
    "b = 1": BlockArm(_ONE, 1),
    **{f"b = {size}{name}": BlockArm(kind, size, start) for size in SIZES for name, (kind, start) in FORMS.items()},
}


@dataclass(frozen=True)
class TrainFromLeftToRight(TrainAndScore):
    """Train from the left-to-right model of the step `start`; its tokens and operations are counted too.

    Args:
        source: the run of that step.
    """

    source: Run | None = None

    def execute(self, context: StepContext) -> dict[str, Any]:
        assert self.source is not None
        folder = str(context.folder_of(self.start))
        run = replace(self.run, init=Finetune(folder) if self.run.network.stages == 1 else AnchorFrom(folder))
        result = TrainAndScore(run, self.rows, self.draws, self.others, self.texts).execute(context)
        before = summary(self.source)
        return {**result, "work": result["work"] + before.all_work, "tokens": result["tokens"] + before.all_tokens}


@dataclass(frozen=True)
class BlockSizes(Study):
    """The study of how much of the gap between masked diffusion and AR blocks close at equal compute.

    Args:
        corpus: by its name at the scale.
        arms: by name; all by default.
        training_steps: of the MDLM, whose operations all others get too; the scale's own by default.
        rows_per_step: the scale's own by default.
        ar_fraction: of an arm's operations, what the left-to-right model that it starts from gets.
        rows: held-out rows to score on.
    """

    name: ClassVar[str] = "blocks"
    question: ClassVar[str] = (
        "How much of the gap from MDLM to AR do blocks close at equal compute, and do anchors help?"
    )

    corpus: str = "kjv"
    arms: tuple[str, ...] = ()
    training_steps: int = 0
    rows_per_step: int = 0
    ar_fraction: float = 0.5
    rows: int = 400

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale not in SCALES:
            raise UnknownName("scale", self.scale, SCALES)
        check_names("arm of the study", self.arms, ARMS)
        check_names(f"corpus at {self.scale} scale", (self.corpus,), settings.corpora(self.scale))
        if self.rows_per_step < 0:
            raise OutOfRange("rows_per_step", self.rows_per_step, "at least 1, or 0 for the scale's own")
        if not 0 < self.ar_fraction < 1:
            raise OutOfRange("ar_fraction", self.ar_fraction, "above 0 and below 1")

    def steps(self) -> Sequence[StudyStep]:
        names = self.arms or tuple(ARMS)
        trained = [step for seed in range(self.seeds) for step in self._trained(names, seed)]
        first = {step.labels["model"]: step.name for step in trained if step.labels.get("seed") == 0}
        first = {name: step for name, step in first.items() if name in names}
        return [*trained, StudyStep(_DECODING, TimeDecoding(first), needs=tuple(first.values()))]

    def _trained(self, names: Sequence[str], seed: int) -> list[StudyStep]:
        budget = self._budget()
        found: dict[str, StudyStep] = {}
        for name in names:
            arm = ARMS[name]
            if not arm.start:
                work = TrainAndScore(self._run(arm, seed, budget), rows=self.rows, texts=0)
                found[name] = StudyStep(f"{arm.file_name}/seed-{seed}", work, {"model": name, "seed": seed})
                continue
            # The left-to-right model, once for all block sizes that start from it.
            source = self._run(BlockArm(arm.start), seed, budget * self.ar_fraction)
            start = f"start-{arm.start}/seed-{seed}"
            score_start = TrainAndScore(source, rows=self.rows, texts=0)
            found.setdefault(start, StudyStep(start, score_start, {"model": f"start {arm.start}", "seed": seed}))
            run = self._run(arm, seed, budget * (1 - self.ar_fraction))
            train = TrainFromLeftToRight(run, rows=self.rows, texts=0, start=start, source=source)
            labels = {"model": name, "seed": seed}
            found[name] = StudyStep(f"{arm.file_name}/seed-{seed}", train, labels, (start,))
        return list(found.values())

    def _budget(self) -> float:
        """Operations of each arm: those of the MDLM."""
        run = self._recipe(ARMS["MDLM"].kind, seed=0)
        return summary(run).work * (self.training_steps or run.train.steps)

    def _recipe(self, kind: str, seed: int) -> Run:
        return settings.study_run(self.scale, self.corpus, kind, seed=seed, rows_per_step=self.rows_per_step)

    def _run(self, arm: BlockArm, seed: int, budget: float) -> Run:
        """With as many steps as the budget allows; a warm-up takes at most a tenth of them."""
        if arm.kind in (_AR, _AR_ANCHOR):
            run = self._recipe(_ONE if arm.kind == _AR else _TWO, seed)
            run = replace(run, network=_left_to_right(run.network), objective=CrossEntropy())
        else:
            run = self._recipe(arm.kind, seed)
        if arm.size:
            assert isinstance(run.objective, MaskedObjective)
            objective = replace(run.objective, corruption=BlockMasking((arm.size,)))
            run = replace(run, network=run.network.variant(block_size=arm.size), objective=objective)
        steps = max(1, round(budget / summary(run).work))
        schedule = run.train.lr_schedule
        assert isinstance(schedule, StableDecay)
        schedule = replace(schedule, warmup=min(schedule.warmup, steps // 10))
        train = replace(run.train, steps=steps, lr_schedule=schedule)
        return replace(run, name=f"{self.corpus}-{arm.file_name}", train=train)

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        known = [name for name in ARMS if select(outcomes, model=name)]
        nats = {name: nats_of(select(outcomes, model=name)) for name in known}
        sections: list[Section] = []
        if known:
            sections = [_table(outcomes, nats, self.corpus), *_chart(nats)]
        sections += [decoding_table(outcome.result) for outcome in outcomes if outcome.name == _DECODING]
        lead = " ".join(filter(None, (self.question, _found(nats))))
        return ReportPage("Block diffusion at equal compute", lead, sections)


def _left_to_right(network: NetworkConfig) -> NetworkConfig:
    """The first stage alone, read from left to right."""
    layers = network.layers[:1]
    one = network if network.stages == 1 else network.one_stage()
    return one.variant(layers=layers, attention="causal", block_size=0, shift=False)


def _table(outcomes: Sequence[StepOutcome], nats: Nats, corpus: str) -> ReportTable:
    rows: list[list[Cell]] = []
    for arm, by_seed in nats.items():
        first = select(outcomes, model=arm)[0].result
        mean = over_runs(list(by_seed.values()), bound=arm not in ("AR", "b = 1"))
        rows.append([
            arm,
            f"{first['parameters'] / 1e6:.2f} M",
            f"{first['work'] / 1e12:.3g}",
            f"{first['tokens'] / 1e6:.2f}",
            mean,
            exponential(mean),
            seed_difference(nats, arm, "MDLM"),
            gap_closed(nats, arm, "MDLM"),
        ])  # fmt: skip
    columns = (
        *("model", "parameters", "training work, TFLOP", "M tokens read", "nats per token", "perplexity"),
        *("nats against MDLM", "of the gap to AR closed, %"),
    )
    seeds = max(len(each) for each in nats.values())
    note = (
        f"Held-out text of {corpus}, the same rows for all. {interval_note(seeds)}; differences are within a seed. ≤ "
        "marks a bound. Work counts matrix products, in blocks of both copies of a row. Figures of models from AR "
        "include the work and the tokens of that AR. Anchored models start from an AR with the layers of their anchor "
        "stage, the others from one with their own layers, so the two starts differ."
    )
    return ReportTable(
        f"Held-out bound on {corpus}", note, columns, rows, ("", "", "", "", "low", "low", "low", "high")
    )


def _chart(nats: Nats) -> list[Section]:
    series = []
    for name in FORMS:
        sizes = [size for size in SIZES if f"b = {size}{name}" in nats]
        points = [(float(size), over_runs(list(nats[f"b = {size}{name}"].values()))) for size in sizes]
        if points:
            series.append(Series.of(name.removeprefix(", ") or "from scratch", points))
    levels = [(arm, over_runs(list(nats[arm].values())).value) for arm in ("AR", "MDLM", "ADLM") if arm in nats]
    if all(len(each.x) < 2 for each in series):
        return []
    note = "Bands are 95 % intervals over seeds."
    axes = "tokens per block", "nats per token"
    return [Chart("Bound over block size", note, *axes, series, x_log=True, levels=levels)]


def _found(nats: Nats) -> str:
    """The fraction of the gap that the smallest blocks close, by form."""
    names = [f"b = {SIZES[0]}{form}" for form in FORMS]
    closed = [(name, gap) for name in names if (gap := gap_closed(nats, name, "MDLM")) is not None]
    if not closed:
        return ""
    each = "; ".join(f"{name}: {gap} %" for name, gap in closed)
    seeds = min(gap.runs for _, gap in closed)
    told = f"{seeds} seeds" if seeds > 1 else "one seed, so this is no more than an indication"
    return f"Blocks close this much of the gap from MDLM to AR: {each} ({told})."
