"""Models with one stack: AR (left to right) and MDLM (arXiv 2406.07524), the baselines of the two-stage ones."""

from dataclasses import dataclass, field

from torch import Tensor

from adlm.models.cache import Cache
from adlm.models.language_model import Embedding, Head, LanguageModel, NetworkConfig, Vocabulary, shifted, sigma_at
from adlm.models.stack import StackConfig
from adlm.types import Features


@dataclass(frozen=True)
class OneStageConfig(NetworkConfig):
    """A stack with an embedding before it and a head after it.

    `stack.causal` decides: a causal stack is an autoregressive model, any other a masked diffusion model.

    Args:
        tied: the head is the embedding.
        positions: positions with a learned vector of their own; 0, as published, leaves them to the rotary ones.
    """

    stack: StackConfig = field(default_factory=StackConfig)
    tied: bool = False
    positions: int = 0

    def build(self, vocabulary: Vocabulary) -> "OneStage":
        return OneStage(self, vocabulary)


class OneStage(LanguageModel):
    head: Head

    def __init__(self, config: OneStageConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.causal, self.timed = config.stack.causal, config.stack.timed
        self.embedding = Embedding(vocabulary, config.stack.width, config.positions, tied=config.tied)
        self.stack = config.stack.build()
        self.head = Head(vocabulary, config.stack.width, tied_to=self.embedding if config.tied else None)

    def _features(
        self, tokens: Tensor, t: Tensor | None, segments: Tensor | None, output_mask: Tensor | None
    ) -> Features:
        if self.causal:
            tokens = shifted(tokens, self.vocabulary.mask_id, segments)
        return Features(self.stack(self.embedding(tokens, segments), sigma_at(t), segments, output_mask)[1])

    def _vectors(self, inputs: Tensor) -> Tensor:
        return self.embedding.tokens(inputs)

    def _extended(self, vectors: Tensor, cache: Cache, output_mask: Tensor | None) -> Features:
        embedded = self.embedding.placed(vectors, cache.segments_after(vectors.shape[1]), cache.length)
        return Features(self.stack(embedded, sigma_at(cache.t), output_mask=output_mask, cache=cache)[1])

    def logits(self, final: Tensor) -> Tensor:
        return self.head(final)
