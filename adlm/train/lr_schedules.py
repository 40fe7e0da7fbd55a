"""How the learning rate goes over a run: values that give the fraction of the full rate at a step."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from adlm.errors import ConfigError


@dataclass(frozen=True)
class LRSchedule(ABC):
    """Args:
    warmup: steps over which the rate rises linearly to the full one.
    """

    warmup: int = 50

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ConfigError(f"asked for {self.warmup} steps of warm-up", "fewer than 0", "give 0 or more")

    def fraction(self, step: int, steps: int) -> float:
        """Of the full rate at step 0 .. steps - 1."""
        rising = (step + 1) / self.warmup if self.warmup else 1.0
        return min(1.0, rising, self._after(step, steps))

    @abstractmethod
    def _after(self, step: int, steps: int) -> float:
        """The share that warm-up does not decide."""


@dataclass(frozen=True)
class Constant(LRSchedule):
    """The published runs', with 2,500 steps of warm-up."""

    def _after(self, step: int, steps: int) -> float:
        return 1.0


@dataclass(frozen=True)
class CosineDecay(LRSchedule):
    """Half a cosine from the full rate, at the end of warm-up, down to `last` of it."""

    last: float = 0.1

    def _after(self, step: int, steps: int) -> float:
        done = max(0, step - self.warmup) / max(1, steps - self.warmup)
        return self.last + (1 - self.last) * (1 + math.cos(math.pi * min(1.0, done))) / 2


@dataclass(frozen=True)
class StableDecay(LRSchedule):
    """Full until the end comes near, then linearly to zero over the last `decay` of the run."""

    decay: float = 0.4

    def _after(self, step: int, steps: int) -> float:
        return (steps - step) / max(1.0, self.decay * steps)
