"""The next token of left-to-right rows that belong to several requests, read in one pass.

Each request keeps its own cache. For the time of a pass they stand side by side: what was read ends at the same column
in all rows, shorter ones begin with padding that segments hide. The caches are told what is new when the pass is done,
so that one that fails leaves them as they were.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.models.cache import BlockCache, Cache
from adlm.models.language_model import LanguageModel
from adlm.types import Features


class CachedReading(NamedTuple):
    """A token [B, 1] for each row of a cache that has read something."""

    tokens: Tensor
    cache: Cache


@torch.no_grad()
def read_together(network: LanguageModel, readings: Sequence[CachedReading]) -> list[Features]:
    """What `network.extend` gives for each."""
    for each in readings:
        each.cache.check(each.tokens)
    tokens = torch.cat([each.tokens for each in readings])
    beside = _Beside([each.cache for each in readings], tokens.device)
    found = network.extend(tokens, beside)
    beside.hand_back()
    finals = found.final.split(beside.counts)
    anchors: Sequence[Tensor | None] = [None] * len(readings)
    if found.anchor is not None:
        anchors = found.anchor.split(beside.counts)
    return [Features(final, anchor) for final, anchor in zip(finals, anchors, strict=True)]


class _Beside(Cache):
    """Several caches as one, for one token more."""

    def __init__(self, caches: Sequence[Cache], device: torch.device) -> None:
        self.caches = caches
        self.counts = [cache.rows for cache in caches]
        longest = max(cache.length for cache in caches)
        times = [cache.t for cache in caches if cache.t is not None]
        alike = all(cache.length == longest and cache.segments is None for cache in caches)
        segments = None if alike else torch.cat([_segments(cache, longest, device) for cache in caches])
        t = torch.cat(times) if len(times) == len(caches) else None
        super().__init__(sum(self.counts), longest + 1, t, segments)
        self.length = longest

    def of(self, block: nn.Module) -> BlockCache:
        if block not in self._memories:
            self._memories[block] = _MemoryBeside([cache.of(block) for cache in self.caches], self.counts, self.room)
        return self._memories[block]

    def hand_back(self) -> None:
        for memory in self._memories.values():
            assert isinstance(memory, _MemoryBeside)
            memory.hand_back()
        for cache in self.caches:
            cache.length += 1


class _MemoryBeside(BlockCache):
    def __init__(self, memories: Sequence[BlockCache], counts: list[int], room: int) -> None:
        super().__init__(room)
        self.memories, self.counts = memories, counts

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.keys, self.values = k, v
        keys, values = [memory.keys for memory in self.memories], [memory.values for memory in self.memories]
        return self._all(keys, k), self._all(values, v)

    def following(self, x: Tensor, count: int) -> Tensor:
        kept = [
            x.new_zeros(rows, count, x.shape[-1]) if memory.inputs is None else memory.inputs
            for memory, rows in zip(self.memories, self.counts, strict=True)
        ]
        both = torch.cat([torch.cat(kept), x], 1)
        self.inputs = both[:, both.shape[1] - count :]
        return both

    def hand_back(self) -> None:
        if self.keys is not None and self.values is not None:
            news = zip(self.memories, self.keys.split(self.counts), self.values.split(self.counts), strict=True)
            for memory, k, v in news:
                memory.append(k, v)
        if self.inputs is not None:
            for memory, inputs in zip(self.memories, self.inputs.split(self.counts), strict=True):
                memory.inputs = inputs

    def _all(self, kept: Sequence[Tensor | None], new: Tensor) -> Tensor:
        """[B, H, room, D/H]: what each has kept, so that it ends before the last column, and there the new."""
        rows, heads, _, width = new.shape
        whole = new.new_zeros(rows, heads, self.room, width)
        whole[:, :, -1:] = new
        row = 0
        for memory, own, count in zip(self.memories, kept, self.counts, strict=True):
            assert own is not None
            last = self.room - 1
            whole[row : row + count, :, last - memory.length : last] = own[:, :, : memory.length]
            row += count
        return whole


def _segments(cache: Cache, length: int, device: torch.device) -> Tensor:
    """[B, length] of what the cache has read, padded on the left."""
    known = cache.segments_after(0)
    if known is None:
        known = torch.zeros(cache.rows, cache.length, dtype=torch.long, device=device)
    return F.pad(known, (length - cache.length, 0), value=-1)
