"""The network of one request, whose passes are computed together with those of other requests."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from adlm.models.block_cache import FinishedBlocks
from adlm.models.cache import Cache
from adlm.models.hand_over import AnchorState
from adlm.models.language_model import BlockFeatures, LanguageModel
from adlm.samplers.network import NetworkWrapper
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import SamplerState
from adlm.serve.block_pool import BlockPools, BlockReading
from adlm.serve.network_calls import Alone, BlockPass, LogitsCall, NetworkCall, NetworkInput, NextToken, Pass
from adlm.serve.row_filling import Record
from adlm.types import Features

Ask = Callable[[LanguageModel, NetworkCall], Any]
Fill = Callable[[LanguageModel, Sampler, SamplerState, Record | None], bool]


class BatchedNetwork(NetworkWrapper):
    """Hands every pass to a `Batcher` and waits for the result.

    The logits of the last final features come along with them once the request has shown that it draws tokens, so that
    it waits once per step.

    Args:
        ask: computes a call with a network, see `Batcher.shared`.
        fill: fills a state together with those of other requests, if it can.
        pools: for the caches of blocks.
    """

    def __init__(self, network: LanguageModel, ask: Ask, fill: Fill, pools: BlockPools) -> None:
        super().__init__(network)
        self._compute, self._fill, self._pools, self._draws = ask, fill, pools, False
        self._final: Tensor | None = None
        self._logits: Tensor | None = None

    def fill(self, sampler: Sampler, state: SamplerState, record: Record | None = None) -> bool:
        """See `FillsTogether`."""
        return self._fill(cast("LanguageModel", self.network), sampler, state, record)

    def features(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Features:
        rows = NetworkInput(tokens, self._times(t), segments, output_mask)
        found, logits = self._ask(Pass("features", rows, self._draws and output_mask is not None))
        self._final, self._logits = found.final, logits
        return found

    def anchor_stage(self, tokens: Tensor, t: Tensor | None = None, *, segments: Tensor | None = None) -> AnchorState:
        return self._ask(Pass("anchor_stage", NetworkInput(tokens, self._times(t), segments)))[0]

    def denoise(
        self,
        stage: AnchorState,
        tokens: Tensor,
        t: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
    ) -> Tensor:
        rows = NetworkInput(tokens, self._times(t), segments, output_mask, stage)
        found, logits = self._ask(Pass("denoise", rows, self._draws and output_mask is not None))
        self._final, self._logits = found, logits
        return found

    def extend(self, tokens: Tensor, cache: Cache, *, every: bool = False) -> Features:
        if not cache.length or tokens.shape[1] != 1 or every:
            return self._ask(Alone(lambda: self.network.extend(tokens, cache, every=every), len(tokens)))
        found, logits = self._ask(NextToken(tokens, cache, self._draws))
        self._final, self._logits = found.final, logits
        return found

    def finished_blocks(self, rows: int, length: int) -> FinishedBlocks:
        return self._pools.rows(rows, self.network.finished_blocks(rows, length).room)

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
        if output_mask is None:
            positions, first = torch.arange(tokens.shape[1], device=tokens.device), tokens.new_tensor(start)[:, None]
            output_mask = (positions >= first) & (positions < first + self.block_size)
        reading = BlockReading(tokens, start, cache, rows, output_mask, stage, left_to_right)
        found, logits = self._ask(BlockPass(reading, self.block_size, self._draws))
        self._final, self._logits = found.final, logits
        return found

    def logits(self, final: Tensor) -> Tensor:
        self._draws = True
        if final is self._final and self._logits is not None:
            return self._logits
        return self._ask(LogitsCall(final, self.vocabulary.size))

    def anchor_logits(self, anchor: Tensor) -> Tensor:
        return self._ask(LogitsCall(anchor, self.vocabulary.size, anchor=True))

    def _ask(self, call: NetworkCall) -> Any:
        return self._compute(cast("LanguageModel", self.network), call)

    def _times(self, t: Tensor | None) -> Tensor | None:
        return t if self.time_conditioned else None
