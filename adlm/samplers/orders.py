"""Where to write first. Orders are values: a score for every blank, high scores first.

Scores are of the network's own distribution, before the filters: at temperature 0, as LLaDA is used, every drawn token
would have probability 1 after them.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from adlm.samplers.state import Prediction, SamplerState


class Offer(NamedTuple):
    """For each of N blanks: its score and entropy [N], and the token and its probability where one was drawn [N]."""

    score: Tensor
    entropy: Tensor
    tokens: Tensor | None = None
    confidence: Tensor | None = None


class OrderContext(NamedTuple):
    """What an order chooses from: the blanks [B, L] bool of a state, at times t [B], in a step."""

    state: SamplerState
    blank: Tensor
    t: Tensor
    step: int


@dataclass(frozen=True)
class Order(ABC):
    """Where to write first."""

    reads_anchors: ClassVar[bool] = False  # True: for two-stage models

    @abstractmethod
    def offer(self, context: OrderContext) -> Offer:
        """Score the blanks."""


@dataclass(frozen=True)
class PredictedOrder(Order, ABC):
    """Draw at every blank, then keep the best."""

    @abstractmethod
    def score(self, p: Tensor, confidence: Tensor) -> Tensor:
        """Probabilities [n, V], and those [n] of the tokens drawn -> [n]."""

    def offer(self, context: OrderContext) -> Offer:
        def measure(prediction: Prediction) -> Tensor:
            p = prediction.raw.softmax(-1)
            confidence = p.gather(-1, prediction.drawn[:, None])[:, 0]
            return torch.stack([self.score(p, confidence), entropy(p), confidence], -1)

        tokens, measured = context.state.predict(context.blank, context.t, context.step, measure=measure)
        score, entropies, confidence = measured.unbind(-1)
        return Offer(score, entropies, tokens, confidence)


@dataclass(frozen=True)
class Confidence(PredictedOrder):
    """The probability of the drawn token (MaskGIT arXiv 2202.04200, LLaDA arXiv 2502.09992)."""

    def score(self, p: Tensor, confidence: Tensor) -> Tensor:
        return confidence


@dataclass(frozen=True)
class Margin(PredictedOrder):
    """The likeliest token's probability less the second's (arXiv 2502.06768)."""

    def score(self, p: Tensor, confidence: Tensor) -> Tensor:
        first, second = p.topk(2, -1).values.unbind(-1)
        return first - second


@dataclass(frozen=True)
class LeastEntropy(PredictedOrder):
    """The surest distribution first (Dream arXiv 2508.15487)."""

    def score(self, p: Tensor, confidence: Tensor) -> Tensor:
        return -entropy(p)


@dataclass(frozen=True)
class AnchorConfidence(Order):
    """Where the anchor stage is surest, by the probability of its likeliest token. For two-stage models.

    The vocabulary of the denoiser is then needed only where it writes.
    """

    reads_anchors: ClassVar[bool] = True

    def offer(self, context: OrderContext) -> Offer:
        measured = context.state.anchor_measure(context.blank, context.t, _sureness)
        return Offer(*measured.unbind(-1))


@dataclass(frozen=True)
class AnyOrder(Order):
    """At random: what LLaDA calls random remasking. No logits are needed to choose."""

    def offer(self, context: OrderContext) -> Offer:
        score = context.state.uniform("order", context.step)[context.blank]
        return Offer(score, torch.full_like(score, torch.inf))


def entropy(p: Tensor) -> Tensor:
    """[n, V] -> [n] in nats."""
    return torch.special.entr(p).sum(-1)


def _sureness(prediction: Prediction) -> Tensor:
    p = prediction.p
    return torch.stack([p.amax(-1), entropy(p)], -1)
