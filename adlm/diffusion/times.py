"""How the noise levels of rows are drawn: numbers in [0, 1), one a row, uniform over seeds.

Each is a function of the row's draw number, not of its batch, so ranks and resumed runs see the same. The less
the levels of neighbouring rows repeat each other, the less the loss of a batch varies.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.errors import ConfigError
from adlm.randomness import Noise

_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Times(ABC):
    @abstractmethod
    def levels(self, draw: Tensor, noise: Noise) -> Tensor:
        """[B] float64 in [0, 1) for draw numbers [B]."""


@dataclass(frozen=True)
class LowDiscrepancyTimes(Times):
    """A Kronecker sequence with the golden ratio: evenly spread over any run of consecutive draws.

    It does for one rank or many what stratifying inside a batch does for one.
    """

    def levels(self, draw: Tensor, noise: Noise) -> Tensor:
        offset = noise.fork("offset").uniform(torch.zeros(1, dtype=torch.long), 1).item()
        return (draw.double() * _GOLDEN + offset) % 1.0


@dataclass(frozen=True)
class Antithetic(Times):
    """The published draw, (i + u_i) / group for row i of a group: one level in each of `group` equal parts.

    Args:
        group: rows that share out [0, 1); the global batch, as published.
    """

    group: int

    def __post_init__(self) -> None:
        if self.group < 1:
            raise ConfigError(f"asked for antithetic times in groups of {self.group}", "fewer than 1", "give 1 or more")

    def levels(self, draw: Tensor, noise: Noise) -> Tensor:
        u = noise.fork("within").uniform(draw, 1)[:, 0]
        return ((draw % self.group) + u) / self.group


@dataclass(frozen=True)
class Independent(Times):
    """Every row by itself, uniform."""

    def levels(self, draw: Tensor, noise: Noise) -> Tensor:
        return noise.fork("level").uniform(draw, 1)[:, 0]
