"""How many samples does a model need? On processes with a known anchor set, for networks and for the theory's tables.

If every token depends only on d anchors, tables need O(K^L) samples left to right, O(L K^L) in any order and
O(L K^(d + 1)) when anchored (ADLM, arXiv 2505.18456). That counts the entries of tables. Here it is measured, on tables
and on networks: the excess over the exact entropy against the number of training rows, and where it becomes small.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from adlm.anchors.positions import AtPositions
from adlm.data.anchored_process import AnchoredProcess, Placing, at_the_back, at_the_front, spread
from adlm.diffusion.corruption import CountMasking
from adlm.errors import ConfigError
from adlm.models.hand_over import Continued
from adlm.models.io import load_model
from adlm.models.network import NetworkConfig
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.likelihood import table_perplexity
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.train.fit import fit
from adlm.train.lr_schedules import StableDecay
from adlm.train.optimizers import Muon
from adlm.train.plan import summary
from adlm.train.run import CheckpointConfig, FitOptions, Run, TrainConfig, ValidationConfig
from adlm.train.run_folder import BEST, same_run
from adlm_studies.experiments.counting import ANCHORED, ANY_ORDER, CHAIN, anchored_excess, chain_excess
from adlm_studies.experiments.rows_needed import curves_of, lead, sections
from adlm_studies.experiments.study import StepContext, StepOutcome, Study, StudyStep, StudyWork, check_names
from adlm_studies.report.sections import ReportPage

# By the name in tables: the kind of model, and where the anchors stand.
ARMS: dict[str, tuple[str, Placing]] = {
    "AR": ("ar", spread),
    "MDLM": ("mdlm", spread),
    "ADLM": ("adlm", spread),
    "AR, anchors first": ("ar", at_the_front),
    "AR, anchors last": ("ar", at_the_back),
}


class ProcessSize(NamedTuple):
    """The sizes of a scale: the processes, the numbers of training rows, and the networks.

    Args:
        tables: row counts for tables, which are cheaper than networks.
        rows: of a training step, at most.
    """

    values: int
    length: int
    anchors: tuple[int, ...]
    counts: tuple[int, ...]
    tables: tuple[int, ...]
    width: int
    layers: int
    steps: int
    rows: int
    arms: tuple[str, ...]


def _powers(first: int, last: int, by: int = 1) -> tuple[int, ...]:
    """Of two, both ends among them."""
    return tuple(2**i for i in range(first, last + 1, by))


# Masked networks take thousands of steps to find what three anchors of four values say together, so nano has two.
SIZES = {
    "nano": ProcessSize(2, 20, (1, 2, 3), _powers(4, 12, 2), _powers(2, 15), 64, 2, 700, 48, tuple(ARMS)[:3]),
    "small": ProcessSize(4, 16, (1, 2, 3), _powers(5, 15, 2), _powers(2, 17), 128, 4, 4000, 128, tuple(ARMS)),
    "paper": ProcessSize(8, 32, (1, 2, 3, 4), _powers(6, 20, 2), _powers(2, 16), 512, 8, 50_000, 512, tuple(ARMS)),
}


@dataclass(frozen=True)
class TrainOnProcess(StudyWork):
    """Train on some rows of a process until validation no longer improves; score the best weights on others.

    Args:
        draws: mask counts per row, for bounds.
    """

    run: Run
    draws: int = 4

    def execute(self, context: StepContext) -> dict[str, Any]:
        run, process = self.run, self.run.data
        if not isinstance(process, AnchoredProcess):
            raise ConfigError(
                f"the number of samples needed is measured on an AnchoredProcess, got {type(process).__name__}",
                subject="data",
            )
        options = FitOptions(resume="auto" if same_run(context.folder, run) else "never")
        fitted = fit(run, context.folder, options=options, callbacks=[context.callback])
        model, *_ = load_model(context.folder / BEST)
        exact, test = process.exact(), process.rows("test")
        nats = table_perplexity(model, test, draws=self.draws, batch=256).nats_per_row.mean
        # Against the true law on the same rows: most of the randomness of which rows were drawn cancels out.
        true = float(exact.nats(test.values(np.arange(len(test)))).mean())
        shutil.rmtree(context.folder)  # there are hundreds, of seconds each
        return {
            "excess": nats - true,
            "entropy": exact.entropy,
            "dependence": exact.apart - exact.entropy,
            "steps": fitted.steps,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "work": summary(run).work * fitted.steps,
        }


@dataclass(frozen=True)
class FillTables(StudyWork):
    """Fill the theory's tables with the first rows of a process, for each of `counts`.

    Args:
        orders: drawn at random, over which the tables of a diffusion model are averaged.
    """

    process: AnchoredProcess
    counts: tuple[int, ...]
    orders: int = 8

    def execute(self, context: StepContext) -> dict[str, Any]:
        exact, length = self.process.exact(), self.process.length
        rows = self.process.rows("train").values(np.arange(max(self.counts)))
        random = np.random.default_rng(self.process.seed)
        orders = [random.permutation(length).tolist() for _ in range(self.orders)]
        excess: dict[str, list[float]] = {CHAIN: [], ANY_ORDER: [], ANCHORED: []}
        for count in self.counts:
            some = rows[:count]
            excess[CHAIN].append(chain_excess(exact, some, range(length)))
            excess[ANY_ORDER].append(math.fsum(chain_excess(exact, some, order) for order in orders) / len(orders))
            excess[ANCHORED].append(anchored_excess(exact, some, self.process.anchors))
        return {
            "counts": list(self.counts),
            "excess": excess,
            "entropy": exact.entropy,
            "dependence": exact.apart - exact.entropy,
        }


@dataclass(frozen=True)
class SampleComplexity(Study):
    """The study of how many samples a model needs on processes with a known anchor set.

    Args:
        anchors: sizes of the anchor set; the scale's own by default, as what follows.
        counts: training rows for networks.
        tables: training rows for tables.
        arms: networks, by name.
        training_steps: at most.
    """

    name: ClassVar[str] = "sample-complexity"
    question: ClassVar[str] = "Does a model need only as many samples as its tokens have anchors to depend on?"

    anchors: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    tables: tuple[int, ...] = ()
    arms: tuple[str, ...] = ()
    training_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("arm of the study", self.arms, ARMS)

    def steps(self) -> Sequence[StudyStep]:
        return [step for seed in range(self.seeds) for d in self._size.anchors for step in self._steps(d, seed)]

    @property
    def _size(self) -> ProcessSize:
        size = SIZES[self.scale]
        return size._replace(
            anchors=self.anchors or size.anchors,
            counts=self.counts or size.counts,
            tables=self.tables or size.tables,
            arms=self.arms or size.arms,
            steps=self.training_steps or size.steps,
        )

    def _steps(self, d: int, seed: int) -> list[StudyStep]:
        size, labels = self._size, {"anchors": d, "seed": seed}
        process = AnchoredProcess(size.values, size.length, spread(d, size.length), law=seed, seed=seed)
        tables = StudyStep(
            f"tables/anchors-{d}/seed-{seed}", FillTables(process, size.tables), {"model": "tables", **labels}
        )
        networks = []
        for arm in size.arms:
            kind, placing = ARMS[arm]
            placed = replace(process, anchors=placing(d, size.length))
            name = arm.lower().replace(", ", "-").replace(" ", "-")
            for count in size.counts:
                step = f"{name}/anchors-{d}/rows-{count}/seed-{seed}"
                run = _run(step, kind, replace(placed, count=count), size, seed)
                networks.append(StudyStep(step, TrainOnProcess(run), {"model": arm, **labels, "rows": count}))
        return [tables, *networks]

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        curves, values = curves_of(outcomes), self._size.values
        found = lead(curves, values) or self.question
        return ReportPage("How many samples does a model need?", found, sections(curves, values))


def _run(name: str, kind: str, process: AnchoredProcess, size: ProcessSize, seed: int) -> Run:
    """A run like those for a CPU in `recipes/small.py`. The residual stream continues between stages, and the stages of
    ADLM have the layers of the others between them, so that all cost the same but for a norm and anchors' logits.
    """
    stack = StackConfig(size.width, max(1, size.width // 32), size.layers, convolution=5, query_key_norm=True)
    last, masking = max(1, size.layers // 4), CountMasking()
    anchor = replace(stack, layers=size.layers - last)
    rule = AtPositions(process.anchors)
    models: dict[str, tuple[NetworkConfig, Objective]] = {
        "ar": (OneStageConfig(replace(stack, attention="causal"), True, size.length), CrossEntropy()),
        "mdlm": (OneStageConfig(stack, True, size.length), Nelbo(masking)),
        "adlm": (
            TwoStageConfig(anchor, last, Continued(), True, size.length),
            Anelbo(masking, rule, gamma=0.05, masked_only=True),
        ),
    }
    network, objective = models[kind]
    rows, every = min(size.rows, process.count), max(1, size.steps // 25)
    train = TrainConfig(
        steps=size.steps,
        tokens_per_step=rows * size.length,
        micro_batch_size=rows,
        optimizer=Muon(lr=3e-3, matrix_lr=2e-2),
        lr_schedule=StableDecay(every, 0.3),
        seed=seed,
    )
    validation = ValidationConfig(every, num_rows=200, draws=2, micro_batch_size=200, patience=5)
    return Run(name, process, network, objective, train, validation, CheckpointConfig(every=size.steps))
