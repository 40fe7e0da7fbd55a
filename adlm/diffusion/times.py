"""How the noise levels of rows are drawn: numbers in [0, 1), one per row, uniform over seeds unless a law is given.

Each is a function of the row's sample id, not of its batch, so ranks and resumed runs see the same. The more evenly
the levels of neighboring rows are spread, the less the loss of a batch varies. The laws of `times_in_training.py`
are for training alone: scores are always taken at uniform levels.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.errors import OutOfRange
from adlm.randomness import Noise

_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Times(ABC):
    """A way to draw noise levels."""

    @abstractmethod
    def levels(self, sample_id: Tensor, noise: Noise) -> Tensor:
        """Noise levels [B] in [0, 1), float64, for sample ids [B]."""

    @property
    def uniform(self) -> bool:
        """Whether levels are uniform over seeds."""
        return True

    @property
    def bounds(self) -> bool:
        """Whether the loss at these levels, so weighted, has the expectation that it has at uniform ones."""
        return True

    def weighted(self, weight: Tensor, level: Tensor) -> Tensor:
        """The weight [B, 1] or [B, L] of a row in the loss, from its weight in the bound and its level [B]."""
        return weight


@dataclass(frozen=True)
class LowDiscrepancyTimes(Times):
    """A Kronecker sequence with the golden ratio: evenly spread over any run of consecutive samples.

    It does for one rank or many what stratifying inside a batch does for one.
    """

    def levels(self, sample_id: Tensor, noise: Noise) -> Tensor:
        offset = float(noise.fork("offset").uniform(torch.zeros(1, dtype=torch.long), 1).numpy()[0, 0])
        return (sample_id.double() * _GOLDEN + offset) % 1.0


@dataclass(frozen=True)
class Antithetic(Times):
    """The published draw, (i + u_i) / group for row i of a group: one level in each of `group` equal parts.

    Args:
        group: rows among which [0, 1) is divided; the global batch, as published.
    """

    group: int

    def __post_init__(self) -> None:
        if self.group < 1:
            raise OutOfRange("group", self.group, "at least 1")

    def levels(self, sample_id: Tensor, noise: Noise) -> Tensor:
        u = noise.fork("within").uniform(sample_id, 1)[:, 0]
        return ((sample_id % self.group) + u) / self.group


@dataclass(frozen=True)
class Independent(Times):
    """Uniform, independent for each row."""

    def levels(self, sample_id: Tensor, noise: Noise) -> Tensor:
        return noise.fork("level").uniform(sample_id, 1)[:, 0]
