"""How much of the gap between masked diffusion and AR do blocks close, at equal training compute?

All arms of one stage have the same layers; anchored arms from scratch have two stages that cost as much per step. Every
arm gets the operations of the MDLM's run: a step in blocks, which reads two copies of each row, costs more, so block
models take fewer steps and read fewer tokens. Arms "from AR" spend a part of their operations on the left-to-right
model they start from, which is the same for all of a seed.

Two arms from AR differ in the anchor loss alone: one is that AR read in blocks, the other is the same layers split into
two stages (`Continued`), which without the loss would be the same network. Two more have the whole AR as their first
stage and one new layer behind a gated hand-over (`Hidden`), with the loss and without.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, cast

from adlm.diffusion.blocks import BlockMasking
from adlm.errors import OutOfRange, UnknownName
from adlm.models.hand_over import Continued, Hidden
from adlm.models.network import NetworkConfig
from adlm.models.one_stage import OneStageConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo
from adlm.objectives.objective import CrossEntropy, MaskedObjective
from adlm.train.init import AnchorFrom, Finetune, Init, SplitFrom
from adlm.train.lr_schedules import StableDecay
from adlm.train.plan import summary
from adlm.train.run import Run
from adlm_studies.experiments import settings
from adlm_studies.experiments.statistics import exponential, interval_note, over_runs
from adlm_studies.experiments.study import StepContext, StepOutcome, Study, StudyStep, check_names
from adlm_studies.experiments.tables import Nats, gap_closed, nats_of, seed_difference, select
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.report.sections import Cell, Chart, ReportPage, ReportTable, Section, Series

SCALES = ("nano", "small")
SIZES = (4, 8, 16)
_ONE, _TWO, _AR = "block-same-cost", "adlm-block", "ar"
_START = "start-ar"
_UPPER = 1  # layers of the denoiser in two stages from AR


class BlockArm(NamedTuple):
    """A model of the study.

    Args:
        kind: of the recipe.
        size: tokens per block; 0: the recipe's own attention.
        start: how it starts from the left-to-right model: the same layers in one stage or split into two, or all of
            them as the first stage before a new layer. "": from random weights.
        anchored: with the anchor loss, if it has two stages.
    """

    kind: str
    size: int = 0
    start: Literal["", "same", "split", "deeper"] = ""
    anchored: bool = True

    @property
    def file_name(self) -> str:
        """The name of its folder."""
        parts = (self.kind, str(self.size or ""), "" if self.anchored else "gamma0", self.start and "from-ar")
        start = "" if self.start in ("", "same") else self.start
        return "-".join(filter(None, (*parts, start)))


# The arms in blocks: what is appended to "b = 4", the recipe, the start and the anchor loss.
FORMS = {
    ", from AR": BlockArm(_ONE, start="same"),
    ", anchored, from AR": BlockArm(_TWO, start="split"),
    "": BlockArm(_ONE),
    ", anchored": BlockArm(_TWO),
}
# For the smallest blocks only: what two stages do without the anchor loss.
MORE_FORMS = {
    ", a layer more, from AR": BlockArm(_TWO, start="deeper", anchored=False),
    ", a layer more, anchored, from AR": BlockArm(_TWO, start="deeper"),
    ", two stages": BlockArm(_TWO, anchored=False),
}
ARMS: dict[str, BlockArm] = {
    "AR": BlockArm(_AR),
    "MDLM": BlockArm("mdlm-same-cost"),
    "ADLM": BlockArm("adlm"),
    **{f"b = {SIZES[0]}{name}": arm._replace(size=SIZES[0]) for name, arm in {**FORMS, **MORE_FORMS}.items()},
    **{f"b = {size}{name}": arm._replace(size=size) for size in SIZES[1:] for name, arm in FORMS.items()},
}
# What is trained first, all seeds of it, before the others in the order above.
FIRST = (
    *("AR", "MDLM", "b = 4, from AR", "b = 4, anchored, from AR", "b = 4"),
    *("b = 4, a layer more, from AR", "b = 4, a layer more, anchored, from AR"),
    *("b = 8, from AR", "b = 8, anchored, from AR", "b = 16, from AR", "b = 16, anchored, from AR"),
)


@dataclass(frozen=True)
class TrainFromLeftToRight(TrainAndScore):
    """Train from the left-to-right model of the step `start`; its tokens and operations are counted too.

    Args:
        source: the run of that step.
    """

    source: Run | None = None

    def execute(self, context: StepContext) -> dict[str, Any]:
        assert self.source is not None
        run = replace(self.run, init=init_from(self.run.network, str(context.folder_of(self.start))))
        result = TrainAndScore(run, self.rows, self.draws, self.others, self.texts).execute(context)
        before = summary(self.source)
        return {**result, "work": result["work"] + before.all_work, "tokens": result["tokens"] + before.all_tokens}


def init_from(network: NetworkConfig, folder: str) -> Init:
    """The left-to-right model in `folder` as the first weights of this network."""
    if network.stages == 1:
        return Finetune(folder)
    hand_over = cast("TwoStageConfig", network).hand_over
    return SplitFrom(folder) if isinstance(hand_over, Continued) else AnchorFrom(folder)


@dataclass(frozen=True)
class BlockSizes(Study):
    """The study of how much of the gap between masked diffusion and AR blocks close at equal compute.

    Args:
        corpus: by its name at the scale.
        arms: by name; all by default.
        training_steps: of the MDLM, whose operations all others get too; the scale's own by default.
        rows_per_step: the scale's own by default.
        ar_fraction: of an arm's operations, what the left-to-right model that it starts from gets.
        rows, draws: held-out rows to score on, and mask counts per row.
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
    draws: int = 8

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
        names = self.arms or (*FIRST, *(name for name in ARMS if name not in FIRST))
        steps = {step.name: step for name in names for seed in range(self.seeds) for step in self._steps(name, seed)}
        return list(steps.values())

    def _steps(self, name: str, seed: int) -> Sequence[StudyStep]:
        """The step of an arm, after that of the left-to-right model that it starts from."""
        arm, budget = ARMS[name], self._budget()
        own, labels = f"{arm.file_name}/seed-{seed}", {"model": name, "seed": seed}
        if not arm.start:
            return [StudyStep(own, TrainAndScore(self._run(arm, seed, budget), self.rows, self.draws, texts=0), labels)]
        source, start = self._run(BlockArm(_AR), seed, budget * self.ar_fraction), f"{_START}/seed-{seed}"
        first = TrainAndScore(source, self.rows, self.draws, texts=0)
        run = self._run(arm, seed, budget * (1 - self.ar_fraction))
        train = TrainFromLeftToRight(run, self.rows, self.draws, texts=0, start=start, source=source)
        return [
            StudyStep(start, first, {"model": _START, "seed": seed}),
            StudyStep(own, train, labels, (start,)),
        ]

    def _budget(self) -> float:
        """Operations of each arm: those of the MDLM."""
        run = self._recipe(ARMS["MDLM"].kind, seed=0)
        return summary(run).work * (self.training_steps or run.train.steps)

    def _recipe(self, kind: str, seed: int) -> Run:
        return settings.study_run(self.scale, self.corpus, kind, seed=seed, rows_per_step=self.rows_per_step)

    def _run(self, arm: BlockArm, seed: int, budget: float) -> Run:
        """With as many steps as the budget allows; a warm-up takes at most a tenth of them."""
        run = self._recipe(_ONE if arm.kind == _AR else arm.kind, seed)
        if arm.start in ("split", "deeper"):
            one = cast("OneStageConfig", self._recipe(_ONE, seed).network)
            run = replace(run, network=_two_stages(one, split=arm.start == "split"))
        if arm.kind == _AR:
            network = run.network.variant(attention="causal", block_size=0, shift=False)
            run = replace(run, network=network, objective=CrossEntropy())
        if arm.size:
            assert isinstance(run.objective, MaskedObjective)
            objective = replace(run.objective, corruption=BlockMasking((arm.size,)))
            run = replace(run, network=run.network.variant(block_size=arm.size), objective=objective)
        if isinstance(run.objective, Anelbo) and not arm.anchored:
            run = replace(run, objective=replace(run.objective, gamma=0.0))
        steps = max(1, round(budget / summary(run).work))
        schedule = run.train.lr_schedule
        assert isinstance(schedule, StableDecay)
        schedule = replace(schedule, warmup=min(schedule.warmup, steps // 10))
        train = replace(run.train, steps=steps, lr_schedule=schedule)
        validation = replace(run.validation, every=steps)
        return replace(run, name=f"{self.corpus}-{arm.file_name}", train=train, validation=validation)

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        known = [name for name in (*ARMS, _START) if select(outcomes, model=name)]
        nats = {name: nats_of(select(outcomes, model=name)) for name in known}
        sections: list[Section] = []
        if known:
            sections = [_table(outcomes, nats, self.corpus), *_chart(nats)]
        lead = " ".join(filter(None, (self.question, _found(nats))))
        return ReportPage("Block diffusion at equal compute", lead, sections)


def _two_stages(one: OneStageConfig, *, split: bool) -> TwoStageConfig:
    """The lower and the upper layers of a network as two stages, or all of them before one more."""
    lower = one.stack.layers - _UPPER if split else one.stack.layers
    anchor = replace(one.stack, layers=lower)
    hand_over = Continued() if split else Hidden()
    return TwoStageConfig(anchor, _UPPER, hand_over, one.tied, one.positions, one.block_size, one.shift)


def _table(outcomes: Sequence[StepOutcome], nats: Nats, corpus: str) -> ReportTable:
    rows: list[list[Cell]] = []
    for arm, by_seed in nats.items():
        first = select(outcomes, model=arm)[0].result
        mean = over_runs(list(by_seed.values()), bound=arm not in ("AR", _START))
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
        "include the work and the tokens of that AR (start-ar). AR is also what blocks of one token are."
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
    told = f"{seeds} seeds" if seeds > 1 else "one seed, so this is only an indication"
    return f"Blocks close this much of the gap from MDLM to AR: {each} ({told})."
