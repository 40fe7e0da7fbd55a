"""What a left-to-right model keeps of the rows it has read, so that only new positions have to be computed.

Shapes: B rows, L positions, D width, H heads.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.errors import ConfigError, OutOfRange


class BlockCache:
    """The cache of one block: keys and values [B, H, L, D/H], and the last inputs of its short convolution."""

    def __init__(self, room: int) -> None:
        self.room, self.length = room, 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.inputs: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of n new positions [B, H, n, D/H]; returns all so far [B, H, length, D/H]."""
        if torch.is_grad_enabled():
            # The backward pass needs the tensors of earlier positions: nothing may be overwritten.
            self.keys = k if self.keys is None else torch.cat([self.keys, k], 2)
            self.values = v if self.values is None else torch.cat([self.values, v], 2)
            self.length = self.keys.shape[2]
            return self.keys, self.values
        if self.keys is None or self.values is None:
            # Allocated now, since type and device were not known before.
            self.keys, self.values = (x.new_empty(*x.shape[:2], self.room, x.shape[-1]) for x in (k, v))
        start, end = self.length, self.length + k.shape[2]
        self.keys[:, :, start:end], self.values[:, :, start:end] = k, v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def following(self, x: Tensor, count: int) -> Tensor:
        """The convolution's last `count` inputs, zeros where there were none, and the new ones x [B, n, D]."""
        before = x.new_zeros(len(x), count, x.shape[-1]) if self.inputs is None else self.inputs
        both = torch.cat([before, x], 1)
        self.inputs = both[:, both.shape[1] - count :]
        return both

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these [B] bool."""
        self.keys, self.values, self.inputs = self._of(rows)

    def part(self, rows: Tensor) -> "BlockCache":
        """A copy of these rows [B] bool."""
        found = BlockCache(self.room)
        found.length = self.length
        found.keys, found.values, found.inputs = self._of(rows)
        return found

    def _of(self, rows: Tensor) -> list[Tensor | None]:
        return [None if x is None else x[rows] for x in (self.keys, self.values, self.inputs)]

    @classmethod
    def joined(cls, parts: Sequence["BlockCache"], own: Sequence[int], room: int) -> "BlockCache":
        """The rows of several, of which the last `own` positions each end side by side."""
        found = cls(room)
        found.length = length = max(own)

        def beside(kept: Sequence[Tensor | None]) -> Tensor:
            ends = [
                x[:, :, part.length - count : part.length]
                for x, part, count in zip(kept, parts, own, strict=True)
                if x is not None
            ]
            # Zeros on the left, since what is hidden there is multiplied all the same.
            whole = ends[0].new_zeros(sum(map(len, ends)), ends[0].shape[1], room, ends[0].shape[-1])
            row = 0
            for end in ends:
                whole[row : row + len(end), :, length - end.shape[2] : length] = end
                row += len(end)
            return whole

        found.keys, found.values = beside([part.keys for part in parts]), beside([part.values for part in parts])
        inputs = [part.inputs for part in parts if part.inputs is not None]
        found.inputs = torch.cat(inputs) if inputs else None
        return found


class Cache:
    """The caches of all blocks of a model.

    `length` counts the positions read so far. The first position reads the start of a row and each further one a
    token, so as soon as anything was read, that is one more than the tokens known.

    Args:
        rows: B.
        room: L; memory for so many positions is allocated when the first are read.
        t: [B], for time-conditioned models: a cache belongs to one time.
        segments: [B, n] of the first positions, if rows do not begin at the first: positions see each other if they
            are equal. Later positions belong to the segment of the last.
    """

    def __init__(self, rows: int, room: int, t: Tensor | None = None, segments: Tensor | None = None) -> None:
        self.rows, self.room, self.t, self.segments, self.length = rows, room, t, segments, 0
        self._memories: dict[nn.Module, BlockCache] = {}

    def of(self, block: nn.Module) -> BlockCache:
        """The cache of one block."""
        if block not in self._memories:
            self._memories[block] = BlockCache(self.room)
        return self._memories[block]

    def segments_after(self, new: int) -> Tensor | None:
        """The segments [B, length + new] of all positions once so many new ones are read."""
        known, length = self.segments, self.length + new
        if known is None or known.shape[1] >= length:
            return None if known is None else known[:, :length]
        return torch.cat([known, known[:, -1:].expand(-1, length - known.shape[1])], 1)

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these [B] bool."""
        self.rows = int(rows.sum())
        self.t = None if self.t is None else self.t[rows]
        self.segments = None if self.segments is None else self.segments[rows]
        for each in self._memories.values():
            each.keep(rows)

    def part(self, rows: Tensor) -> "Cache":
        """A copy of these rows [B] bool."""
        t, segments = (None if x is None else x[rows] for x in (self.t, self.segments))
        found = Cache(int(rows.sum()), self.room, t, segments)
        found.length = self.length
        found._memories = {block: memory.part(rows) for block, memory in self._memories.items()}
        return found

    @classmethod
    def joined(cls, parts: Sequence["Cache"], more: int) -> "Cache":
        """The rows of caches that have read something in one, with room for `more` positions.

        What they have read ends side by side; where a row has less of it, segments hide the padding on its left.
        """
        known = [part.segments_after(0) for part in parts]
        own = [
            part.length if each is None else int((each >= 0).sum(-1).max())
            for part, each in zip(parts, known, strict=True)
        ]
        length = max(own)
        segments = None
        if any(each is not None for each in known) or min(own) < length:
            segments = torch.cat(
                [
                    F.pad(_segments(part, each)[:, part.length - count :], (length - count, 0), value=-1)
                    for part, each, count in zip(parts, known, own, strict=True)
                ]
            )
            segments = None if bool((segments == segments[0, -1]).all()) else segments
        times = [part.t for part in parts if part.t is not None]
        found = cls(sum(part.rows for part in parts), length + more, torch.cat(times) if times else None, segments)
        found.length = length
        found._memories = {
            block: BlockCache.joined([part.of(block) for part in parts], own, length + more)
            for block in parts[0]._memories
        }
        return found

    def check(self, inputs: Tensor) -> None:
        """Refuse what cannot be read next."""
        rows, new = inputs.shape
        if rows != self.rows:
            raise OutOfRange("rows", rows, f"the {self.rows} of the cache")
        if new == 0:
            raise OutOfRange("tokens", 0, "at least one: the next token is predicted already")
        if self.length + new > self.room:
            raise ConfigError(
                f"{new} more positions do not fit the cache: {self.length} of {self.room} are taken",
                fix="make a longer cache; the last token of a row need not be read",
                subject="length",
            )


def _segments(cache: Cache, known: Tensor | None) -> Tensor:
    """[B, length] of what a cache has read, if it knows them; otherwise of one text in each row."""
    if known is not None:
        return known
    device = next((x.keys.device for x in cache._memories.values() if x.keys is not None), None)
    return torch.zeros(cache.rows, cache.length, dtype=torch.long, device=device)
