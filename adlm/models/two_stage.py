"""Anchored models: an anchor stack predicts every token, a denoiser stack predicts again from that.

ADLM (arXiv 2505.18456) with bidirectional stacks, A2R with causal ones.
"""

from dataclasses import dataclass, field, replace

from torch import Tensor

from adlm.models.cache import Cache
from adlm.models.embedding import Embedding, Head, widened
from adlm.models.hand_over import AnchorState, HandOver, Logits
from adlm.models.language_model import LanguageModel, shift_right, sigma_at
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.types import Features


@dataclass(frozen=True)
class TwoStageConfig(NetworkConfig):
    """Two stacks of one width.

    Args:
        anchor: the first stack; the denoiser differs from it in depth only.
        denoiser_layers: depth of the second; the paper takes half of the first.
        tied: both heads are the embedding.
        positions: as in `OneStageConfig`.
    """

    anchor: StackConfig = field(default_factory=StackConfig)
    denoiser_layers: int = 3
    hand_over: HandOver = field(default_factory=Logits)
    tied: bool = False
    positions: int = 0

    @property
    def stacks(self) -> tuple[StackConfig, ...]:
        return self.anchor, replace(self.anchor, layers=self.denoiser_layers, input_reinjection=0)

    @property
    def learned_positions(self) -> int:
        return self.positions

    def one_stage(self) -> NetworkConfig:
        return OneStageConfig(self.anchor, self.tied, self.positions)

    def build(self, vocabulary: Vocabulary) -> "TwoStage":
        return TwoStage(self, vocabulary)

    def _with_stacks(self, *stacks: StackConfig) -> NetworkConfig:
        return replace(self, anchor=stacks[0], denoiser_layers=stacks[1].layers)


def as_two_stage(model: LanguageModel, purpose: str) -> "TwoStage":
    """The model, for work on its stages; refuses one that has no anchor stage.

    Args:
        purpose: what it is needed for, as in "stale anchors".
    """
    model.check_two_stages(purpose)
    assert isinstance(model, TwoStage)
    return model


class TwoStage(LanguageModel):
    """The network of a `TwoStageConfig`."""

    config: TwoStageConfig
    head: Head
    anchor_head: Head

    def __init__(self, config: TwoStageConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.embedding = Embedding(vocabulary, config.width, config.positions, tied=config.tied)
        tied_to = self.embedding if config.tied else None
        anchor, denoiser = config.stacks
        self.anchor = anchor.build()
        self.anchor_head = Head(vocabulary, config.width, tied_to=tied_to)
        self.hand_over = config.hand_over.build(vocabulary, config.width, tied_to=tied_to)
        self.denoiser = denoiser.build()
        self.head = Head(vocabulary, config.width, tied_to=tied_to)

    def _features(
        self, tokens: Tensor, t: Tensor | None, segments: Tensor | None, output_mask: Tensor | None
    ) -> Features:
        stage = self.anchor_stage(tokens, t, segments=segments)
        return Features(self._denoised(stage, t, segments, output_mask), stage.anchor)

    def embed_inputs(self, inputs: Tensor) -> Tensor:
        return self.embedding.tokens(inputs)

    def extend_vectors(self, vectors: Tensor, cache: Cache, output_mask: Tensor | None) -> Features:
        embedded = self.embedding.add_positions(vectors, cache.segments_after(vectors.shape[1]), cache.length)
        sigma = sigma_at(cache.t)
        stage = AnchorState(embedded, *self.anchor(embedded, sigma, cache=cache))
        handed_over = self.hand_over(stage, self.anchor_head)
        return Features(self.denoiser(handed_over, sigma, output_mask=output_mask, cache=cache)[1], stage.anchor)

    def anchor_stage(self, tokens: Tensor, t: Tensor | None = None, *, segments: Tensor | None = None) -> AnchorState:
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
        return self._denoised(stage._replace(embedded=self._embedded(tokens, segments)), t, segments, output_mask)

    def _embedded(self, tokens: Tensor, segments: Tensor | None) -> Tensor:
        if self.shifted:
            tokens = shift_right(tokens, self.vocabulary.mask_id, segments)
        return self.embedding(tokens, segments)

    def _denoised(
        self, stage: AnchorState, t: Tensor | None, segments: Tensor | None, output_mask: Tensor | None
    ) -> Tensor:
        return self.denoiser(self.hand_over(stage, self.anchor_head), sigma_at(t), segments, output_mask)[1]

    def logits(self, final: Tensor) -> Tensor:
        return self.head(final)

    def anchor_logits(self, anchor: Tensor) -> Tensor:
        return widened(self.anchor_head.raw(anchor))
