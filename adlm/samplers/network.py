"""What a sampler needs of a network.

A `LanguageModel` is one: it computes here. `adlm.serve` has one that computes the passes of several requests together,
and `RecordingNetwork` keeps what each pass predicted. Samplers cannot tell them apart.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from copy import copy
from typing import Protocol

import torch
from torch import Tensor, nn

from adlm.models.block_cache import FinishedBlocks
from adlm.models.cache import Cache
from adlm.models.embedding import Head
from adlm.models.hand_over import AnchorState
from adlm.models.language_model import BlockFeatures
from adlm.models.network import Vocabulary
from adlm.models.stack import Attention
from adlm.types import Features


class Network(Protocol):
    """Tokens [B, L] -> features [N, D] at the positions that asked -> logits [N, V].

    See `LanguageModel` for the methods. `anchor_stage`, `denoise` and `anchor_logits` are for networks with two
    stages, `cache` and `extend` for causal ones, `finished_blocks` and `read_block` for those with block-causal
    attention.
    """

    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def causal(self) -> bool: ...
    @property
    def attention(self) -> Attention: ...
    @property
    def block_size(self) -> int: ...
    @property
    def reads_blocks(self) -> bool: ...
    @property
    def shifted(self) -> bool: ...
    @property
    def blind_anchor(self) -> bool: ...
    @property
    def time_conditioned(self) -> bool: ...
    @property
    def stages(self) -> int: ...

    def features(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Features: ...

    def anchor_stage(
        self, tokens: Tensor, t: Tensor | None = None, *, segments: Tensor | None = None
    ) -> AnchorState: ...

    def denoise(
        self,
        stage: AnchorState,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Tensor: ...

    def cache(self, rows: int, length: int, t: Tensor | None = None, *, segments: Tensor | None = None) -> Cache: ...
    def extend(self, tokens: Tensor, cache: Cache, *, every: bool = False) -> Features: ...
    def in_blocks(self, size: int) -> "Network": ...
    def finished_blocks(self, rows: int, length: int) -> FinishedBlocks: ...
    def read_block(
        self,
        tokens: Tensor,
        start: list[int],
        cache: FinishedBlocks,
        *,
        rows: list[int] | None = None,
        output_mask: Tensor | None = None,
        stage: AnchorState | None = None,
        left_to_right: bool = False,
    ) -> BlockFeatures: ...
    def logits(self, final: Tensor) -> Tensor: ...
    def anchor_logits(self, anchor: Tensor) -> Tensor: ...
    def inference_weights(self) -> AbstractContextManager[None]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...


class NetworkWrapper:
    """A network that hands everything on to another one. Subclasses override what they do differently."""

    def __init__(self, network: Network) -> None:
        self.network = network

    @property
    def vocabulary(self) -> Vocabulary:
        return self.network.vocabulary

    @property
    def causal(self) -> bool:
        return self.network.causal

    @property
    def attention(self) -> Attention:
        return self.network.attention

    @property
    def block_size(self) -> int:
        return self.network.block_size

    @property
    def reads_blocks(self) -> bool:
        return self.network.reads_blocks

    @property
    def shifted(self) -> bool:
        return self.network.shifted

    @property
    def blind_anchor(self) -> bool:
        return self.network.blind_anchor

    @property
    def time_conditioned(self) -> bool:
        return self.network.time_conditioned

    @property
    def stages(self) -> int:
        return self.network.stages

    @property
    def head(self) -> Head | None:
        """The output layer, for losses that need no logits."""
        return getattr(self.network, "head", None)

    @property
    def anchor_head(self) -> Head | None:
        """The anchor stage's output layer."""
        return getattr(self.network, "anchor_head", None)

    def features(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Features:
        return self.network.features(tokens, t, segments=segments, output_mask=output_mask)

    def anchor_stage(self, tokens: Tensor, t: Tensor | None = None, *, segments: Tensor | None = None) -> AnchorState:
        return self.network.anchor_stage(tokens, t, segments=segments)

    def denoise(
        self,
        stage: AnchorState,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Tensor:
        return self.network.denoise(stage, tokens, t, segments=segments, output_mask=output_mask)

    def cache(self, rows: int, length: int, t: Tensor | None = None, *, segments: Tensor | None = None) -> Cache:
        return self.network.cache(rows, length, t, segments=segments)

    def extend(self, tokens: Tensor, cache: Cache, *, every: bool = False) -> Features:
        return self.network.extend(tokens, cache, every=every)

    def in_blocks(self, size: int) -> Network:
        other = copy(self)
        other.network = self.network.in_blocks(size)
        return other

    def finished_blocks(self, rows: int, length: int) -> FinishedBlocks:
        return self.network.finished_blocks(rows, length)

    def read_block(
        self,
        tokens: Tensor,
        start: list[int],
        cache: FinishedBlocks,
        *,
        rows: list[int] | None = None,
        output_mask: Tensor | None = None,
        stage: AnchorState | None = None,
        left_to_right: bool = False,
    ) -> BlockFeatures:
        return self.network.read_block(
            tokens, start, cache, rows=rows, output_mask=output_mask, stage=stage, left_to_right=left_to_right
        )

    def logits(self, final: Tensor) -> Tensor:
        return self.network.logits(final)

    def anchor_logits(self, anchor: Tensor) -> Tensor:
        return self.network.anchor_logits(anchor)

    def inference_weights(self) -> AbstractContextManager[None]:
        return self.network.inference_weights()

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.network.parameters()


def anchor_predictions(network: Network, anchor: Tensor) -> Tensor:
    """The anchor stage's logits [N, V] from its features [N, D], the mask at -inf."""
    mask = torch.tensor([network.vocabulary.mask_id], device=anchor.device)
    return network.anchor_logits(anchor).index_fill(-1, mask, -torch.inf)
