"""The objective of models that reason left to right: their own tokens, and what their thoughts are to predict.

Published: ACoT (arXiv 2505.18456), with thoughts that are fed forward as in Coconut (arXiv 2412.06769).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from adlm.anchors.rules import AnchorRule, RareInSequence
from adlm.errors import ConfigError, DataError
from adlm.models.fed import fed_features
from adlm.models.language_model import LanguageModel
from adlm.objectives.linear_cross_entropy import Nats, weighted_nll
from adlm.objectives.objective import LossContext, LossInputs, Objective, costs, uncorrupted
from adlm.randomness import Noise
from adlm.types import Batch, Corrupted, Features


@dataclass(frozen=True)
class ThoughtCrossEntropy(Objective):
    """Cross-entropy of what is written + anchor_weight * that of the targets, which is not reported.

    Both are sums, divided by the number of written tokens.

    Args:
        fed: thoughts in each row, just before the last given token, that read the features of the position before.
        anchor_weight: of what the thoughts are to predict (`Batch.targets`).
        gamma, rule: of the first stage's own term in two-stage models, at what is written, as in
            `AnchoredCrossEntropy`; it is not reported either.
    """

    fed: int = 0
    anchor_weight: float = 1.0
    gamma: float = 0.0
    rule: AnchorRule = field(default_factory=RareInSequence)

    def __post_init__(self) -> None:
        if self.fed < 0 or not min(self.anchor_weight, self.gamma) >= 0:
            raise ConfigError(
                f"fed, anchor_weight and gamma must be at least 0, got {self.fed}, {self.anchor_weight}, {self.gamma}",
                subject=", ".join(name for name in ("fed", "anchor_weight", "gamma") if not getattr(self, name) >= 0),
            )

    @property
    def trains_anchor(self) -> bool:
        return self.gamma > 0

    def check(self, model: LanguageModel) -> None:
        if not model.causal:
            raise ConfigError(
                f"{type(model).__name__} sees both sides and cannot reason left to right",
                fix="use a causal stack (base ar or a2r), or a diffusion model with its own rows (base adlm or mdlm)",
                subject="network",
            )
        if self.gamma and model.stages < 2:
            raise ConfigError(
                f"{type(model).__name__} has one stage, so its first stage cannot be trained",
                fix="set gamma=0, or use a two-stage model",
                subject="gamma",
            )

    def corrupt(self, batch: Batch, mask_id: int, noise: Noise, progress: float = 1.0) -> Corrupted:
        """The batch without masks: the written tokens and the targets of thoughts have to be predicted."""
        clean = uncorrupted(batch)
        return clean._replace(masked=clean.masked | self._told(batch))

    def corrupt_at(self, level: Tensor, batch: Batch, mask_id: int, noise: Noise) -> Corrupted:
        return uncorrupted(batch)

    def read(self, inputs: LossInputs) -> Features:
        batch = inputs.batch
        plain_text = batch.frozen is None and batch.targets is None  # which has no thoughts
        if not self.fed or plain_text:
            return super().read(inputs)
        first = first_thought_column(batch, self.fed)
        return fed_features(
            inputs.model,
            batch.tokens,
            first,
            self.fed,
            segments=batch.segments,
            output_mask=inputs.corrupted.masked,
        )

    def bound(self, context: LossContext) -> Nats:
        scored = context.batch.scored
        hidden = context.features.final[context.select(scored)]
        return _cost(context.model, hidden, context.batch.tokens[scored])

    def extra(self, context: LossContext) -> Tensor | None:
        batch = context.batch
        told, terms = self._told(batch), []
        if batch.targets is not None and self.anchor_weight:
            hidden = context.features.final[context.select(told)]
            terms.append(_cost(context.model, hidden, batch.targets[told], self.anchor_weight).total)
        if self.gamma:
            # Zero at the very first step, and computed all the same: every step reaches the same parameters.
            terms.append(min(self.gamma, context.progress) * self._first_stage(context))
        return sum(terms[1:], terms[0]) if terms else None

    def _told(self, batch: Batch) -> Tensor:
        """[B, L] bool: where there are targets to learn."""
        if batch.targets is None or not self.anchor_weight:
            return torch.zeros_like(batch.valid)
        return batch.targets >= 0

    def _first_stage(self, context: LossContext) -> Tensor:
        """The first stage's cross-entropy at the anchors among what is written, summed."""
        batch, head, anchor = context.batch, context.model.anchor_head, context.features.anchor
        assert head is not None
        assert anchor is not None
        chosen = self.rule.mark(batch) & batch.scored
        tokens = batch.tokens[chosen]
        weight = torch.ones_like(tokens, dtype=torch.float32)
        return weighted_nll(head, anchor[chosen], tokens, weight, with_mask=True).total


def first_thought_column(batch: Batch, count: int) -> int:
    """The column of the first of `count` thoughts, which stand before the last given token in every row."""
    asked = f"cannot find {count} thoughts in rows of {batch.tokens.shape[1]} tokens"
    fix = "read rows of adlm_studies.reasoning.data.ReasoningData, of the same stage"
    if batch.frozen is None or not bool(batch.frozen.any()):
        raise DataError(f"{asked}: nothing of them is given; {fix}", subject="frozen")
    last = batch.frozen.shape[1] - 1 - batch.frozen.flip(-1).long().argmax(-1)
    first = int(last[0]) - count
    if bool((last != last[0]).any()) or first < 1:
        raise DataError(f"{asked}: what is given ends at other columns, or is shorter; {fix}", subject="columns")
    return first


def _cost(model: LanguageModel, hidden: Tensor, tokens: Tensor, weight: float = 1.0) -> Nats:
    return costs(model, hidden, tokens, torch.full_like(tokens, weight, dtype=torch.float32))
