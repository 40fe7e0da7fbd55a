"""An anchor loss that is told wrong tokens now and then: what good anchors are worth, seen by spoiling them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from adlm.anchors.rules import Given
from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel, Vocabulary
from adlm.objectives.nelbo import Anelbo
from adlm.randomness import Noise
from adlm.types import Batch, Corrupted, Features


@dataclass(frozen=True)
class DegradedAnelbo(Anelbo):
    """Anelbo whose anchor targets are each replaced, with probability `wrong`, by a token drawn evenly from the
    vocabulary.

    Where anchors are and what they weigh stays as it is, and so does the clean bound. With 1 the anchor term tells
    the first stage nothing about the text.
    """

    wrong: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.wrong <= 1:
            raise ConfigError(f"asked for wrong anchors with probability {self.wrong}", "not in [0, 1]", "0 has none")

    def _extra(
        self,
        model: LanguageModel,
        features: Features,
        batch: Batch,
        corrupted: Corrupted,
        progress: float,
        noise: Noise,
    ) -> Tensor | None:
        # The marks are made before the tokens are spoilt: only what anchors say is to change, not where they are.
        told = replace(batch, tokens=spoilt(batch, self.wrong, model.vocabulary, noise), anchors=self.rule.mark(batch))
        return Anelbo._extra(replace(self, rule=Given()), model, features, told, corrupted, progress, noise)


def spoilt(batch: Batch, probability: float, vocabulary: Vocabulary, noise: Noise) -> Tensor:
    """Tokens [B, L], each exchanged with this probability for any but the mask, by the row's own noise."""
    length = batch.tokens.shape[1]
    whether, which = noise.fork("degraded").uniform(batch.sample_id, 2 * length).split(length, dim=1)
    drawn = (which * (vocabulary.size - 1)).long()
    drawn = drawn + (drawn >= vocabulary.mask_id)
    return torch.where(whether < probability, drawn, batch.tokens)
