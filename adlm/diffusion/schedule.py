"""Noise schedules: alpha(t), the probability that a token is still visible at time t in [0, 1].

The bound does not depend on the schedule (arXiv 2406.07524, 2406.04329); the variance of its estimate and the
spacing of a sampler's steps do.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.errors import OutOfRange


@dataclass(frozen=True)
class Schedule(ABC):
    """A noise schedule: alpha falls from (nearly) 1 at t = 0 to (nearly) 0 at t = 1."""

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """The probability that a token is still visible at time t."""

    @abstractmethod
    def slope(self, t: Tensor) -> Tensor:
        """The derivative of alpha with respect to t."""

    @abstractmethod
    def inverse(self, alpha: Tensor) -> Tensor:
        """The t at which alpha(t) is `alpha`."""

    def weight(self, t: Tensor) -> Tensor:
        """Weight of the cross-entropy at masked positions in the bound: -alpha' / (1 - alpha)."""
        return -self.slope(t) / (1 - self.alpha(t))


@dataclass(frozen=True)
class LogLinear(Schedule):
    """alpha = 1 - (1 - eps) t, whose weight is 1/t. The name is the field's: sigma = -log alpha."""

    eps: float = 1e-3

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.eps) * t

    def slope(self, t: Tensor) -> Tensor:
        return torch.full_like(t, -(1 - self.eps))

    def inverse(self, alpha: Tensor) -> Tensor:
        return (1 - alpha) / (1 - self.eps)


@dataclass(frozen=True)
class Cosine(Schedule):
    """alpha = eps + (1 - eps) cos(pi t / 2): few masks for a long time."""

    eps: float = 1e-3

    def alpha(self, t: Tensor) -> Tensor:
        return self.eps + (1 - self.eps) * torch.cos(math.pi / 2 * t)

    def slope(self, t: Tensor) -> Tensor:
        return -(1 - self.eps) * math.pi / 2 * torch.sin(math.pi / 2 * t)

    def inverse(self, alpha: Tensor) -> Tensor:
        return torch.acos((alpha - self.eps) / (1 - self.eps)) * 2 / math.pi


@dataclass(frozen=True)
class Polynomial(Schedule):
    """alpha = 1 - (1 - eps) t^power; power 1 is log-linear."""

    power: float = 2.0
    eps: float = 1e-3

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.eps) * t**self.power

    def slope(self, t: Tensor) -> Tensor:
        return -(1 - self.eps) * self.power * t ** (self.power - 1)

    def inverse(self, alpha: Tensor) -> Tensor:
        return ((1 - alpha) / (1 - self.eps)) ** (1 / self.power)


@dataclass(frozen=True)
class Linear(Schedule):
    """sigma = -log alpha grows linearly from `first` to `last`."""

    first: float = 0.0
    last: float = 10.0

    def alpha(self, t: Tensor) -> Tensor:
        return torch.exp(-(self.first + (self.last - self.first) * t))

    def slope(self, t: Tensor) -> Tensor:
        return -(self.last - self.first) * self.alpha(t)

    def inverse(self, alpha: Tensor) -> Tensor:
        return (-torch.log(alpha) - self.first) / (self.last - self.first)


@dataclass(frozen=True)
class Geometric(Schedule):
    """sigma = -log alpha grows geometrically from `first` to `last` (SEDD, arXiv 2310.16834)."""

    first: float = 1e-3
    last: float = 10.0

    def alpha(self, t: Tensor) -> Tensor:
        return torch.exp(-self._sigma(t))

    def slope(self, t: Tensor) -> Tensor:
        return -self._sigma(t) * math.log(self.last / self.first) * self.alpha(t)

    def inverse(self, alpha: Tensor) -> Tensor:
        return torch.log(-torch.log(alpha) / self.first) / math.log(self.last / self.first)

    def _sigma(self, t: Tensor) -> Tensor:
        return self.first * (self.last / self.first) ** t


@dataclass(frozen=True)
class Clipped(Schedule):
    """The masked fraction goes from `low` to `high` only, as block diffusion trains (BD3-LM, arXiv 2503.09573).

    That avoids the variance of very little and very much masking, and leaves out a part of the bound: for training, not
    for reporting.
    """

    low: float = 0.3
    high: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise OutOfRange("low, high", (self.low, self.high), "0 <= low < high <= 1")

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - self.low - (self.high - self.low) * t

    def slope(self, t: Tensor) -> Tensor:
        return torch.full_like(t, self.low - self.high)

    def inverse(self, alpha: Tensor) -> Tensor:
        return (1 - alpha - self.low) / (self.high - self.low)
