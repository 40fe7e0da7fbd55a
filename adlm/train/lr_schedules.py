"""Learning-rate schedules: the fraction of the peak learning rate at each step."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from adlm.errors import OutOfRange


@dataclass(frozen=True)
class LRSchedule(ABC):
    """Linear warm-up, then whatever the subclass does.

    Args:
        warmup: steps over which the learning rate rises linearly to its peak.
    """

    warmup: int = 50

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise OutOfRange("lr_schedule.warmup", self.warmup, "at least 0")

    def fraction(self, step: int, steps: int) -> float:
        """The fraction of the peak at step 0 .. steps - 1."""
        rising = (step + 1) / self.warmup if self.warmup else 1.0
        return min(1.0, rising, self._after(step, steps))

    @abstractmethod
    def _after(self, step: int, steps: int) -> float:
        """The fraction without warm-up."""


@dataclass(frozen=True)
class Constant(LRSchedule):
    """Constant after warm-up, as in the published runs (2,500 steps of warm-up)."""

    def _after(self, step: int, steps: int) -> float:
        return 1.0


@dataclass(frozen=True)
class CosineDecay(LRSchedule):
    """Half a cosine from the peak, at the end of warm-up, down to `last` of it."""

    last: float = 0.1

    def _after(self, step: int, steps: int) -> float:
        done = max(0, step - self.warmup) / max(1, steps - self.warmup)
        return self.last + (1 - self.last) * (1 + math.cos(math.pi * min(1.0, done))) / 2


@dataclass(frozen=True)
class StableDecay(LRSchedule):
    """Constant, then linear to zero over the last fraction `decay` of the run."""

    decay: float = 0.4

    def _after(self, step: int, steps: int) -> float:
        return (steps - step) / max(1.0, self.decay * steps)
