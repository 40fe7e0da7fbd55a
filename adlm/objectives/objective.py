"""What is optimized, and separately what is reported.

An objective takes a model and a batch and returns sums: `loss_sum` for the optimizer, `nll_sum` the clean bound.
Logits are made at scored positions only, in slices, never as [B, L, V].

Shapes: B batch, L length, D width, N predicted positions.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import Corruption, CountMasking, UniformMasking
from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.objectives.linear_cross_entropy import Nats, nll, weighted_nll
from adlm.randomness import Noise
from adlm.types import Batch, Corrupted, Features, LossTerms


@dataclass(frozen=True)
class LossInputs:
    """The inputs of an objective, before the model has read the batch.

    Args:
        corrupted: the batch as the model reads it; `masked` are the positions that it has to predict.
        progress: fraction of the run that is done, in [0, 1], for terms that ramp up.
        noise: source of random numbers, by sample id.
    """

    model: LanguageModel
    batch: Batch
    corrupted: Corrupted
    progress: float
    noise: Noise

    @cached_property
    def index(self) -> Tensor:
        """Flat numbers [N] of the predicted positions; found once, since an accelerator has to be waited for."""
        return self.corrupted.masked.flatten().nonzero()[:, 0]

    def select(self, values: Tensor) -> Tensor:
        """The values [N] at the predicted positions, from [B, L] or [B, 1]."""
        return values.expand(self.corrupted.masked.shape).flatten().index_select(0, self.index)

    @property
    def tokens(self) -> Tensor:
        """The true tokens [N] at the predicted positions."""
        return self.select(self.corrupted.x_0)

    @property
    def weight(self) -> Tensor:
        """The weight [N] of each predicted position in the bound."""
        return self.select(self.corrupted.weight)


@dataclass(frozen=True)
class LossContext(LossInputs):
    """The inputs of a term of the loss, with the features that the model computed from them.

    Args:
        features: `final` is [N, D], at the predicted positions; `anchor`, in two-stage models, is [B, L, D].
    """

    features: Features


@dataclass(frozen=True)
class Objective(ABC):
    """Corrupt a batch, let the model read it, sum what the predicted positions cost.

    An objective says what to corrupt (`corrupt`, `corrupt_at`) and what the bound is (`bound`). It may add a term that
    trains but is never reported (`extra`), or change how the model reads (`read`).
    """

    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        """Sums over the batch. `progress` in [0, 1] is the fraction of the run that is done, for terms that ramp up."""
        self.check(model)
        corrupted = self.corrupt(batch, model.vocabulary.mask_id, noise, progress)
        inputs = self.revise(LossInputs(model, batch.repeated(corrupted.copies(batch)), corrupted, progress, noise))
        context = self._context(inputs)
        bound, extra = self.bound(context).total, self.extra(context)
        loss = bound if extra is None else bound + extra
        reported = bound.detach() if self.bounds else torch.full_like(bound.detach(), math.nan)
        return LossTerms(loss, reported, batch.scored.sum())

    @torch.no_grad()
    def nats(self, model: LanguageModel, batch: Batch, level: Tensor, noise: Noise) -> Tensor:
        """Cost of each position, [B, L], at noise levels [B] in [0, 1): its mean over levels is the clean bound."""
        self.check(model)
        corrupted = self.corrupt_at(level, batch, model.vocabulary.mask_id, noise)
        copies = corrupted.copies(batch)
        context = self._context(LossInputs(model, batch.repeated(copies), corrupted, 1.0, noise))
        costs = table(self.bound(context).each, corrupted.masked)
        return costs if copies == 1 else costs.view(copies, *batch.tokens.shape).sum(0)

    def _context(self, inputs: LossInputs) -> LossContext:
        values = {each.name: getattr(inputs, each.name) for each in fields(inputs)}
        return LossContext(**values, features=self.read(inputs))

    @property
    def exact(self) -> bool:
        """Whether `nats` is the likelihood itself, so that noise plays no part."""
        return False

    @property
    def trains_anchor(self) -> bool:
        """Whether the first stage has a term of its own. Without it, its head may have no gradient."""
        return False

    @property
    def bounds(self) -> bool:
        """Whether `bound` bounds the likelihood; if not, nothing is reported."""
        return True

    def for_validation(self) -> "Objective":
        """The objective whose `nats` are reported for a model trained with this one."""
        return self

    @abstractmethod
    def check(self, model: LanguageModel) -> None:
        """Refuse a model that this objective cannot train."""

    @abstractmethod
    def corrupt(self, batch: Batch, mask_id: int, noise: Noise, progress: float = 1.0) -> Corrupted:
        """The batch as the model reads it in training, when this fraction of the run is done."""

    @abstractmethod
    def corrupt_at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        """The batch as the model reads it at noise levels [B] in [0, 1)."""

    def revise(self, inputs: LossInputs) -> LossInputs:
        """The inputs of training, after the model had a say in what is masked."""
        return inputs

    def read(self, inputs: LossInputs) -> Features:
        """The model's features, `final` at the predicted positions."""
        model, corrupted = inputs.model, inputs.corrupted
        segments = inputs.batch.segments if corrupted.segments is None else corrupted.segments
        if corrupted.block_size == 1 and model.shifted:
            # Left to right, for half the work.
            return model.in_blocks(1).features(corrupted.x_0, segments=segments, output_mask=corrupted.masked)
        if corrupted.blocks is None:
            return model.features(corrupted.x_t, corrupted.t, segments=segments, output_mask=corrupted.masked)
        return model.features(
            corrupted.x_t,
            segments=segments,
            output_mask=corrupted.masked,
            clean=corrupted.x_0,
            # Rows whose blocks are alike share the mask of what is seen.
            blocks=corrupted.blocks if corrupted.block_size is None else corrupted.blocks[:1],
        )

    @abstractmethod
    def bound(self, context: LossContext) -> Nats:
        """The cost of the predicted positions in the bound."""

    def extra(self, context: LossContext) -> Tensor | None:
        """A term that trains and is not reported."""
        return None


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Next-token cross-entropy for left-to-right models: exact, not a bound, so noise plays no part."""

    @property
    def exact(self) -> bool:
        return True

    def check(self, model: LanguageModel) -> None:
        check_direction(self, model, causal=True)

    def for_validation(self) -> Objective:
        return CrossEntropy()

    def corrupt(self, batch: Batch, mask_id: int, noise: Noise, progress: float = 1.0) -> Corrupted:
        return uncorrupted(batch)

    def corrupt_at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        return uncorrupted(batch)

    def bound(self, context: LossContext) -> Nats:
        return costs(context.model, context.features.final, context.tokens, context.weight)


@dataclass(frozen=True)
class MaskedObjective(Objective, ABC):
    """Objectives of masked models: mask tokens, and sum what the masked positions cost."""

    corruption: Corruption = field(default_factory=UniformMasking)

    @property
    def bounds(self) -> bool:
        return self.corruption.bounds and self.corruption.times.bounds

    def check(self, model: LanguageModel) -> None:
        check_direction(self, model, causal=False)
        blocks = isinstance(self.corruption, BlockMasking)
        if (blocks and not model.reads_blocks) or (not blocks and model.attention == "block"):
            raise ConfigError(
                f"{type(self.corruption).__name__} does not suit {model.attention} attention",
                fix="use BlockMasking together with block-causal attention, or neither",
                subject="corruption",
            )

    def corrupt(self, batch: Batch, mask_id: int, noise: Noise, progress: float = 1.0) -> Corrupted:
        return self.corruption(batch, mask_id, noise, progress)

    def revise(self, inputs: LossInputs) -> LossInputs:
        corrupted = self.corruption.revised(inputs.corrupted, inputs.batch, inputs.model, inputs.noise)
        return replace(inputs, corrupted=corrupted)

    def corrupt_at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        if not self.corruption.bounds:
            raise ConfigError(
                f"{self.corruption} is a training curriculum: its loss bounds nothing",
                fix=f"evaluate with {type(self).__name__}({CountMasking.__name__}())",
                subject="corruption",
            )
        return self.corruption.at(level, batch, mask_id, noise)


def check_direction(objective: Objective, model: LanguageModel, *, causal: bool) -> None:
    """A model that sees both sides would see the token it is to predict; one that sees the left has no use for masks.

    Args:
        causal: what the objective needs.
    """
    if model.causal != causal:
        raise ConfigError(
            f"{type(objective).__name__} does not suit {type(model).__name__}, which sees "
            f"{'only the left' if model.causal else 'both sides'}; "
            f"{'use a causal stack, or Nelbo' if causal else 'use CrossEntropy, or a stack that is not causal'}",
            subject="attention",
        )


def uncorrupted(batch: Batch) -> Corrupted:
    """The batch itself, at time 0, to be predicted at every scored position with weight 1."""
    tokens = batch.tokens
    ones = torch.ones(len(tokens), 1, device=tokens.device)
    return Corrupted(tokens, tokens, torch.zeros_like(ones[:, 0]), batch.scored, ones)


def table(each: Tensor, chosen: Tensor) -> Tensor:
    """Values [N] of the chosen positions as a table [B, L], 0 elsewhere."""
    return each.new_zeros(chosen.shape).masked_scatter(chosen, each)


def costs(model: LanguageModel, hidden: Tensor, tokens: Tensor, weight: Tensor) -> Nats:
    """weight * -log p(token), by the fastest way the model has; terms are weighted too."""
    if model.head is not None:
        total, each = weighted_nll(model.head, hidden, tokens, weight)
        return Nats(total, each * weight)
    each = nll(model.logits, model.vocabulary.size, hidden, tokens) * weight
    return Nats(each.sum(), each.detach())
