"""The interface of every language model: features for all positions first, logits for chosen positions last.

Position l of the features predicts token l, in every model. A left-to-right model therefore shifts its input by itself
and starts from a token that is not part of the row: the mask, which no text contains, or another of its own choice.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.errors import ConfigError, OutOfRange
from adlm.models.block import Block
from adlm.models.block_cache import FinishedBlocks
from adlm.models.block_pass import BlockSites, CurrentBlock
from adlm.models.cache import Cache
from adlm.models.derived import inference_weights
from adlm.models.embedding import Head, check_length
from adlm.models.hand_over import AnchorState
from adlm.models.int8 import check_supported
from adlm.models.layers import starts_of
from adlm.models.network import CacheKind, NetworkConfig, Vocabulary, cache_kind_of
from adlm.models.stack import Attention, Stack
from adlm.models.two_copies import block_numbers, two_copies
from adlm.models.unpadded import pack, plan_for, unpack
from adlm.types import Features


class BlockFeatures(NamedTuple):
    """Features [N, D] at output positions of the current blocks, and the anchor stage there if there is one."""

    final: Tensor
    stage: AnchorState | None


class LanguageModel(nn.Module, ABC):
    """Tokens [B, L] -> features [B, L, D] -> logits [N, V] at N chosen positions.

    Callers ask for capabilities, never for classes: `stages`, `attention`, `cache_kind`, `shifted`,
    `time_conditioned`, `learned_positions` mean what they mean in `NetworkConfig`. A kind of network implements
    `_features` and `logits`; one that can be cached also `embed_inputs` and `extend_vectors`.
    """

    config: NetworkConfig
    vocabulary: Vocabulary
    stages: int = 1
    attention: Attention = "full"
    block_size: int = 0
    shifted: bool = False
    start: int | None = None
    blind_anchor: bool = False
    time_conditioned: bool = False
    learned_positions: int = 0
    # Models whose logits are one linear map of the features show it here, so that losses need not store logits.
    head: Head | None
    anchor_head: Head | None

    def __init__(self, config: NetworkConfig | None = None, vocabulary: Vocabulary | None = None) -> None:
        super().__init__()
        self.head = self.anchor_head = None
        if vocabulary is not None:
            self.vocabulary = vocabulary
        if config is not None:
            self.config = config
            self.stages, self.attention = config.stages, config.attention
            self.block_size, self.shifted, self.blind_anchor = config.block_size, config.shifted, config.blind_anchor
            self.start = config.start
            if config.start is not None and vocabulary is not None and not 0 <= config.start < vocabulary.size:
                raise OutOfRange("start", config.start, f"a token of the {vocabulary.size}")
            self.time_conditioned, self.learned_positions = config.time_conditioned, config.learned_positions

    @property
    def causal(self) -> bool:
        """Whether positions see only what is to their left."""
        return self.attention == "causal"

    @property
    def start_id(self) -> int:
        """The token that a shifted model reads before a row."""
        return self.vocabulary.mask_id if self.start is None else self.start

    @property
    def cache_kind(self) -> CacheKind | None:
        """The kind of cache that `cache` makes; None means that the model cannot be cached."""
        return cache_kind_of(self.attention)

    def forward(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, L, V], or [N, V] at the positions in `output_mask`; position l predicts token l.

        For a look at a model. A table [B, L, V] is large: training and sampling never build it, they call `features`
        and then `logits` at the positions they need. Arguments are those of `features`.
        """
        return self.logits(self.features(tokens, t, segments=segments, output_mask=output_mask).final)

    def features(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
        clean: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> Features:
        """Hidden states at every position.

        Args:
            tokens: x_t [B, L].
            t: [B], for time-conditioned models.
            segments: [B, L] numbers; positions see each other if these are equal (`Batch.segments`), so that padding
                and other documents do not influence a text.
            output_mask: [B, L] bool; with it `final` is [N, D], at these positions only, which is cheaper.
            clean: x_0 [B, L], for block diffusion: what each block sees of those before it; by default `tokens`.
            blocks: [B|1, L] number of the block of each position; by default blocks of the model's `block_size`.
        """
        if self.reads_blocks:
            return self._features_in_blocks(tokens, clean, blocks, segments, output_mask)
        plan = plan_for(segments) if segments is not None and not self.time_conditioned else None
        if plan is None:
            return self._features(tokens, t, segments, output_mask)
        packed_mask = None if output_mask is None else pack(plan, output_mask, False)
        packed = self._features(pack(plan, tokens, self.vocabulary.mask_id), None, plan.segments, packed_mask)
        return unpack(plan, packed, output_mask, tokens.shape)

    @property
    def reads_blocks(self) -> bool:
        """Whether rows are read in blocks; a shifted model that sees everything reads one."""
        return self.attention == "block" or (self.shifted and not self.causal)

    def _features_in_blocks(
        self,
        tokens: Tensor,
        clean: Tensor | None,
        blocks: Tensor | None,
        segments: Tensor | None,
        output_mask: Tensor | None,
    ) -> Features:
        length = tokens.shape[1]
        if self.learned_positions:
            check_length(length, self.learned_positions)
        if blocks is None:
            size = self.block_size or length
            if segments is None and length % size:
                return self._features_of_whole_blocks(tokens, clean, size - length % size, output_mask)
            blocks = block_numbers(length, size, segments, tokens.device)
        clean = tokens if clean is None else clean
        # A row of one block has no clean copy, which a packed row would need for all texts but its last.
        several = segments is not None and bool((blocks[:, -1] > 0).any())
        plan = plan_for(segments) if segments is not None and several else None
        if plan is None:
            return self._features_of_copies(tokens, clean, blocks, segments, output_mask)
        mask_id, blocks = self.vocabulary.mask_id, blocks.expand_as(tokens)
        packed = self._features_of_copies(
            pack(plan, tokens, mask_id),
            pack(plan, clean, mask_id),
            pack(plan, blocks, -1),
            plan.segments,
            None if output_mask is None else pack(plan, output_mask, False),
        )
        return unpack(plan, packed, output_mask, tokens.shape)

    def _features_of_copies(
        self, tokens: Tensor, clean: Tensor, blocks: Tensor, segments: Tensor | None, output_mask: Tensor | None
    ) -> Features:
        """The features of x_t `tokens` and x_0 `clean`, without repacking the rows."""
        start = self.start_id if self.shifted else None
        sites = two_copies(tokens, clean, blocks, segments, mask_id=self.vocabulary.mask_id, start=start)
        if output_mask is not None:
            return self._read_sites(sites, output_mask)
        features = self._read_sites(sites, torch.ones_like(tokens, dtype=torch.bool))
        return features._replace(final=features.final.view(*tokens.shape, -1))

    def _features_of_whole_blocks(
        self, tokens: Tensor, clean: Tensor | None, missing: int, output_mask: Tensor | None
    ) -> Features:
        """Of rows whose last block lacks so many tokens: they are blank, as they are while a text is written."""
        length, mask_id = tokens.shape[1], self.vocabulary.mask_id
        tokens = F.pad(tokens, (0, missing), value=mask_id)
        clean = None if clean is None else F.pad(clean, (0, missing), value=mask_id)
        output_mask = None if output_mask is None else F.pad(output_mask, (0, missing), value=False)
        features = self._features_in_blocks(tokens, clean, None, None, output_mask)
        final = features.final if output_mask is not None else features.final[:, :length]
        return Features(final, None if features.anchor is None else features.anchor[:, :length])

    def _read_sites(self, sites: BlockSites, output_mask: Tensor) -> Features:
        """As `_features`, for the sites of a pass in blocks; `anchor` is [B, L, D] all the same."""
        raise ConfigError(f"{type(self).__name__} cannot read blocks", subject=type(self).__name__)

    def in_blocks(self, size: int) -> "LanguageModel":
        """The same weights, read in blocks of `size` tokens: 1 is left to right, 0 sees whole rows at once.

        A model does well at the sizes it was trained with. For models that read blocks, and shifted ones.
        """
        return resized(self, size)

    def finished_blocks(self, rows: int, length: int) -> FinishedBlocks:
        """An empty cache for `read_block`, with room for `length` tokens in each of `rows` rows."""
        if self.cache_kind != "blocks":
            raise ConfigError("only models with block-causal attention cache blocks", subject="attention")
        # The last block of a row is read whole, and then the site of its last token.
        return FinishedBlocks(rows, length + self.block_size + 1)

    @torch.no_grad()
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
        """Read the block of each row that begins at `start`, a multiple of `block_size` unless the model is shifted.

        Positions before it that the cache does not hold yet are read too, and stored: they have to be final.

        Args:
            tokens: [R, L] the rows.
            rows: numbers of these rows in the cache; None for all of them, in order.
            output_mask: [R, L] bool, within the block; by default all of it.
            stage: of an earlier call for the same blocks; the anchor stage is then not computed.
            left_to_right: positions of the block see only what is to their left, for shifted models: what they
                compute as left-to-right ones.
        """
        if left_to_right and not self.shifted:
            raise ConfigError("only shifted models can be read from left to right", subject="left_to_right")
        block = CurrentBlock(
            tokens,
            start,
            self.block_size,
            cache,
            mask_id=self.vocabulary.mask_id,
            first_id=self.start_id if self.shifted else None,
            rows=rows,
            left_to_right=left_to_right,
            last=self.stages == 2,  # whose anchor stage may be used again when the last token is known
        )
        if output_mask is None:
            inside = torch.ones(len(tokens), block.length, dtype=torch.bool, device=tokens.device)
        else:
            columns = block.columns[:, : block.length]
            columns = columns.expand(len(tokens), -1).clamp_max(tokens.shape[1])
            inside = F.pad(output_mask, (0, 1)).gather(1, columns)
        features = self._read_current(block, inside, stage)
        for row, first in zip(range(len(start)) if rows is None else rows, start, strict=True):
            cache.lengths[row] = first
        return features

    def _read_current(self, block: CurrentBlock, output_mask: Tensor, stage: AnchorState | None) -> BlockFeatures:
        return BlockFeatures(self._read_sites(block, output_mask).final, None)

    @abstractmethod
    def _features(
        self, tokens: Tensor, t: Tensor | None, segments: Tensor | None, output_mask: Tensor | None
    ) -> Features:
        """As `features`, without repacking the rows."""

    @abstractmethod
    def logits(self, final: Tensor) -> Tensor:
        """Logits [N, V] from features [N, D], in at least float32, the mask at -inf."""

    def anchor_stage(self, tokens: Tensor, t: Tensor | None = None, *, segments: Tensor | None = None) -> AnchorState:
        """The output of the first of two stages for rows [B, L]; input of `denoise`."""
        raise self._one_stage("an anchor stage")

    def denoise(
        self,
        stage: AnchorState,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Tensor:
        """The final features from an anchor stage that may have read the rows when less of them was visible.

        How much of the new `tokens` [B, L] the denoiser sees depends on the hand-over: with `Logits` nothing, with
        `Hidden` all of them.
        """
        raise self._one_stage("an anchor stage")

    def anchor_logits(self, anchor: Tensor) -> Tensor:
        """The anchor stage's logits [N, V] from [N, D], including that of the mask, as the official loss reads them."""
        raise self._one_stage("anchor logits")

    def check_two_stages(self, purpose: str) -> None:
        """Refuse a model with one stage if `purpose` needs two."""
        if self.stages < 2:
            raise self._one_stage(purpose)

    def _one_stage(self, purpose: str) -> ConfigError:
        return ConfigError(
            f"{purpose} needs a two-stage model, and {type(self).__name__} has one stage", subject="stages"
        )

    def cache(self, rows: int, length: int, t: Tensor | None = None, *, segments: Tensor | None = None) -> Cache:
        """An empty cache for `extend`, with room for `length` tokens in each of `rows` rows.

        Args:
            t: [B], for time-conditioned models.
            segments: [B, n] of the first n tokens, if these are texts of different lengths, padded on the left.
        """
        self.check_cached("a cache")
        if segments is not None and (len(segments) != rows or not bool((segments[:, -1:] >= 0).all())):
            raise ConfigError(
                f"segments must have {rows} rows, padded on the left; got {len(segments)}, of which "
                f"{int((segments[:, -1:] < 0).sum())} end in padding",
                subject="segments",
            )
        return Cache(rows, length, t, segments)

    def check_cached(self, purpose: str) -> None:
        """Refuse a model without a cache if `purpose` needs one."""
        if self.cache_kind is None:
            raise ConfigError(
                f"{purpose} needs a model with causal stacks, and {type(self).__name__} sees both sides",
                fix="use features",
                subject="attention",
            )

    @torch.no_grad()
    def extend(self, tokens: Tensor, cache: Cache, *, every: bool = False) -> Features:
        """Read the tokens that follow what the cache holds, and predict the next one.

        Args:
            tokens: [B, n]. The first call may bring none: then the first token is predicted.
            every: `final` is [B, n, D], of all new positions, instead of [B, D]; the first call has one more, since
                nothing had predicted its first token yet. Together they are `features` of the whole rows.
        """
        inputs = self.cached_inputs(tokens, cache)
        new = inputs.shape[1]
        output_mask = None
        if new > 1 and not every:
            output_mask = (torch.arange(new, device=inputs.device) == new - 1).expand_as(inputs)
        features = self.extend_vectors(self.embed_inputs(inputs), cache, output_mask)
        cache.length += new
        return features if every else features._replace(final=features.final.flatten(1))

    def cached_inputs(self, tokens: Tensor, cache: Cache) -> Tensor:
        """The inputs of the next positions: these tokens, and the start token where a row or a segment begins."""
        inputs = tokens if cache.length else F.pad(tokens, (1, 0), value=self.start_id)
        cache.check(inputs)
        segments = cache.segments_after(inputs.shape[1])
        if segments is None:
            return inputs
        return inputs.masked_fill(starts_of(segments)[:, cache.length :], self.start_id)

    def embed_inputs(self, inputs: Tensor) -> Tensor:
        """The vectors [B, n, D] of tokens [B, n], as `extend_vectors` reads them."""
        raise self._without_cache()

    def extend_vectors(self, vectors: Tensor, cache: Cache, output_mask: Tensor | None) -> Features:
        """As `_features`, for new positions after those in the cache, which read `vectors` [B, n, D]."""
        raise self._without_cache()

    def _without_cache(self) -> ConfigError:
        return ConfigError(f"{type(self).__name__} cannot be cached; use features", subject=type(self).__name__)

    def inference_weights(self) -> AbstractContextManager[None]:
        """`with model.inference_weights():` no weight changes inside, so what is derived from weights is computed
        once."""
        return inference_weights(self)

    def checkpoint_activations(self, on: bool = True) -> None:
        """Store one activation per block in training and recompute the rest: less memory, a third more work."""
        for module in self.modules():
            if isinstance(module, Stack):
                module.checkpointing = on

    def use_int8(self, on: bool = True) -> None:
        """Sample and score with the blocks' weights in 8 bits, on a CPU: faster, and not exact.

        Training and the heads are unaffected; time-conditioned stacks keep some of their products in full precision.
        """
        for block in self._blocks():
            if on:
                check_supported(block.norm_1.weight.device)
            block.int8 = on

    def compile_blocks(self, *args: Any, **kwargs: Any) -> None:
        """torch.compile each block: they share one shape, so a stack of any depth is compiled once."""
        for block in self._blocks():
            block.compile(*args, **kwargs)

    def _blocks(self) -> Iterator[Block]:
        return (module for module in self.modules() if isinstance(module, Block))


def resized(model: LanguageModel, size: int) -> LanguageModel:
    """A model with the same modules that reads blocks of another size. See `LanguageModel.in_blocks`."""
    if size < 0:
        raise OutOfRange("block_size", size, "at least 1, or 0 for whole rows")
    if size == model.block_size and model.attention == "block":
        return model
    if not model.shifted and (size == 1 or not model.reads_blocks):
        raise ConfigError(
            f"cannot read blocks of {size}",
            "the model predicts each token where it reads it"
            + ("" if model.reads_blocks else ", and was trained to see whole rows"),
            "use a shifted model, or one with block-causal attention",
            subject="block_size",
        )
    attention: Attention = "causal" if size == 1 else "block" if size else "full"
    stages = {name: stage for name, stage in model.named_children() if isinstance(stage, Stack)}
    if not stages:
        raise ConfigError(f"{type(model).__name__} reads rows in one way only", subject="block_size")
    config = model.config.variant(attention=attention, block_size=size if attention == "block" else 0)
    other = copy(model)
    other._modules = dict(model._modules)
    other.config, other.attention, other.block_size = config, attention, config.block_size
    other.blind_anchor = config.blind_anchor
    for (name, stage), stack in zip(stages.items(), config.stacks, strict=True):
        seen = copy(stage)
        seen.config = stack
        other._modules[name] = seen
    return other
