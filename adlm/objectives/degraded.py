"""An anchor loss with some wrong target tokens: it measures what good anchors are worth by degrading them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from adlm.anchors.rules import Given
from adlm.errors import OutOfRange
from adlm.models.network import Vocabulary
from adlm.objectives.nelbo import Anelbo
from adlm.objectives.objective import LossContext
from adlm.randomness import Noise
from adlm.types import Batch


@dataclass(frozen=True)
class DegradedAnelbo(Anelbo):
    """Anelbo whose anchor targets are each replaced, with probability `wrong`, by a uniformly drawn token.

    Position and weight of the anchors do not change, nor does the clean bound. With 1 the anchor term tells the first
    stage nothing about the text.
    """

    wrong: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.wrong <= 1:
            raise OutOfRange("wrong", self.wrong, "a probability, from 0 to 1")

    def extra(self, context: LossContext) -> Tensor | None:
        batch, vocabulary = context.batch, context.model.vocabulary
        # Marked before tokens are replaced: only what anchors say is to change, not where they are.
        told = replace(
            batch, tokens=spoilt(batch, self.wrong, vocabulary, context.noise), anchors=self.rule.mark(batch)
        )
        return Anelbo.extra(replace(self, rule=Given()), replace(context, batch=told))


def spoilt(batch: Batch, probability: float, vocabulary: Vocabulary, noise: Noise) -> Tensor:
    """Tokens [B, L], each replaced with this probability by any but the mask, by the row's own noise."""
    length = batch.tokens.shape[1]
    whether, which = noise.fork("degraded").uniform(batch.sample_id, 2 * length).split(length, dim=1)
    drawn = (which * (vocabulary.size - 1)).long()
    drawn = drawn + (drawn >= vocabulary.mask_id)
    return torch.where(whether < probability, drawn, batch.tokens)
