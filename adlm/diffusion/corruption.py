"""The forward process: which tokens are masked, and the weight of each masked position in the bound.

A row's noise is a function of its sample id, so it does not depend on the batch around it. Only scored positions are
ever masked: padding and given tokens stay.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from adlm.anchors.rules import AnchorRule, RareInSequence, TypeRule
from adlm.diffusion.schedule import LogLinear, Schedule
from adlm.diffusion.times import LowDiscrepancyTimes, Times
from adlm.errors import ConfigError, OutOfRange
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.types import Batch, Corrupted


@dataclass(frozen=True)
class Corruption(ABC):
    """The forward process x_0 -> x_t.

    Args:
        times: how the noise levels of rows are drawn.
    """

    times: Times = field(default_factory=LowDiscrepancyTimes, kw_only=True)

    def __call__(self, batch: Batch, mask_id: int, noise: Noise, progress: float = 1.0) -> Corrupted:
        """Corrupt at levels drawn for the rows; `progress` is the fraction of the run that is done."""
        level = self.times.levels(batch.sample_id, noise.fork("time"))
        corrupted, copies = self.at(level, batch, mask_id, noise), self.copies
        return corrupted._replace(weight=self.times.weighted(copies * corrupted.weight, level.repeat(copies)) / copies)

    @abstractmethod
    def at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        """Corrupt at noise levels [B] in [0, 1), from nearly nothing masked to nearly all."""

    def everything(self, batch: Batch, mask_id: int) -> Corrupted:
        """The batch with every scored token masked."""
        ones = torch.ones(len(batch.tokens), 1, device=batch.tokens.device)
        x_t = batch.tokens.masked_fill(batch.scored, mask_id)
        return Corrupted(batch.tokens, x_t, ones[:, 0], batch.scored, ones)

    @property
    def bounds(self) -> bool:
        """Whether the weighted loss under this corruption bounds the likelihood at uniform levels, in expectation."""
        return True

    @property
    def copies(self) -> int:
        """How often each row is corrupted: `Corrupted` then holds the rows of the batch so many times over."""
        return 1

    def revised(self, corrupted: Corrupted, batch: Batch, model: LanguageModel, noise: Noise) -> Corrupted:
        """What is trained on in place of `corrupted`, if that depends on the model."""
        return corrupted

    def _masked(self, probability: Tensor, batch: Batch, noise: Noise) -> Tensor:
        return (noise.fork("mask").uniform(batch.sample_id, batch.tokens.shape[1]) < probability) & batch.scored


def _check_first(first: float) -> None:
    if not 0 <= first < 1:
        raise OutOfRange("first", first, "at least 0 and below 1")


@dataclass(frozen=True)
class UniformMasking(Corruption):
    """The published process: draw t, mask every token independently with probability 1 - alpha(t).

    Args:
        first: the smallest t drawn.
        steps: times are multiples of 1/steps, and the bound is that of this many reverse steps; 0 is continuous time.
        importance: draw t in proportion to its weight, log(1 - alpha) uniform, so that every row weighs the same.
    """

    schedule: Schedule = field(default_factory=LogLinear)
    first: float = 1e-3
    steps: int = 0
    importance: bool = False

    def __post_init__(self) -> None:
        _check_first(self.first)
        if self.steps < 0:
            raise OutOfRange("steps", self.steps, "at least 1, or 0 for continuous time")
        if self.importance and (self.steps or not self.first > 0):
            raise ConfigError(
                f"importance=True needs first > 0 and steps=0, got first={self.first}, steps={self.steps}",
                subject="importance",
            )
        if self.importance and not self.times.uniform:
            raise ConfigError("importance-sampled times need uniform levels", subject="importance")

    def at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        t, weight = self._weighted_times(level)
        probability = 1 - self.schedule.alpha(t)
        masked = self._masked(probability[:, None], batch, noise)
        x_t = batch.tokens.masked_fill(masked, mask_id)
        return Corrupted(batch.tokens, x_t, t.float(), masked, weight.float()[:, None])

    def _weighted_times(self, level: Tensor) -> tuple[Tensor, Tensor]:
        alpha = self.schedule.alpha
        if self.steps:
            t = (torch.floor(level * self.steps) + 1) / self.steps
            alpha_t, alpha_s = alpha(t), alpha(t - 1 / self.steps)
            return t, self.steps * (alpha_s - alpha_t) / (1 - alpha_t)
        if self.importance:
            # On the CPU, so that no device has to be waited for.
            low, high = (math.log(1 - float(alpha(torch.tensor(t, dtype=level.dtype)))) for t in (self.first, 1.0))
            t = self.schedule.inverse(1 - torch.exp(low + (high - low) * level))
            # weight(t) over the density of t, on the same average over [first, 1] as evenly drawn times.
            return t, torch.full_like(t, (high - low) / (1 - self.first))
        t = self.first + (1 - self.first) * level
        return t, self.schedule.weight(t)


@dataclass(frozen=True)
class CountMasking(Corruption):
    """Draw k uniformly from 1..n of a row's n scored tokens and mask a random k of them, weight n / k.

    The same bound as uniform masking with alpha = 1 - t (any-order chain rule), with less variance: the number of
    masked tokens does not fluctuate around its mean. Given k, the time of that process weighted by 1/t is the
    k-th smallest of n uniform numbers, so time-conditioned models get exactly the right one.
    """

    def at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        """Mask k = floor(level * n) + 1 tokens of each row."""
        scored = batch.scored
        n = scored.sum(-1)
        k = (level.to(n.device) * n).long().clamp_max(n - 1) + 1
        u = self._priorities(batch, noise)
        order = u.argsort(-1)
        masked = (order.argsort(-1) < k[:, None]) & scored
        t = u.gather(-1, order.gather(-1, (k - 1).clamp_min(0)[:, None]))[:, 0].clamp_max(1).float()
        weight = (n / k.clamp_min(1)).float()[:, None]
        return Corrupted(batch.tokens, batch.tokens.masked_fill(masked, mask_id), t, masked, weight)

    def _priorities(self, batch: Batch, noise: Noise) -> Tensor:
        """[B, L]: the scored tokens with the smallest numbers are masked; others have 2."""
        return noise.fork("mask").uniform(batch.sample_id, batch.tokens.shape[1]).masked_fill(~batch.scored, 2.0)


@dataclass(frozen=True)
class AnchoredMasking(Corruption):
    """Anchors vanish later: a token is masked with probability t^power if it is an anchor, otherwise t.

    If the rule depends on the token's type only (`TypeRule`), the state-dependent bound of MD4 holds (arXiv
    2406.04329, section 6): with rates p_v / t for type v and predictions mu, a masked position costs
    (p_x0 * -log mu_x0 + sum_v p_v mu_v - p_x0) / t. Objectives take the p_v from `Corrupted.rates`.
    If the rule looks at the whole row, the mask reveals something about the hidden tokens: a training curriculum, no
    bound.

    Args:
        power: of anchors; 1 is uniform masking.
        first: the smallest t drawn.
    """

    rule: AnchorRule = field(default_factory=RareInSequence)
    power: float = 2.0
    first: float = 1e-3

    def __post_init__(self) -> None:
        _check_first(self.first)
        if not self.power > 0:
            raise OutOfRange("power", self.power, "above 0")

    @property
    def bounds(self) -> bool:
        return isinstance(self.rule, TypeRule)

    def at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        t = self.first + (1 - self.first) * level.to(batch.tokens.device)
        power = torch.where(self.rule.mark(batch), self.power, 1.0)
        masked = self._masked(t[:, None] ** power, batch, noise)
        weight, rates = (1 / t).float()[:, None], None
        if isinstance(self.rule, TypeRule):
            rates = torch.where(self.rule.types_on(t.device), self.power, 1.0)
        else:
            weight = weight * power
        return Corrupted(
            batch.tokens, batch.tokens.masked_fill(masked, mask_id), t.float(), masked, weight.float(), rates
        )
