"""Caches of finished blocks that stand side by side, so that requests at different blocks share passes without copies.

Every request has rows of its own in a pool, for as long as its cache lives. A pass reads the rows of several requests
as one batch.
"""

import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.models.block_cache import FinishedBlocks, SlotMemory
from adlm.models.hand_over import AnchorState
from adlm.models.language_model import BlockFeatures, LanguageModel

_ROWS = 16  # of a pool, at least
_ROOM = 128  # rooms are multiples of this


class BlockPool:
    """The cached rows of several requests, all with the same room.

    Args:
        rows: how many fit.
        room: slots of a row.
    """

    def __init__(self, rows: int, room: int) -> None:
        self.cache = FinishedBlocks(rows, room)
        self.free = list(range(rows))
        self.lock = threading.Lock()


class PooledBlocks(FinishedBlocks):
    """The finished blocks of one request.

    numbers: of its rows in the pool.
    """

    def __init__(self, pool: BlockPool, numbers: list[int], room: int) -> None:
        super().__init__(len(numbers), room)
        self.pool, self.numbers = pool, numbers


class BlockPools:
    """Pools for the requests of one model; those without a request are dropped."""

    def __init__(self) -> None:
        self._pools: list[BlockPool] = []
        self._lock = threading.Lock()

    def rows(self, rows: int, room: int) -> PooledBlocks:
        """An empty cache, until nothing refers to it any more."""
        room = -(-room // _ROOM) * _ROOM
        with self._lock:
            fitting = (p for p in self._pools if p.cache.room == room and len(p.free) >= rows)
            pool = next(fitting, None)
            if pool is None:
                pool = BlockPool(max(rows, _ROWS), room)
                self._pools.append(pool)
            numbers = sorted(pool.free)[:rows]
            for number in numbers:
                pool.free.remove(number)
        found = PooledBlocks(pool, numbers, room)
        weakref.finalize(found, self._release, pool, numbers)
        return found

    def _release(self, pool: BlockPool, numbers: list[int]) -> None:
        # A finalizer may run while this thread holds the lock, so it takes none. To extend a list in place is atomic;
        # another list in its place could undo what a thread takes at the same time.
        pool.free.extend(numbers)
        if len(pool.free) == pool.cache.num_rows and pool in self._pools:
            self._pools.remove(pool)


class BlockReading(NamedTuple):
    """What a request asks `LanguageModel.read_block` for."""

    tokens: Tensor
    start: list[int]
    cache: FinishedBlocks
    rows: list[int] | None
    output_mask: Tensor
    stage: AnchorState | None
    left_to_right: bool

    @property
    def numbers(self) -> list[int]:
        """Of its rows, in the cache of the request."""
        return list(range(len(self.tokens))) if self.rows is None else self.rows

    @property
    def clean(self) -> int:
        """Positions that a row reads before its block, at most."""
        lengths = self.cache.lengths
        return max(first - lengths[row] for first, row in zip(self.start, self.numbers, strict=True))


@torch.no_grad()
def read_blocks_together(network: LanguageModel, readings: Sequence[BlockReading]) -> list[BlockFeatures]:
    """What `network.read_block` gives for each; all caches are of one pool."""
    order = sorted(range(len(readings)), key=lambda i: _pooled(readings[i]).numbers[0])
    parts = [readings[i] for i in order]
    pool, mask_id = _pooled(parts[0]).pool, network.vocabulary.mask_id
    length = max(each.tokens.shape[1] for each in parts)

    def filled(values: Sequence[Tensor], fill: int | bool) -> Tensor:
        return torch.cat([F.pad(x, (0, length - x.shape[1]), value=fill) for x in values])

    rows = [_pooled(each).numbers[row] for each in parts for row in each.numbers]
    stored = [each.cache.lengths[row] for each in parts for row in each.numbers]
    for row, known in zip(rows, stored, strict=True):
        pool.cache.lengths[row] = known
    stages = [each.stage for each in parts if each.stage is not None]
    # Lanes use a pool at the same time: what a pass is about belongs to a view of its own.
    found = network.read_block(
        filled([each.tokens for each in parts], mask_id),
        [first for each in parts for first in each.start],
        _View(pool),
        rows=rows,
        output_mask=filled([each.output_mask for each in parts], False),
        stage=AnchorState(*map(torch.cat, zip(*stages, strict=True))) if stages else None,
        left_to_right=parts[0].left_to_right,
    )
    results: list[BlockFeatures | None] = [None] * len(readings)
    finals = found.final.split([int(each.output_mask.sum()) for each in parts])
    counts, row = [len(each.tokens) for each in parts], 0
    for i, each, final, count in zip(order, parts, finals, counts, strict=True):
        for number, first in zip(each.numbers, each.start, strict=True):
            each.cache.lengths[number] = first
        stage = None if found.stage is None else AnchorState(*(part[row : row + count] for part in found.stage))
        results[i], row = BlockFeatures(final, stage), row + count
    return [each for each in results if each is not None]


class _View(FinishedBlocks):
    """A pool's memory for one pass."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__(pool.cache.num_rows, pool.cache.room)
        self.lengths, self._pool = pool.cache.lengths, pool

    def of(self, block: nn.Module) -> SlotMemory:
        if block not in self._memories:
            with self._pool.lock:
                shared = self._pool.cache.of(block)
            self._memories[block] = _ViewedMemory(shared, self._pool.lock)
        return super().of(block)


class _ViewedMemory(SlotMemory):
    """The slots of one block of a network, which several passes write to at the same time, each to rows of its own."""

    def __init__(self, shared: SlotMemory, lock: threading.Lock) -> None:
        super().__init__(shared.num_rows, shared.room)
        self._shared, self._lock = shared, lock

    def place(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        with self._lock:
            self.keys, self.values = self._shared.allocated(k, v)
        return super().place(k, v)

    def place_inputs(self, x: Tensor) -> Tensor:
        with self._lock:
            self.inputs = self._shared.allocated_inputs(x)
        return super().place_inputs(x)


def _pooled(reading: BlockReading) -> PooledBlocks:
    assert isinstance(reading.cache, PooledBlocks)
    return reading.cache
