"""Anchored models: an anchor stack predicts every token, a denoiser stack predicts again from that.

ADLM (arXiv 2505.18456) with bidirectional stacks, A2R with causal ones.
"""

from dataclasses import dataclass, field, replace

from torch import Tensor

from adlm.models.cache import Cache
from adlm.models.hand_over import AnchorState, HandOver, Logits
from adlm.models.language_model import (
    Embedding,
    Head,
    LanguageModel,
    NetworkConfig,
    Vocabulary,
    shifted,
    sigma_at,
    widened,
)
from adlm.models.stack import Stack, StackConfig
from adlm.types import Features


@dataclass(frozen=True)
class TwoStageConfig(NetworkConfig):
    """Two stacks of one width.

    Args:
        anchor: the first stack; the denoiser is the same but for its depth.
        denoiser_layers: depth of the second; the paper takes half of the first.
        tied: both heads are the embedding.
        positions: as in `OneStageConfig`.
    """

    anchor: StackConfig = field(default_factory=StackConfig)
    denoiser_layers: int = 3
    hand_over: HandOver = field(default_factory=Logits)
    tied: bool = False
    positions: int = 0

    def build(self, vocabulary: Vocabulary) -> "TwoStage":
        return TwoStage(self, vocabulary)


class TwoStage(LanguageModel):
    stages = 2
    head: Head
    anchor_head: Head

    def __init__(self, config: TwoStageConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        width = config.anchor.width
        self.config, self.vocabulary = config, vocabulary
        self.causal, self.timed = config.anchor.causal, config.anchor.timed
        self.embedding = Embedding(vocabulary, width, config.positions, tied=config.tied)
        tied_to = self.embedding if config.tied else None
        self.anchor: Stack = config.anchor.build()
        self.anchor_head = Head(vocabulary, width, tied_to=tied_to)
        self.hand_over = config.hand_over.build(vocabulary, width, tied_to=tied_to)
        self.denoiser: Stack = replace(config.anchor, layers=config.denoiser_layers, input_reinjection=0).build()
        self.head = Head(vocabulary, width, tied_to=tied_to)

    def _features(
        self, tokens: Tensor, t: Tensor | None, segments: Tensor | None, output_mask: Tensor | None
    ) -> Features:
        stage = self.anchor_stage(tokens, t, segments=segments)
        return Features(self._denoised(stage, t, segments, output_mask), stage.anchor)

    def _vectors(self, inputs: Tensor) -> Tensor:
        return self.embedding.tokens(inputs)

    def _extended(self, vectors: Tensor, cache: Cache, output_mask: Tensor | None) -> Features:
        embedded = self.embedding.placed(vectors, cache.segments_after(vectors.shape[1]), cache.length)
        sigma = sigma_at(cache.t)
        stage = AnchorState(embedded, *self.anchor(embedded, sigma, cache=cache))
        handed_over = self.hand_over(stage, self.anchor_head)
        return Features(self.denoiser(handed_over, sigma, output_mask=output_mask, cache=cache)[1], stage.anchor)

    def anchor_stage(self, tokens: Tensor, t: Tensor | None = None, *, segments: Tensor | None = None) -> AnchorState:
        """What the first stage makes of rows [B, L], for `denoise`."""
        embedded = self._embedded(tokens, segments)
        return AnchorState(embedded, *self.anchor(embedded, sigma_at(t), segments))

    def denoise(
        self,
        stage: AnchorState,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Tensor:
        """The final features from a first stage that may have read the rows when less of them was visible.

        How much of the new `tokens` [B, L] the denoiser sees is its hand-over's affair: with `Logits` nothing, with
        `Hidden` all of them.
        """
        return self._denoised(stage._replace(embedded=self._embedded(tokens, segments)), t, segments, output_mask)

    def _embedded(self, tokens: Tensor, segments: Tensor | None) -> Tensor:
        if self.causal:
            tokens = shifted(tokens, self.vocabulary.mask_id, segments)
        return self.embedding(tokens, segments)

    def _denoised(
        self, stage: AnchorState, t: Tensor | None, segments: Tensor | None, output_mask: Tensor | None
    ) -> Tensor:
        return self.denoiser(self.hand_over(stage, self.anchor_head), sigma_at(t), segments, output_mask)[1]

    def logits(self, final: Tensor) -> Tensor:
        return self.head(final)

    def anchor_logits(self, anchor: Tensor) -> Tensor:
        return widened(self.anchor_head.raw(anchor))
