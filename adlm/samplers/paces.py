"""How much of an order one step takes. Paces are values."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from adlm.errors import OutOfRange


@dataclass(frozen=True)
class Pace(ABC):
    """The number of blanks that one step takes from an order."""

    reads_entropy: ClassVar[bool] = True  # False: entropies need not be computed

    @abstractmethod
    def count(self, view: "Ranked") -> Tensor:
        """The number of blanks [B] to take from each row; at least one is taken."""


class Ranked(NamedTuple):
    """The blanks of each row from the best to the worst: score and entropy [B, L] (-inf and inf behind them; inf
    everywhere for a pace that does not read it), how many there are [B], how many there were at the start [B], and the
    step's number."""

    score: Tensor
    entropy: Tensor
    left: Tensor
    at_first: Tensor
    step: int


@dataclass(frozen=True)
class PerStep(Pace):
    """Takes the best `k` blanks."""

    reads_entropy: ClassVar[bool] = False
    k: int = 1

    def __post_init__(self) -> None:
        if self.k < 1:
            raise OutOfRange("tokens_per_step", self.k, "at least 1")

    def count(self, view: Ranked) -> Tensor:
        return torch.full_like(view.left, self.k)


@dataclass(frozen=True)
class InSteps(Pace):
    """Takes a row in `steps` equal parts, the larger ones first."""

    reads_entropy: ClassVar[bool] = False
    steps: int = 64

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise OutOfRange("steps", self.steps, "at least 1")

    def count(self, view: Ranked) -> Tensor:
        return view.at_first // self.steps + (view.step < view.at_first % self.steps).long()


@dataclass(frozen=True)
class Above(Pace):
    """Takes all blanks with at least this score (Fast-dLLM, arXiv 2505.22618: confidence 0.9)."""

    reads_entropy: ClassVar[bool] = False
    score: float = 0.9

    def count(self, view: Ranked) -> Tensor:
        return (view.score >= self.score).sum(-1)


@dataclass(frozen=True)
class EntropyBound(Pace):
    """Takes as many blanks as keep the sum of their entropies, less the largest of them, within `gamma` nats.

    That sum bounds what is lost by drawing them independently (EB-Sampler, arXiv 2505.24857).
    """

    gamma: float = 0.1

    def __post_init__(self) -> None:
        if not self.gamma >= 0:
            raise OutOfRange("gamma", self.gamma, "at least 0 nats")

    def count(self, view: Ranked) -> Tensor:
        within = view.entropy.cumsum(-1) - view.entropy.cummax(-1).values <= self.gamma
        # inf - inf behind the blanks is nan, which is not within.
        return within.long().cumprod(-1).sum(-1)
