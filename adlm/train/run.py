"""A run as a value: everything that decides which weights come out, and nothing that does not.

Folder, device, callbacks and `FitOptions` are arguments of `fit`. So a run on one process or eight, interrupted or
not, is the same `Run`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from adlm.data.table import DataConfig
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, OutOfRange
from adlm.models.language_model import LanguageModel
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.objectives.objective import Objective
from adlm.train.execution import Precision
from adlm.train.init import Init, RandomInit
from adlm.train.lora import Lora, freeze, train_adapters_only
from adlm.train.lr_schedules import LRSchedule, StableDecay
from adlm.train.optimizers import Muon, OptimizerConfig


def _at_least(least: int, part: str, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise OutOfRange(f"{part}.{name}", value, f"at least {least}")


@dataclass(frozen=True)
class TrainConfig:
    """Length, batch size and optimization of a run.

    Args:
        tokens_per_step: over all processes: rows times their length.
        micro_batch_size: rows that a process computes at a time; gradients accumulate until `tokens_per_step`.
        grad_clip: largest gradient norm; inf clips nothing.
        ema_decay: decay of the averaged weights that are kept; 0 keeps the last ones.
        precision: type of matrix products: float32, bfloat16, or auto for what is faster on the device at this size.
        compile: torch.compile the blocks.
        activation_checkpointing: store one activation per block and recompute the rest: less memory, a third more work.
        freeze: parts that are not trained: a stage (anchor, denoiser) or a prefix of parameter names.
    """

    steps: int = 1000
    tokens_per_step: int = 1024
    micro_batch_size: int = 16
    optimizer: OptimizerConfig = field(default_factory=Muon)
    lr_schedule: LRSchedule = field(default_factory=StableDecay)
    grad_clip: float = 1.0
    ema_decay: float = 0.0
    precision: Precision = "auto"
    compile: bool = False
    activation_checkpointing: bool = False
    freeze: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least(1, "train", steps=self.steps, tokens_per_step=self.tokens_per_step)
        _at_least(1, "train", micro_batch_size=self.micro_batch_size)
        if not 0 <= self.seed < 1 << 63:
            raise OutOfRange("train.seed", self.seed, "at least 0 and below 2^63")
        if not self.grad_clip > 0:
            raise OutOfRange("train.grad_clip", self.grad_clip, "positive; inf clips nothing")
        if self.precision not in get_args(Precision):
            raise OutOfRange("train.precision", self.precision, " or ".join(get_args(Precision)))
        if not 0 <= self.ema_decay < 1:
            raise OutOfRange("train.ema_decay", self.ema_decay, "in [0, 1); 0 is off")

    def rows(self, length: int) -> int:
        """Rows of `length` tokens in a global step."""
        rows, rest = divmod(self.tokens_per_step, length)
        if rest or not rows:
            near = max(1, round(self.tokens_per_step / length)) * length
            raise ConfigError(
                f"train.tokens_per_step must be a multiple of the row length {length}, got {self.tokens_per_step:,}",
                fix=f"set train.tokens_per_step={near}",
                subject="train.tokens_per_step",
            )
        return rows


@dataclass(frozen=True)
class ValidationConfig:
    """How often the clean bound is measured on held-out text, and when to stop early.

    Args:
        every: steps between validations; 0: only at the end.
        num_rows: rows of held-out text, the same ones each time; 0: all.
        draws: noise levels per row.
        micro_batch_size: rows that a process computes at a time.
        patience: stop after this many validations without a better bound; 0: never.
    """

    every: int = 500
    num_rows: int = 512
    draws: int = 4
    micro_batch_size: int = 16
    patience: int = 0

    def __post_init__(self) -> None:
        _at_least(0, "validation", every=self.every, num_rows=self.num_rows, patience=self.patience)
        _at_least(1, "validation", draws=self.draws, micro_batch_size=self.micro_batch_size)


@dataclass(frozen=True)
class CheckpointConfig:
    """How often a checkpoint is written, and how many of the last ones are kept."""

    every: int = 500
    keep: int = 2

    def __post_init__(self) -> None:
        _at_least(1, "checkpoint", every=self.every)
        _at_least(2, "checkpoint", keep=self.keep)  # the newest may be the damaged one


@dataclass(frozen=True)
class Run:
    """A named training run: everything that determines the trained weights.

    Args:
        imports: modules that register classes which the run names; `--import` adds them.
    """

    name: str
    data: DataConfig
    network: NetworkConfig
    objective: Objective
    train: TrainConfig = field(default_factory=TrainConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    init: Init = field(default_factory=RandomInit)
    adapters: Lora | None = None
    imports: tuple[str, ...] = ()

    def build_model(self, vocabulary: Vocabulary, tokenizer: Tokenizer | None = None) -> LanguageModel:
        """The network with its adapters and frozen parts.

        Args:
            tokenizer: of the data; without it the initial weights of `init` are left out.
        """
        model = self.network.build(vocabulary)
        if tokenizer is not None:
            self.init.apply(model, tokenizer)
        if any(stack.adapter_rank for stack in self.network.stacks):
            train_adapters_only(model)
        if self.adapters is not None:
            self.adapters.apply(model)
        freeze(model, self.train.freeze)
        return model


@dataclass(frozen=True)
class FitOptions:
    """How a run is carried out; nothing here changes the weights of a healthy run.

    Args:
        shard: with several processes: shard weights, gradients and optimizer states (FSDP2) instead of replicating
            them (DDP).
        resume: auto resumes from the newest complete checkpoint; never starts again and replaces what is there.
        allow_change: resume although parts of the run have changed, if they may.
        on_nonfinite: stop before a step whose loss or gradient is not finite, or skip it and count.
        cache: where prepared data is kept; the user's cache by default.
        workers: processes that read data ahead, per training process.
    """

    shard: bool = False
    resume: Literal["auto", "never"] = "auto"
    allow_change: bool = False
    on_nonfinite: Literal["stop", "skip"] = "stop"
    cache: Path | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        for name, known in (("resume", ("auto", "never")), ("on_nonfinite", ("stop", "skip"))):
            if getattr(self, name) not in known:
                raise OutOfRange(name, getattr(self, name), " or ".join(known))
        if self.workers < 0:
            raise OutOfRange("workers", self.workers, "at least 0")
