"""The current block of each row of a canvas, read after the finished ones in a cache.

Shapes: B rows, L positions, N output positions.
"""

import torch
from torch import Tensor

from adlm.models.block_cache import FinishedBlocks
from adlm.models.hand_over import AnchorState
from adlm.samplers.network import Network


class BlockReader:
    """A reader of a network with block-causal attention.

    Args:
        stale_anchors: passes of a row that one computation of its anchor stage serves, within a block.
        cache: that the rows have already.

    calls, anchor_calls: passes of each row, counted as `SamplerState` does.
    """

    def __init__(
        self, network: Network, tokens: Tensor, stale_anchors: int, cache: FinishedBlocks | None = None
    ) -> None:
        self.network, self.tokens = network, tokens
        # An anchor stage that never sees the block serves all of it.
        self.stale_anchors = 1 << 30 if network.blind_anchor else stale_anchors
        self.cache = network.finished_blocks(*tokens.shape) if cache is None else cache
        self.start = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
        self._start = [0] * len(tokens)
        self.calls, self.anchor_calls = [0] * len(tokens), [0] * len(tokens)
        self._stage: AnchorState | None = None
        self._age = torch.zeros_like(self.start)

    def move(self, start: Tensor) -> None:
        """Go to the blocks that begin at `start` [B]; what is before them stays as it is."""
        self.start, self._start = start, start.tolist()
        self._age.fill_(self.stale_anchors)

    def keep(self, end: Tensor, rows: Tensor) -> None:
        """Keep what the last pass computed of these rows [B] bool up to `end` [B]: it read their final tokens, from
        left to right."""
        for row in rows.nonzero()[:, 0].tolist():
            self.cache.lengths[row] = int(end[row])

    def features(self, where: Tensor, *, left_to_right: bool = False) -> Tensor:
        """[N, D] at the positions `where` [B, L] of the current blocks; `left_to_right`: see `read_block`."""
        rows = where.any(-1)
        if left_to_right:
            return self._read(rows, where, None, left_to_right=True)
        if self.network.stages < 2 or self.stale_anchors < 2:
            return self._read(rows, where, None)
        old = rows & (self._age >= self.stale_anchors)
        parts = [
            self._read(some, where, stage)
            for some, stage in ((old, None), (rows & ~old, self._stage))
            if bool(some.any())
        ]
        if len(parts) == 1:
            return parts[0]
        # Back into the order of rows.
        numbers = where.nonzero()[:, 0]
        order = torch.cat([old[numbers].nonzero()[:, 0], (~old)[numbers].nonzero()[:, 0]])
        return torch.cat(parts)[order.argsort()]

    def anchor(self, where: Tensor) -> Tensor:
        """The anchor stage's features [N, D] at the positions `where` [B, L] of the current blocks."""
        rows = where.any(-1)
        if bool((rows & (self._age >= self.stale_anchors)).any()) or self._stage is None or self.stale_anchors < 2:
            self._read(rows, where, None)
        assert self._stage is not None
        row, position = where.nonzero(as_tuple=True)
        return self._stage.anchor[row, position - self.start[row]]

    def _read(self, rows: Tensor, where: Tensor, stage: AnchorState | None, *, left_to_right: bool = False) -> Tensor:
        """[N, D] of these rows [B] bool; `stage` of all rows, if they need no new one."""
        some = None if bool(rows.all()) else rows.nonzero()[:, 0].tolist()
        pick = slice(None) if some is None else some
        kept = None if stage is None else AnchorState(*(part[pick] for part in stage))
        start = self._start if some is None else [self._start[row] for row in some]
        options = {"left_to_right": True} if left_to_right else {}
        found = self.network.read_block(
            self.tokens[pick], start, self.cache, rows=some, output_mask=where[pick], stage=kept, **options
        )
        anchored = found.stage is not None and (stage is None or left_to_right)
        for row in range(len(rows)) if some is None else some:
            self.calls[row] += 1
            self.anchor_calls[row] += anchored
        if left_to_right:
            return found.final
        if found.stage is not None and stage is None:
            if self._stage is None:
                empty = (part.new_zeros(len(rows), *part.shape[1:]) for part in found.stage)
                self._stage = AnchorState(*empty)
            for whole, part in zip(self._stage, found.stage, strict=True):
                whole[pick] = part
            self._age[pick] = 0
        self._age[pick] += 1
        return found.final
