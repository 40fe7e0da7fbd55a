"""A run as a value: everything that decides which weights come out, and nothing that does not.

Where it writes, on how many processes it runs, who watches: those are arguments of `fit`. So the same run on one
process or eight, stopped or not, is the same `Run`.
"""

from dataclasses import dataclass, field

from adlm.data.config import DataConfig
from adlm.errors import ConfigError
from adlm.models.network import NetworkConfig
from adlm.objectives.objective import Objective
from adlm.train.init import Init, RandomInit
from adlm.train.lora import Lora
from adlm.train.lr_schedules import LRSchedule, StableDecay
from adlm.train.optimizer import Muon, OptimizerConfig


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ConfigError(f"asked for {name}={value}", f"fewer than {least}", f"give {least} or more")


@dataclass(frozen=True)
class TrainConfig:
    """How long and how.

    Args:
        tokens_per_step: over all processes: rows times their length.
        micro_batch_size: rows that a process computes at a time; gradients are added up over as many as `tokens` takes.
        ema_decay: decay of the averaged weights that are kept; 0 keeps the last ones.
        bf16: matrix products in bfloat16 where the device is fast at it.
        compile: torch.compile the blocks.
        recompute: store one activation per block and compute the rest again: less memory, a third more work.
        freeze: parts that do not learn: a stage (anchor, denoiser) or the beginning of parameters' names.
    """

    steps: int = 1000
    tokens_per_step: int = 1024
    micro_batch_size: int = 16
    optimizer: OptimizerConfig = field(default_factory=Muon)
    lr_schedule: LRSchedule = field(default_factory=StableDecay)
    grad_clip: float = 1.0
    ema_decay: float = 0.0
    bf16: bool = True
    compile: bool = False
    activation_checkpointing: bool = False
    freeze: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least(1, steps=self.steps, tokens_per_step=self.tokens_per_step, micro_batch_size=self.micro_batch_size)
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"asked for the seed {self.seed}", "below 0, or of more than 63 bits", "give 0 or more")
        if not self.grad_clip > 0:
            raise ConfigError(
                f"asked to clip gradients at {self.grad_clip}", "not above 0", "use 1.0; inf clips nothing"
            )
        if not 0 <= self.ema_decay < 1:
            raise ConfigError(f"asked for averaged weights with decay {self.ema_decay}", "not in [0, 1)", "0 is off")

    def rows(self, length: int) -> int:
        """In a global step, of rows of `length` tokens."""
        rows, rest = divmod(self.tokens_per_step, length)
        if rest or not rows:
            near = max(1, round(self.tokens_per_step / length)) * length
            raise ConfigError(
                f"asked for {self.tokens_per_step:,} tokens per step",
                f"rows have {length} tokens",
                f"set train.tokens_per_step={near}",
            )
        return rows


@dataclass(frozen=True)
class ValidationConfig:
    """How often the clean bound is taken on held-out text, and when to stop by it.

    Args:
        every: steps; 0: only at the end.
        num_rows: of held-out text, the same ones each time; 0: all.
        draws: noise levels per row.
        micro_batch_size: rows that a process computes at a time.
        patience: stop after so many validations without a better bound; 0: never.
    """

    every: int = 500
    num_rows: int = 512
    draws: int = 4
    micro_batch_size: int = 16
    patience: int = 0

    def __post_init__(self) -> None:
        _at_least(0, every=self.every, num_rows=self.num_rows, patience=self.patience)
        _at_least(1, draws=self.draws, micro_batch_size=self.micro_batch_size)


@dataclass(frozen=True)
class CheckpointConfig:
    """How often all that is needed to go on is written, and how many of the last ones are kept."""

    every: int = 500
    keep: int = 2

    def __post_init__(self) -> None:
        _at_least(1, every=self.every)
        _at_least(2, keep=self.keep)  # the newest may be the damaged one


@dataclass(frozen=True)
class Run:
    """A named training run.

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
