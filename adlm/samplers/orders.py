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
    """Scores of N blanks [N], with entropies if asked for, and the drawn tokens and their probabilities if any."""

    score: Tensor
    entropy: Tensor | None = None
    tokens: Tensor | None = None
    confidence: Tensor | None = None


class OrderContext(NamedTuple):
    """The inputs of an order: the blanks [B, L] bool of a state, at times t [B], in a step.

    entropies: whether the pace needs them.
    """

    state: SamplerState
    blank: Tensor
    t: float | Tensor
    step: int
    entropies: bool = True


@dataclass(frozen=True)
class Order(ABC):
    """An order in which blanks are written."""

    reads_anchors: ClassVar[bool] = False  # True: for two-stage models

    @abstractmethod
    def offer(self, context: OrderContext) -> Offer:
        """Score the blanks."""


@dataclass(frozen=True)
class PredictedOrder(Order, ABC):
    """Draw at every blank, then keep the best."""

    @abstractmethod
    def score(self, prediction: Prediction) -> Tensor:
        """A number for each of n predictions."""

    def offer(self, context: OrderContext) -> Offer:
        def measure(prediction: Prediction) -> Tensor:
            found = [self.score(prediction), prediction.own_confidence]
            return torch.stack([*found, entropy(prediction.raw)] if context.entropies else found, -1)

        tokens, measured = context.state.predict(context.blank, context.t, context.step, measure=measure)
        score, confidence, *entropies = measured.unbind(-1)
        return Offer(score, entropies[0] if entropies else None, tokens, confidence)


@dataclass(frozen=True)
class Confidence(PredictedOrder):
    """The probability of the drawn token (MaskGIT arXiv 2202.04200, LLaDA arXiv 2502.09992)."""

    def score(self, prediction: Prediction) -> Tensor:
        return prediction.own_confidence


@dataclass(frozen=True)
class Margin(PredictedOrder):
    """The likeliest token's probability less the second's (arXiv 2502.06768)."""

    def score(self, prediction: Prediction) -> Tensor:
        return margin(prediction.p)


@dataclass(frozen=True)
class LeastEntropy(PredictedOrder):
    """The most certain distribution first (Dream arXiv 2508.15487)."""

    def score(self, prediction: Prediction) -> Tensor:
        return -entropy(prediction.raw)


@dataclass(frozen=True)
class AnchorConfidence(Order):
    """First where the anchor stage is most certain, by the probability of its likeliest token (two-stage models).

    The vocabulary of the denoiser is then needed only where it writes.
    """

    reads_anchors: ClassVar[bool] = True

    def offer(self, context: OrderContext) -> Offer:
        measured = context.state.anchor_measure(context.blank, context.t, _certainty_and_entropy)
        return Offer(*measured.unbind(-1))


@dataclass(frozen=True)
class AnyOrder(Order):
    """A random order: what LLaDA calls random remasking. No logits are needed to choose."""

    def offer(self, context: OrderContext) -> Offer:
        return Offer(context.state.uniform("order", context.step)[context.blank])


def entropy(logits: Tensor) -> Tensor:
    """Logits a [n, V] -> entropies [n] in nats: sum_v p_v (max a - a_v) - log max p."""
    # A product of 0 and -inf would have no value.
    shifted = (logits - logits.amax(-1, keepdim=True)).clamp_min_(torch.finfo(logits.dtype).min)
    p = shifted.softmax(-1)
    return -torch.linalg.vecdot(p, shifted) - p.amax(-1).log()


def margin(p: Tensor) -> Tensor:
    """Probabilities [n, V] -> by how much the largest exceeds the second [n]."""
    first, second = p.topk(2, -1).values.unbind(-1)
    return first - second


def certainty(logits: Tensor) -> Tensor:
    """Logits [n, V] -> the largest probability [n]."""
    return logits.softmax(-1).amax(-1)


def _certainty_and_entropy(logits: Tensor) -> Tensor:
    return torch.stack([certainty(logits), entropy(logits)], -1)
