"""What is optimised, and apart from it what is reported.

An objective takes a model and a batch and returns sums: `loss_sum` for the optimiser, `nll_sum` the clean
bound. Logits are made at scored positions only, in slices, never as [B, L, V].
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from adlm.diffusion.corruption import Corruption, UniformMasking
from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.objectives.linear_cross_entropy import Nats, nll, weighted_nll
from adlm.randomness import Noise
from adlm.types import Batch, Corrupted, Features, LossTerms


@dataclass(frozen=True)
class Objective(ABC):
    @property
    def trains_anchor(self) -> bool:
        """Whether a first stage has a term of its own. Without it, its head may have no gradient."""
        return False

    @abstractmethod
    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        """Sums over the batch. `progress` in [0, 1] is the fraction of the run that is done, for terms that ramp."""

    @abstractmethod
    def nats(self, model: LanguageModel, batch: Batch, level: Tensor, noise: Noise) -> Tensor:
        """What each position costs, [B, L], at noise levels [B] in [0, 1): its mean over levels is the clean bound."""


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Next-token cross-entropy for left-to-right models: exact, not a bound, so noise plays no part."""

    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        _check_direction(self, model, causal=True)
        features = model.features(batch.tokens, segments=batch.segments, output_mask=batch.scored)
        clean = self._clean(model, features, batch)
        extra = self._extra(model, features, batch, progress, noise)
        loss = clean.total if extra is None else clean.total + extra
        return LossTerms(loss, clean.total.detach(), batch.scored.sum())

    @torch.no_grad()
    def nats(self, model: LanguageModel, batch: Batch, level: Tensor, noise: Noise) -> Tensor:
        _check_direction(self, model, causal=True)
        features = model.features(batch.tokens, segments=batch.segments, output_mask=batch.scored)
        return table(self._clean(model, features, batch).each, batch.scored)

    def _clean(self, model: LanguageModel, features: Features, batch: Batch) -> Nats:
        tokens = batch.tokens[batch.scored]
        return costs(model, features.final, tokens, torch.ones_like(tokens, dtype=torch.float32))

    def _extra(
        self, model: LanguageModel, features: Features, batch: Batch, progress: float, noise: Noise
    ) -> Tensor | None:
        return None


@dataclass(frozen=True)
class MaskedObjective(Objective, ABC):
    """Objectives of masked models: corrupt, then sum what masked positions cost."""

    corruption: Corruption = field(default_factory=UniformMasking)

    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        _check_direction(self, model, causal=False)
        corrupted = self.corruption(batch, model.vocabulary.mask_id, noise)
        features = self._features(model, batch, corrupted, noise)
        clean = self._clean(model, features.final, corrupted)
        extra = self._extra(model, features, batch, corrupted, progress, noise)
        loss = clean.total if extra is None else clean.total + extra
        # Under a corruption that gives no bound there is nothing to report.
        reported = clean.total.detach() if self.corruption.bounds else torch.full_like(clean.total.detach(), math.nan)
        return LossTerms(loss, reported, batch.scored.sum())

    @torch.no_grad()
    def nats(self, model: LanguageModel, batch: Batch, level: Tensor, noise: Noise) -> Tensor:
        if not self.corruption.bounds:
            raise ConfigError(
                f"asked for the bound under {self.corruption}",
                "it is a training curriculum: its loss bounds nothing",
                "evaluate with Nelbo(CountMasking())",
            )
        _check_direction(self, model, causal=False)
        corrupted = self.corruption.at(level, batch, model.vocabulary.mask_id, noise)
        features = model.features(corrupted.x_t, corrupted.t, segments=batch.segments, output_mask=corrupted.masked)
        return table(self._clean(model, features.final, corrupted).each, corrupted.masked)

    def _features(self, model: LanguageModel, batch: Batch, corrupted: Corrupted, noise: Noise) -> Features:
        """Of the corrupted rows, at the masked positions, in training."""
        return model.features(corrupted.x_t, corrupted.t, segments=batch.segments, output_mask=corrupted.masked)

    @abstractmethod
    def _clean(self, model: LanguageModel, hidden: Tensor, corrupted: Corrupted) -> Nats:
        """What the masked positions cost in the bound, from their hidden states [N, D]."""

    def _extra(
        self,
        model: LanguageModel,
        features: Features,
        batch: Batch,
        corrupted: Corrupted,
        progress: float,
        noise: Noise,
    ) -> Tensor | None:
        """A term that trains and is not reported."""
        return None


def _check_direction(objective: Objective, model: LanguageModel, *, causal: bool) -> None:
    """A model that sees both sides would see the token it is to predict; one that sees the left has no use of masks."""
    if model.causal != causal:
        raise ConfigError(
            f"asked for {type(objective).__name__} with {type(model).__name__}",
            f"the model {'sees only the left' if model.causal else 'sees both sides'}",
            "use a causal stack, or Nelbo" if causal else "use CrossEntropy, or a stack that is not causal",
        )


def table(each: Tensor, chosen: Tensor) -> Tensor:
    """Values [N] of the chosen positions back in position, [B, L]; 0 elsewhere."""
    return each.new_zeros(chosen.shape).masked_scatter(chosen, each)


def weight_at(corrupted: Corrupted, chosen: Tensor) -> Tensor:
    """Weights [N] of the chosen positions [B, L]."""
    return corrupted.weight.expand(chosen.shape)[chosen]


def costs(model: LanguageModel, hidden: Tensor, tokens: Tensor, weight: Tensor) -> Nats:
    """weight * -log p(token), by the fastest way the model has; terms are weighted too."""
    if model.head is not None:
        total, each = weighted_nll(model.head, hidden, tokens, weight)
        return Nats(total, each * weight)
    each = nll(model.logits, model.vocabulary.size, hidden, tokens) * weight
    return Nats(each.sum(), each.detach())
