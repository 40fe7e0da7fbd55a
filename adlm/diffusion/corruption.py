"""The forward process: which tokens are masked, and what each row's masked positions weigh in the bound.

A row's noise is a function of its draw number, so it does not depend on the batch around it. Times are spread
evenly over any run of consecutive draws (a Kronecker sequence with the golden ratio), which does for one
rank or many what stratifying inside a batch does for one.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from adlm.diffusion.schedule import LogLinear, Schedule
from adlm.randomness import Noise
from adlm.types import Batch, Corrupted

_GOLDEN = 0.6180339887498949


def spread(draw: Tensor, noise: Noise) -> Tensor:
    """Numbers in [0, 1), one a draw, evenly spread over consecutive draws and uniform over seeds: [B] float64."""
    offset = noise.fork("offset").uniform(torch.zeros(1, dtype=torch.long), 1).item()
    return (draw.double() * _GOLDEN + offset) % 1.0


@dataclass(frozen=True)
class Corruption(ABC):
    """x_0 -> x_t. Only positions that are scored are ever masked."""

    @abstractmethod
    def __call__(self, batch: Batch, mask_id: int, noise: Noise) -> Corrupted: ...


@dataclass(frozen=True)
class UniformMasking(Corruption):
    """The published process: draw t, mask every token independently with chance 1 - alpha(t).

    Args:
        first: the smallest t drawn.
    """

    schedule: Schedule = field(default_factory=LogLinear)
    first: float = 1e-3

    def __call__(self, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        t = self.first + (1 - self.first) * spread(batch.draw, noise.fork("time"))
        u = noise.fork("mask").uniform(batch.draw, batch.tokens.shape[1])
        masked = (u < 1 - self.schedule.alpha(t)[:, None]) & batch.scored
        return Corrupted(
            batch.tokens, batch.tokens.masked_fill(masked, mask_id), t.float(), masked, self.schedule.weight(t).float()
        )


@dataclass(frozen=True)
class CountMasking(Corruption):
    """Draw k uniformly from 1..n of a row's n scored tokens and mask a random k of them, weight n / k.

    The same bound as uniform masking with the log-linear schedule (any-order chain rule), with less variance:
    the number of masked tokens does not fluctuate around its mean.
    """

    def __call__(self, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        return self.at(spread(batch.draw, noise.fork("time")), batch, mask_id, noise)

    def at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        """With k = floor(level * n) + 1 for levels [B] in [0, 1)."""
        scored = batch.scored
        n = scored.sum(-1)
        k = (level.to(n.device) * n).long().clamp_max(n - 1) + 1
        u = noise.fork("mask").uniform(batch.draw, batch.tokens.shape[1]).masked_fill(~scored, 2.0)
        masked = (u.argsort(-1).argsort(-1) < k[:, None]) & scored
        t = (k / n.clamp_min(1)).float()
        weight = (n / k.clamp_min(1)).float()
        return Corrupted(batch.tokens, batch.tokens.masked_fill(masked, mask_id), t, masked, weight)
