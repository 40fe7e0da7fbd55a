"""When to mask a token again: the rules of ReMDM (arXiv 2503.00307) and of discrete flow matching, one posterior.

From time t to the earlier s, a visible token is masked again with probability sigma, and a masked one is revealed with
probability (alpha_s - (1 - sigma) alpha_t) / (1 - alpha_t), so that the fraction of visible tokens is alpha_s
whatever sigma is. It must not exceed sigma_max = min(1, (1 - alpha_s) / alpha_t). A rule says what sigma is.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from adlm.diffusion.schedule import Schedule
from adlm.errors import ConfigError, OutOfRange


class ReverseStep(NamedTuple):
    """A step from alpha_t to alpha_s, with remasking probability sigma: one number, or one per position [B, L]."""

    alpha_t: float
    alpha_s: float
    sigma: float | Tensor = 0.0

    @property
    def reveal(self) -> float | Tensor:
        """The probability that a masked token is revealed."""
        if self.alpha_s >= 1:
            return 1.0
        return (self.alpha_s - (1 - self.sigma) * self.alpha_t) / (1 - self.alpha_t)


class RemaskContext(NamedTuple):
    """The inputs of a rule: alpha before and after the step, the largest sigma, and confidence [B, L].

    Confidence is the probability that each visible token had when it was drawn; inf elsewhere.
    """

    alpha_t: float
    alpha_s: float
    sigma_max: float
    confidence: Tensor


@dataclass(frozen=True)
class RemaskRule(ABC):
    """A rule for remasking tokens."""

    reads_confidence: ClassVar[bool] = True  # False: sigma is the same whatever was written

    def step(self, t: float, s: float, schedule: Schedule, confidence: Tensor) -> ReverseStep:
        """The step from time t to s.

        Args:
            confidence: [B, L], the probability that each visible token had when it was drawn; inf elsewhere.
        """
        alpha_t, alpha_s = _alpha(schedule, t), _alpha(schedule, s)
        most = min(1.0, (1 - alpha_s) / alpha_t) if alpha_t > 0 else 1.0
        return ReverseStep(alpha_t, alpha_s, self.sigma(RemaskContext(alpha_t, alpha_s, most, confidence)))

    @abstractmethod
    def sigma(self, step: RemaskContext) -> float | Tensor:
        """The probability to mask a visible token again, at most sigma_max."""


@dataclass(frozen=True)
class Never(RemaskRule):
    """Never remasks: MDLM's sampler."""

    reads_confidence: ClassVar[bool] = False

    def sigma(self, step: RemaskContext) -> float:
        return 0.0


@dataclass(frozen=True)
class Cap(RemaskRule):
    """Remasks with probability `eta`, or sigma_max if that is less."""

    reads_confidence: ClassVar[bool] = False
    eta: float = 0.02

    def __post_init__(self) -> None:
        _check_fraction("eta", self.eta)

    def sigma(self, step: RemaskContext) -> float:
        return min(self.eta, step.sigma_max)


@dataclass(frozen=True)
class Rescale(RemaskRule):
    """Remasks with probability `eta` times sigma_max."""

    reads_confidence: ClassVar[bool] = False
    eta: float = 0.02

    def __post_init__(self) -> None:
        _check_fraction("eta", self.eta)

    def sigma(self, step: RemaskContext) -> float:
        return self.eta * step.sigma_max


@dataclass(frozen=True)
class ByConfidence(RemaskRule):
    """ReMDM's conf: sigma_max distributed over the visible tokens, most to those drawn with the least confidence.

    Masked tokens get none of it, so that they come at MDLM's pace and up to one token per row is missing from
    alpha_s, as published; the last step brings them all.
    """

    def sigma(self, step: RemaskContext) -> Tensor:
        # Where nothing is visible the softmax of -inf alone has no value.
        return step.sigma_max * torch.nan_to_num((-step.confidence).softmax(-1))


@dataclass(frozen=True)
class ForwardBackward(RemaskRule):
    """Remasks as many tokens as one step forward in time would mask: (alpha_s - alpha_t) / alpha_t."""

    reads_confidence: ClassVar[bool] = False

    def sigma(self, step: RemaskContext) -> float:
        return min(step.sigma_max, (step.alpha_s - step.alpha_t) / step.alpha_t) if step.alpha_t > 0 else step.sigma_max


@dataclass(frozen=True)
class FlowCorrector(RemaskRule):
    """Discrete flow matching's corrector (arXiv 2407.15595, appendix D): rates 1 + beta forward, beta backward.

    beta = strength * alpha^a (1 - alpha)^b. Revealing (1 + beta) times as fast and masking beta times as fast as the
    process does is this posterior with sigma = beta (alpha_s - alpha_t) / alpha_t.
    """

    reads_confidence: ClassVar[bool] = False
    strength: float = 1.0
    a: float = 0.25
    b: float = 0.25

    def __post_init__(self) -> None:
        if min(self.strength, self.a, self.b) < 0:
            raise OutOfRange("strength, a and b", (self.strength, self.a, self.b), "at least 0")

    def sigma(self, step: RemaskContext) -> float:
        alpha_t, alpha_s, most, _ = step
        beta = self.strength * alpha_t**self.a * (1 - alpha_t) ** self.b
        return min(most, beta * (alpha_s - alpha_t) / alpha_t) if alpha_t > 0 else most


@dataclass(frozen=True)
class Loop(RemaskRule):
    """Reveal as MDLM until time `t_on`; stay at alpha_on until `t_off`, remasking with probability `eta`; then finish.

    The two steps that pass t_on and t_off end where the line of alpha does; the official code continues beyond it,
    which in few steps reveals too much.
    """

    reads_confidence: ClassVar[bool] = False
    eta: float = 0.02
    t_on: float = 0.55
    t_off: float = 0.05
    alpha_on: float = 0.9

    def __post_init__(self) -> None:
        _check_fraction("eta", self.eta)
        if not (0 < self.t_off < self.t_on < 1 and 0 < self.alpha_on < 1):
            raise ConfigError(
                f"{self} needs 0 < t_off < t_on < 1 and 0 < alpha_on < 1", subject="t_off, t_on, alpha_on"
            )

    def step(self, t: float, s: float, schedule: Schedule, confidence: Tensor) -> ReverseStep:
        alpha_t, alpha_s = self.alpha(t), self.alpha(s)
        if not self.t_off < t <= self.t_on:
            return ReverseStep(alpha_t, alpha_s)
        return ReverseStep(
            alpha_t, alpha_s, self.sigma(RemaskContext(alpha_t, alpha_s, (1 - alpha_s) / alpha_t, confidence))
        )

    def alpha(self, t: float) -> float:
        if t > self.t_on:
            return self.alpha_on * (1 - t) / (1 - self.t_on)
        if t > self.t_off:
            return self.alpha_on
        return 1 - (1 - self.alpha_on) * t / self.t_off

    def sigma(self, step: RemaskContext) -> float:
        return min(self.eta, step.sigma_max)


@lru_cache(maxsize=1 << 14)
def _alpha(schedule: Schedule, t: float) -> float:
    return schedule.alpha(torch.tensor(t, dtype=torch.float64)).item()


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise OutOfRange(name, value, "a probability from 0 to 1")
