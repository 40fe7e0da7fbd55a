"""Noise levels that favor the middle: masked models learn most where neither little nor much is masked.

They are for training: validation and scores take uniform levels whatever a run was trained with.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from adlm.diffusion.times import LowDiscrepancyTimes, Times
from adlm.errors import ConfigError, OutOfRange
from adlm.randomness import Noise

Weighting = Literal["bound", "time", "none"]


@dataclass(frozen=True)
class ShapedTimes(Times, ABC):
    """Levels with a density p on [0, 1), which keep the even spread of the uniform levels that they are made from.

    Args:
        times: the uniform levels.
        weighting: what a masked token weighs. time: as in the bound, 1 / t, so that the loss favors these levels.
            none: the same at every level. bound: 1 / (t p(t)), so that the loss is still the bound in expectation, and
            only its variance changes.
    """

    times: Times = field(default_factory=LowDiscrepancyTimes, kw_only=True)
    weighting: Weighting = field(default="time", kw_only=True)

    def __post_init__(self) -> None:
        if self.weighting not in get_args(Weighting):
            raise OutOfRange("weighting", self.weighting, " or ".join(get_args(Weighting)))
        if not self.times.uniform:
            raise ConfigError("a distribution of levels is made from uniform times", subject="times")

    @property
    def uniform(self) -> bool:
        return False

    @property
    def bounds(self) -> bool:
        return self.weighting == "bound"

    def levels(self, sample_id: Tensor, noise: Noise) -> Tensor:
        u = self.times.levels(sample_id, noise)
        return self.quantile(u).clamp(0, 1 - torch.finfo(u.dtype).eps)

    def weighted(self, weight: Tensor, level: Tensor) -> Tensor:
        if self.weighting == "bound":
            return (weight / self.density(level).to(weight.device)[:, None]).to(weight.dtype)
        return weight if self.weighting == "time" else torch.full_like(weight, 1 / self.mean)

    @abstractmethod
    def quantile(self, u: Tensor) -> Tensor:
        """The level below which a fraction u of the levels lie."""

    @abstractmethod
    def density(self, level: Tensor) -> Tensor:
        """p at these levels."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """The mean level: the fraction of a row's tokens that is masked on average."""


@dataclass(frozen=True)
class Bell(ShapedTimes):
    """Levels from a normal distribution around `center`, cut to [0, 1) (arXiv 2605.13026).

    The paper drops the weight 1 / t as well, which is the default here, and stratifies the levels. Shape and width are
    ours.

    Args:
        width: standard deviation of the normal distribution.
    """

    center: float = 0.5
    width: float = 0.2
    weighting: Weighting = field(default="none", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.center <= 1:
            raise OutOfRange("center", self.center, "from 0 to 1")
        if not self.width >= 0.01:
            raise OutOfRange("width", self.width, "at least 0.01")

    @property
    def _ends(self) -> tuple[float, float]:
        """The normal distribution function at 0 and at 1."""
        low, high = ((end - self.center) / self.width / math.sqrt(2) for end in (0, 1))
        return (1 + math.erf(low)) / 2, (1 + math.erf(high)) / 2

    def quantile(self, u: Tensor) -> Tensor:
        low, high = self._ends
        return self.center + self.width * torch.special.ndtri(low + (high - low) * u)

    def density(self, level: Tensor) -> Tensor:
        low, high = self._ends
        z = (level - self.center) / self.width
        return torch.exp(-z.square() / 2) / (math.sqrt(2 * math.pi) * self.width * (high - low))

    @property
    def mean(self) -> float:
        zero, one = self.density(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
        return self.center + self.width**2 * (zero - one)


@dataclass(frozen=True)
class Window(ShapedTimes):
    """Levels uniform from `low` to `high`, with the weight 1 / t as it is (arXiv 2601.22450).

    The paper's windows are 0.45 to 0.55 for likelihoods and 0.5 to 1 for what is written from nothing.
    """

    low: float = 0.45
    high: float = 0.55

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.low < self.high <= 1:
            raise OutOfRange("low, high", (self.low, self.high), "0 <= low < high <= 1")
        if self.weighting == "bound" and (self.low, self.high) != (0, 1):
            raise ConfigError("no weight makes a bound of levels from a window: use time or none", subject="weighting")

    def quantile(self, u: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * u

    def density(self, level: Tensor) -> Tensor:
        inside = (level >= self.low) & (level < self.high)
        return inside.to(level.dtype) / (self.high - self.low)

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2
