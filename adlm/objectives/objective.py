"""What is optimised, and apart from it what is reported.

An objective takes a model and a batch and returns sums: `loss_sum` for the optimiser, `nll_sum` the clean
bound. Logits are made at scored positions only, in slices, never as [B, L, V].
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from adlm.anchors.rules import AnchorRule, RareInSequence
from adlm.diffusion.corruption import Corruption, UniformMasking
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.types import Batch, LossTerms

SLICE_LOGITS = 1 << 25


def negative_log_likelihood(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, tokens: Tensor, vocab_size: int
) -> Tensor:
    """-log p(token) [N] from hidden states [N, D], a slice of the vocabulary's logits at a time.

    A batch whose logits are few is done in one go; beyond that each slice is made again in the backward pass,
    so that memory does not grow with N * V.
    """

    def part(h: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits(h), y, reduction="none")

    rows = max(1, SLICE_LOGITS // vocab_size)
    if len(hidden) <= rows:
        return part(hidden, tokens)
    parts = zip(hidden.split(rows), tokens.split(rows), strict=True)
    return torch.cat([checkpoint(part, h, y, use_reentrant=False) for h, y in parts])


@dataclass(frozen=True)
class Objective(ABC):
    """`progress` in [0, 1] is the share of the run that is done, for terms that ramp."""

    @abstractmethod
    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms: ...


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Next-token cross-entropy for left-to-right models: exact, not a bound."""

    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        scored = batch.scored
        hidden = model.features(batch.tokens).final[scored]
        nll = negative_log_likelihood(model.logits, hidden, batch.tokens[scored], model.vocabulary.size).sum()
        return LossTerms(nll, nll.detach(), scored.sum())


@dataclass(frozen=True)
class Nelbo(Objective):
    """The masked diffusion bound: sum over masked positions of weight * -log p(x_0 | x_t)."""

    corruption: Corruption = field(default_factory=UniformMasking)

    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        return self._terms(model, batch, noise, anchor_weight=0.0)

    def _terms(self, model: LanguageModel, batch: Batch, noise: Noise, *, anchor_weight: float) -> LossTerms:
        _, x_t, t, masked, weight = self.corruption(batch, model.vocabulary.mask_id, noise)
        features = model.features(x_t, t)
        size = model.vocabulary.size
        nll = negative_log_likelihood(model.logits, features.final[masked], batch.tokens[masked], size)
        nll_sum = (nll * weight[:, None].expand_as(masked)[masked]).sum()
        loss_sum = nll_sum
        chosen = self._anchor_positions(batch, masked) if anchor_weight else None
        if chosen is not None and features.anchor is not None:
            anchor = negative_log_likelihood(model.anchor_logits, features.anchor[chosen], batch.tokens[chosen], size)
            loss_sum = nll_sum + anchor_weight * (anchor * weight[:, None].expand_as(chosen)[chosen]).sum()
        return LossTerms(loss_sum, nll_sum.detach(), batch.scored.sum())

    def _anchor_positions(self, batch: Batch, masked: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Anelbo(Nelbo):
    """The anchored bound: Nelbo + gamma * weight * -log p_anchor(x_0 | x_t) at anchor positions.

    The second term trains the anchor stage and is never reported.

    Args:
        gamma: weight of the anchor term after the ramp; it grows as min(gamma, progress).
        masked_only: the theorem's positions; the official code takes visible anchors too.
    """

    rule: AnchorRule = field(default_factory=RareInSequence)
    gamma: float = 3e-3
    masked_only: bool = False

    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        return self._terms(model, batch, noise, anchor_weight=min(self.gamma, progress))

    def _anchor_positions(self, batch: Batch, masked: Tensor) -> Tensor | None:
        marks = self.rule.mark(batch)
        return marks & masked if self.masked_only else marks & batch.scored
