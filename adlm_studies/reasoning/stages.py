"""Training in stages: one run a stage, each from the model of the stage before, with an optimizer of its own.

FOLDER/stages/0, 1, ...    the runs of all stages but the last
FOLDER                     the last: its model is the result

An interrupted training resumes: a finished stage is recognized by the run stored with its model.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from adlm.anchors.rules import AnchorRule, RareInSequence
from adlm.data.config import Corpus
from adlm.data.packing import Wrapped
from adlm.data.table import DataConfig
from adlm.errors import ConfigError, DataError, OutOfRange, UnknownName
from adlm.models.hub import BOX, find_model, find_transformers_model
from adlm.models.io import CONFIG, WEIGHTS, read_config
from adlm.models.network import NetworkConfig
from adlm.models.sizes import SIZES
from adlm.models.stack import StackConfig
from adlm.models.transformers_causal import TransformersCausalConfig, architecture_of
from adlm.models.transformers_files import MODEL_TYPE
from adlm.objectives.nelbo import Anelbo
from adlm.objectives.objective import Objective
from adlm.recipes.small import cpu_run
from adlm.train.callbacks import Callback, PrintMessages
from adlm.train.curves import DrawCurves
from adlm.train.fit import fit
from adlm.train.init import Finetune, Init, Pretrained, RandomInit
from adlm.train.lr_schedules import Constant, StableDecay
from adlm.train.optimizers import AdamW, Muon
from adlm.train.run import CheckpointConfig, Run, TrainConfig, ValidationConfig
from adlm.train.run_folder import BEST, same_run
from adlm_studies.reasoning.data import WORDS, ReasoningData, ReasoningTable, task_tokenizer, unknown_fraction
from adlm_studies.reasoning.diffusion import DiffusionReasoningData
from adlm_studies.reasoning.methods import Anchored, Chain, Coconut, Implicit, Pause, ReasoningMethod, find_method
from adlm_studies.reasoning.objective import ThoughtCrossEntropy
from adlm_studies.reasoning.problem import Task
from adlm_studies.reasoning.vocabulary import FinetuneWithNewTokens

LEFT_TO_RIGHT, DIFFUSION = ("ar", "a2r"), ("mdlm", "adlm")
STAGES = "stages"
_MOST_UNKNOWN = 0.25  # of the tokens of a task; a few rare words are no harm


@dataclass(frozen=True)
class Epochs:
    """The number of epochs of each stage.

    Args:
        first: epochs of the first stage.
        each: of every stage after it.
        total: of all stages; the last one has what the others leave.
    """

    first: int
    each: int
    total: int

    def __post_init__(self) -> None:
        if min(self.first, self.each, self.total) < 1:
            raise OutOfRange("epochs", (self.first, self.each, self.total), "1 or more each")

    def of(self, stages: int) -> list[int]:
        """Epochs of each of so many stages."""
        before = [self.first, *[self.each] * (stages - 2)] if stages > 1 else []
        return [*before, max(self.each, self.total - sum(before))]


class PublishedCurriculum(NamedTuple):
    """The published settings of a task: its epochs, and methods that differ from their defaults."""

    epochs: Epochs
    methods: tuple[ReasoningMethod, ...]


# ACoT's and Coconut's. Stages are counted in epochs from 0: on GSM8K, 0 is plain steps, 1-3 one anchor, 4-6 two.
_GSM8K = PublishedCurriculum(Epochs(1, 3, 25), (Anchored(2), Coconut(3, 2), Implicit(3), Pause(6)))
_PRONTOQA = PublishedCurriculum(Epochs(5, 5, 50), (Anchored(6), Coconut(6, 1), Implicit(6), Pause(6)))
_PROSQA = PublishedCurriculum(Epochs(5, 5, 50), (Anchored(6, drop_steps=True), Coconut(6, 1), Implicit(6), Pause(6)))
PUBLISHED = {
    "gsm8k": _GSM8K,
    "gsm8k-equations": _GSM8K,
    "arithmetic": _GSM8K,
    "prontoqa": _PRONTOQA,
    "prosqa": _PROSQA,
    "graph": _PROSQA,
}


def method_for(task: str, name: str) -> ReasoningMethod:
    """A method as it is set for a task."""
    kind = find_method(name)
    return next((method for method in PUBLISHED[task].methods if type(method) is kind), kind())


@dataclass(frozen=True)
class Curriculum:
    """Everything that decides a model that reasons left to right.

    Args:
        network: its shape; causal.
        start: where the weights of the first stage come from.
        scale: of the epochs: 0.1 trains a tenth as long. A stage has one step at least.
        batch_size: problems per step.
        train: how, but for steps and tokens, which follow.
        anchor_weight: of what thoughts are to predict.
        gamma, rule: of the first stage's own term, in two-stage models; the rule `Given` has it learn the task's
            important tokens where they are written.
        best: a stage starts from the model of the stage before that validated best, instead of the last; then there is
            a validation an epoch.
        tokenizer, problems, held_out, longest: as in `ReasoningData`.
    """

    task: Task
    method: ReasoningMethod
    network: NetworkConfig
    epochs: Epochs
    init: Init = field(default_factory=RandomInit)
    scale: float = 1.0
    batch_size: int = 128
    train: TrainConfig = field(default_factory=lambda: from_scratch())
    anchor_weight: float = 1.0
    gamma: float = 0.05
    rule: AnchorRule = field(default_factory=RareInSequence)
    best: bool = False
    tokenizer: str = WORDS
    problems: int = 0
    held_out: int = 0
    longest: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf or self.batch_size < 1:
            name = "batch_size" if self.batch_size < 1 else "scale"
            raise OutOfRange(name, getattr(self, name), "1 or more" if name == "batch_size" else "finite and above 0")

    def data(self, stage: int) -> ReasoningData:
        return ReasoningData(self.task, self.method, stage, self.tokenizer, self.problems, self.held_out, self.longest)


def from_scratch(seed: int = 0) -> TrainConfig:
    """Settings for small models with fresh weights."""
    return TrainConfig(micro_batch_size=64, optimizer=Muon(), lr_schedule=StableDecay(warmup=20, decay=0.3), seed=seed)


def pretrained(seed: int = 0) -> TrainConfig:
    """The published settings, for models that have learned before."""
    return TrainConfig(
        micro_batch_size=16, optimizer=AdamW(lr=1e-4, weight_decay=0.01), lr_schedule=Constant(0), seed=seed
    )


class CurriculumStage(NamedTuple):
    """A run and the folder it trains in."""

    folder: Path
    run: Run

    @property
    def finished(self) -> bool:
        """The folder has the model that this very run gives."""
        return (self.folder / WEIGHTS).exists() and same_run(self.folder, self.run)


def curriculum_stages(curriculum: Curriculum, out: Path) -> list[CurriculumStage]:
    """The runs of a curriculum, in order."""
    method, start = curriculum.method, curriculum.init
    epochs = curriculum.epochs.of(method.stages)
    stages: list[CurriculumStage] = []
    for number, count in enumerate(epochs):
        last = number == method.stages - 1
        folder = out if last else out / STAGES / str(number)
        fed = method.thoughts(number) if method.fed else 0
        gamma = curriculum.gamma if curriculum.network.stages == 2 else 0.0
        objective = ThoughtCrossEntropy(fed, curriculum.anchor_weight, gamma, curriculum.rule)
        name = f"{curriculum.task.name}-{method.name}-{number}"
        run = run_on(curriculum.data(number), name, curriculum, objective, start, count)
        stages.append(CurriculumStage(folder, run))
        start = Finetune(str(folder / BEST if curriculum.best else folder))
    return stages


def diffusion_stage(curriculum: Curriculum, out: Path, objective: Objective) -> CurriculumStage:
    """The one run of a diffusion model, as long as all stages of a curriculum together.

    It has a place for an anchor for each thought of the method's last stage, and room for the longest trace.
    """
    method, task = curriculum.method, curriculum.task
    if not isinstance(method, Anchored | Chain):
        raise ConfigError(
            f"a diffusion model cannot be trained by the method {method.name}: use anchored or chain", subject="method"
        )
    if curriculum.longest:
        raise ConfigError(
            "--longest does not apply to a diffusion model, which has room for all problems", subject="longest"
        )
    if curriculum.anchor_weight != 1:
        raise ConfigError(
            f"anchor_weight must be 1 for a diffusion model, got {curriculum.anchor_weight}", subject="anchor_weight"
        )
    if isinstance(objective, Anelbo):
        objective = replace(objective, gamma=curriculum.gamma, rule=curriculum.rule)
    tokenizer = task_tokenizer(task, curriculum.tokenizer, curriculum.problems)
    longest = replace(curriculum.data(0), method=Chain()).table("train", tokenizer, curriculum.problems)
    data = DiffusionReasoningData(
        task,
        method.thoughts(method.stages - 1),
        longest.length - longest.given,
        curriculum.tokenizer,
        curriculum.problems,
        curriculum.held_out,
    )
    epochs = sum(curriculum.epochs.of(method.stages))
    run = run_on(data, f"{task.name}-{method.name}-diffusion", curriculum, objective, curriculum.init, epochs)
    return CurriculumStage(out, run)


def run_on(data: DataConfig, name: str, curriculum: Curriculum, objective: Objective, start: Init, epochs: int) -> Run:
    """A run of this many epochs, scaled, on this data."""
    prepared = data.prepare()
    table = prepared.train
    assert isinstance(table, ReasoningTable)
    if (fraction := unknown_fraction(table, prepared.tokenizer)) > _MOST_UNKNOWN:
        raise DataError(
            f"{fraction:.0%} of the tokens of {table.name} are unknown to the tokenizer; begin with fresh weights, or "
            "with a model of this task",
            subject="tokenizer",
        )
    rows = min(curriculum.batch_size, len(table))
    an_epoch = len(table) / rows
    steps = max(1, round(epochs * curriculum.scale * an_epoch))
    train = replace(
        curriculum.train,
        steps=steps,
        tokens_per_step=rows * table.length,
        micro_batch_size=min(curriculum.train.micro_batch_size, rows),
    )
    every = max(1, round(an_epoch)) if curriculum.best else 0
    draws = 1 if isinstance(objective, ThoughtCrossEntropy) else 4
    validation = ValidationConfig(every=every, num_rows=512, draws=draws, micro_batch_size=train.micro_batch_size)
    return Run(name, data, curriculum.network, objective, train, validation, CheckpointConfig(every=500), start)


class StartingModel(NamedTuple):
    """The model a curriculum starts from. `objective` is a diffusion model's; None if it writes left to right."""

    network: NetworkConfig
    objective: Objective | None
    init: Init
    tokenizer: str


