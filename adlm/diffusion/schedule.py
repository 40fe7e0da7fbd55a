"""Noise schedules: alpha(t), the chance that a token is still visible at time t in [0, 1]."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Schedule(ABC):
    """alpha falls from 1 at t = 0 to (nearly) 0 at t = 1."""

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor: ...

    @abstractmethod
    def slope(self, t: Tensor) -> Tensor:
        """d alpha / dt."""

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
        return -(1 - self.eps) + 0 * t
