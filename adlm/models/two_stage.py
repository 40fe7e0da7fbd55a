"""Anchored models: an anchor stack predicts every token, a denoiser stack predicts again from that.

ADLM (arXiv 2505.18456) with bidirectional stacks, A2R with causal ones, anchored block diffusion with block-causal
ones. Two towers (arXiv 2606.26493): a causal anchor stage over finished blocks, and a block-causal denoiser.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from adlm.errors import ConfigError
from adlm.models.block_pass import BlockSites, CurrentBlock
from adlm.models.cache import Cache
from adlm.models.embedding import Embedding, Head, widened
from adlm.models.hand_over import AnchorState, HandOver, Hidden, Logits
from adlm.models.language_model import BlockFeatures, LanguageModel
from adlm.models.layers import shift_right, sigma_at
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import Attention, StackConfig
from adlm.types import Features


@dataclass(frozen=True)
class TwoStageConfig(NetworkConfig):
    """A network with two stacks of one width: an anchor stage and a denoiser.

    Args:
        anchor: the first stack; the denoiser differs from it in depth only.
        denoiser_layers: depth of the second; the paper takes half of the first.
        tied: both heads are the embedding.
        positions, block_size, shift, start: as in `OneStageConfig`.
        denoiser_attention: of the second, if it differs. A block-causal denoiser after a causal anchor stage makes two
            towers: the first never sees the current block, only that it comes, so it is computed once per block.
    """

    anchor: StackConfig = field(default_factory=StackConfig)
    denoiser_layers: int = 3
    hand_over: HandOver = field(default_factory=Logits)
    tied: bool = False
    positions: int = 0
    block_size: int = 0
    shift: bool = False
    denoiser_attention: Attention | None = None
    start: int | None = None

    def __post_init__(self) -> None:
        self.check_blocks()
        first, second = self.anchor.attention, self.attention
        if first != second and not (first == "causal" and second == "block"):
            raise ConfigError(
                f"a denoiser with {second} attention cannot follow an anchor stage with {first} attention",
                fix="use the same for both, or block after causal",
                subject="denoiser_attention",
            )
        if self.blind_anchor and not isinstance(self.hand_over, Hidden):
            raise ConfigError(
                "two towers need hand_over=Hidden(): otherwise the denoiser would not see the tokens of the block",
                subject="hand_over",
            )

    @property
    def stacks(self) -> tuple[StackConfig, ...]:
        attention = self.denoiser_attention or self.anchor.attention
        denoiser = replace(self.anchor, layers=self.denoiser_layers, input_reinjection=0, attention=attention)
        return self.anchor, denoiser

    @property
    def learned_positions(self) -> int:
        return self.positions

    def one_stage(self) -> NetworkConfig:
        stack = replace(self.anchor, attention=self.attention)
        return OneStageConfig(stack, self.tied, self.positions, self.block_size, self.shift, self.start)

    def build(self, vocabulary: Vocabulary) -> "TwoStage":
        return TwoStage(self, vocabulary)

    def _with_stacks(self, *stacks: StackConfig, **changes: Any) -> NetworkConfig:
        attention = stacks[1].attention if stacks[1].attention != stacks[0].attention else None
        layers = stacks[1].layers
        return replace(self, anchor=stacks[0], denoiser_layers=layers, denoiser_attention=attention, **changes)


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

    def _read_sites(self, sites: BlockSites, output_mask: Tensor) -> Features:
        stage = self._sites_stage(sites)
        return Features(self._sites_denoised(stage, sites, output_mask), stage.anchor[:, : sites.length])

    def _read_current(self, block: CurrentBlock, output_mask: Tensor, stage: AnchorState | None) -> BlockFeatures:
        if stage is None:
            stage = self._sites_stage(block)
        elif stage.embedded.shape[1] < block.inputs.shape[1]:
            raise ConfigError("the anchor stage must read finished blocks first", subject="stage")
        else:
            stage = stage._replace(embedded=self.embedding.at(block.inputs, block.positions))
        final = self._sites_denoised(stage, block, output_mask)
        noisy = block.slots.noisy
        return BlockFeatures(final, AnchorState(*(part[:, :noisy] for part in stage)))

    def _sites_stage(self, sites: BlockSites) -> AnchorState:
        """The anchor stage at all sites."""
        embedded = self.embedding.at(sites.inputs, sites.positions)
        read = embedded
        if self.blind_anchor:
            read = self.embedding.at(sites.blind_inputs(self.vocabulary.mask_id), sites.positions)
        return AnchorState(embedded, *self.anchor(read, cache=sites.cache, layout=sites.layout(self.anchor)))

    def _sites_denoised(self, stage: AnchorState, sites: BlockSites, output_mask: Tensor) -> Tensor:
        handed_over = self.hand_over(stage, self.anchor_head)
        layout = sites.layout(self.denoiser)
        return self.denoiser(handed_over, output_mask=output_mask, cache=sites.cache, layout=layout)[1]

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
            tokens = shift_right(tokens, self.start_id, segments)
        return self.embedding(tokens, segments)

    def _denoised(
        self, stage: AnchorState, t: Tensor | None, segments: Tensor | None, output_mask: Tensor | None
    ) -> Tensor:
        return self.denoiser(self.hand_over(stage, self.anchor_head), sigma_at(t), segments, output_mask)[1]

    def logits(self, final: Tensor) -> Tensor:
        return self.head(final)

    def anchor_logits(self, anchor: Tensor) -> Tensor:
        return widened(self.anchor_head.raw(anchor))