def starting_model(name: str, size: str | StackConfig = "nano") -> StartingModel:
    """A starting model: a kind with fresh weights, or a model of this package or of transformers.

    Args:
        name: ar or a2r, mdlm or adlm; or a folder, or owner/name on the Hub.
        size: of a model with fresh weights, by name or in full.
    """
    if name in (*LEFT_TO_RIGHT, *DIFFUSION):
        network, objective = _fresh(name, size)
        return StartingModel(network, objective if name in DIFFUSION else None, RandomInit(), WORDS)
    if not Path(name).is_dir() and "/" not in name and name != BOX:
        raise UnknownName("base", name, (*LEFT_TO_RIGHT, *DIFFUSION, "FOLDER", "OWNER/NAME"))
    asked = f"cannot start from {name}"
    if name == BOX:
        name = str(find_model(name, revision=None, asked=asked))
    folder = find_transformers_model(name, asked=asked)
    if _is_of_transformers(folder):
        return StartingModel(TransformersCausalConfig(architecture_of(folder)), None, Pretrained(name), name)
    network = read_config(find_model(name, revision=None, asked=asked), asked).network
    kind = "adlm" if network.stages == 2 else "mdlm"
    return StartingModel(
        network, None if network.causal else _fresh(kind, "nano")[1], FinetuneWithNewTokens(name), name
    )


