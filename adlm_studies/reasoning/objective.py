"""What a model that reasons left to right is trained with: its own tokens, and what its thoughts are to predict.

Published: ACoT (arXiv 2505.18456), with thoughts that are fed forward as in Coconut (arXiv 2412.06769).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from adlm.anchors.rules import AnchorRule, RareInSequence
from adlm.errors import ConfigError, DataError
from adlm.models.language_model import LanguageModel
from adlm.objectives.linear_cross_entropy import Nats, weighted_nll
from adlm.objectives.objective import Objective, costs, table
from adlm.randomness import Noise
from adlm.types import Batch, Features, LossTerms


@dataclass(frozen=True)
class ThoughtCrossEntropy(Objective):
    """Cross-entropy of what is written + anchor_weight * that of the targets, which is not reported.

    Both are sums, divided by the number of written tokens.

    Args:
        fed: thoughts in each row, just before the last given token, that are read as the state of the place before.
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
            found = f"fed={self.fed}, anchor_weight={self.anchor_weight}, gamma={self.gamma}"
            raise ConfigError("asked to train with thoughts", found, "give 0 or more of each")

    @property
    def trains_anchor(self) -> bool:
        return self.gamma > 0

    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        scored, told = batch.scored, self._told(batch)
        output_mask = scored | told
        hidden, anchor = self._read(model, batch, output_mask)
        clean = _cost(model, hidden[scored[output_mask]], batch.tokens[scored])
        loss = clean.total
        if batch.targets is not None and self.anchor_weight:
            loss = loss + _cost(model, hidden[told[output_mask]], batch.targets[told], self.anchor_weight).total
        if self.gamma:
            # Zero at the very first step, and taken all the same: every step reaches the same parameters.
            loss = loss + min(self.gamma, progress) * self._first_stage(model, anchor, batch)
        return LossTerms(loss, clean.total.detach(), scored.sum())

    @torch.no_grad()
    def nats(self, model: LanguageModel, batch: Batch, level: Tensor, noise: Noise) -> Tensor:
        hidden = self._read(model, batch, batch.scored).final
        return table(_cost(model, hidden, batch.tokens[batch.scored]).each, batch.scored)

    def _told(self, batch: Batch) -> Tensor:
        """[B, L] bool: where there are targets to learn."""
        if batch.targets is None or not self.anchor_weight:
            return torch.zeros_like(batch.valid)
        return batch.targets >= 0

    def _first_stage(self, model: LanguageModel, anchor: Tensor | None, batch: Batch) -> Tensor:
        """The first stage's cross-entropy at the anchors among what is written, summed."""
        if anchor is None or model.anchor_head is None:
            asked = f"asked to train the first stage of {type(model).__name__}"
            raise ConfigError(asked, "it has one stage", "set gamma=0, or use a two-stage model")
        chosen = self.rule.mark(batch) & batch.scored
        tokens = batch.tokens[chosen]
        weight = torch.ones_like(tokens, dtype=torch.float32)
        return weighted_nll(model.anchor_head, anchor[chosen], tokens, weight, with_mask=True).total

    def _read(self, model: LanguageModel, batch: Batch, output_mask: Tensor) -> Features:
        """Final features [N, D] at the wanted positions."""
        if not model.causal:
            raise ConfigError(
                f"asked {type(model).__name__} to reason left to right",
                "it sees both sides",
                "use a causal stack (base ar or a2r), or a diffusion model with its own rows (base adlm or mdlm)",
            )
        if not self.fed:
            return model.features(batch.tokens, segments=batch.segments, output_mask=output_mask)
        first = first_thought_column(batch, self.fed)
        return model.fed_features(batch.tokens, first, self.fed, segments=batch.segments, output_mask=output_mask)


def first_thought_column(batch: Batch, count: int) -> int:
    """The column of the first of `count` thoughts, which stand before the last given token in every row."""
    asked = f"asked for {count} thoughts in rows of {batch.tokens.shape[1]} tokens"
    fix = "read rows of adlm_studies.reasoning.data.ReasoningData, of the same stage"
    if batch.frozen is None or not bool(batch.frozen.any()):
        raise DataError(asked, "nothing of them is given", fix)
    last = batch.frozen.shape[1] - 1 - batch.frozen.flip(-1).long().argmax(-1)
    first = int(last[0]) - count
    if bool((last != last[0]).any()) or first < 1:
        raise DataError(asked, "what is given ends at other columns, or is shorter", fix)
    return first


def _cost(model: LanguageModel, hidden: Tensor, tokens: Tensor, weight: float = 1.0) -> Nats:
    return costs(model, hidden, tokens, torch.full_like(tokens, weight, dtype=torch.float32))