def _fresh(kind: str, size: str | StackConfig) -> tuple[NetworkConfig, Objective]:
    """As the small recipes have it."""
    if isinstance(size, str) and size not in SIZES:
        raise UnknownName("size", size, SIZES)
    stack = SIZES[size] if isinstance(size, str) else size
    # Of the rows only the kind matters here: texts begin at any column, so positions are not learned.
    rows = Corpus("", packing=Wrapped(64))
    run = cpu_run(kind, kind, rows, stack, (stack.layers, stack.layers // 2), steps=1, warmup=0, draws=1)
    return run.network, run.objective


def _is_of_transformers(folder: Path) -> bool:
    """By its config.json; anything wrong with that is reported by the reader of our own models."""
    try:
        kind = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("model_type", MODEL_TYPE)
        return bool(kind != MODEL_TYPE)
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


# (stage, its number, number of stages) -> the callbacks while the stage is trained.
StageCallbacks = Callable[[CurriculumStage, int, int], AbstractContextManager[Callback]]


@contextmanager
def _no_callbacks(stage: CurriculumStage, number: int, count: int) -> Iterator[Callback]:
    yield PrintMessages()


def train_in_stages(
    stages: Sequence[CurriculumStage],
    *,
    device: str = "auto",
    callbacks: StageCallbacks = _no_callbacks,
    curves: bool = True,
) -> Path:
    """Train all stages that are not done, in order; gives the folder of the last.

    Args:
        curves: draw the last run as a picture at its end.
    """
    if not stages:
        raise ConfigError("a curriculum needs at least one stage", subject="stages")
    for number, stage in enumerate(stages):
        if stage.finished:
            continue
        with callbacks(stage, number, len(stages)) as callback:
            drawn = [DrawCurves()] if curves and stage is stages[-1] else []
            fit(stage.run, stage.folder, device=device, callbacks=[callback, *drawn])
    return stages[-1].folder
