"""The current block of some rows, read after the finished ones in a cache: a decoding step of block diffusion.

Shapes: R rows, L length of the canvas, b block size; sites are the b noisy positions, for shifted models one more that
reads the last token of the block, and then the clean positions that the cache does not have yet.
"""

from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from adlm.models.block_cache import FinishedBlocks, Slots
from adlm.models.layers import CleanSites, Layout, reach

if TYPE_CHECKING:
    from adlm.models.stack import Stack


class BlockSites(Protocol):
    """The sites of a pass in blocks: of `TwoCopies`, all blocks at once, or of `CurrentBlock`, one after the others.

    inputs: [B, S] token ids.
    positions: [B|1, S].
    length: how many of the first sites can give a result.
    cache: of finished blocks.
    """

    @property
    def inputs(self) -> Tensor: ...
    @property
    def positions(self) -> Tensor: ...
    @property
    def length(self) -> int: ...
    @property
    def cache(self) -> FinishedBlocks | None: ...

    def layout(self, stack: "Stack") -> Layout:
        """Where the sites stand and what they see in this stack."""
        ...

    def blind_inputs(self, mask_id: int) -> Tensor:
        """[B, S]: `inputs` with every unfinished block masked."""
        ...


class CurrentBlock:
    """The sites of one block of each row.

    Args:
        tokens: [R, L] the rows.
        start: [R] first position of the block; everything before it is finished.
        size: b; what lies beyond the end of a row is blank.
        rows: [R] numbers of these rows in the cache; None for all.
    """

    def __init__(
        self,
        tokens: Tensor,
        start: Tensor,
        size: int,
        cache: FinishedBlocks,
        *,
        mask_id: int,
        shifted: bool,
        rows: Tensor | None = None,
    ) -> None:
        self.cache, self.size, self.shifted, device = cache, size, shifted, tokens.device
        self.length = size
        lengths = cache.lengths if rows is None else cache.lengths[rows]
        fresh = start - lengths
        clean = int(fresh.max())
        noisy = self.length + shifted
        self.slots = Slots(start, fresh, noisy, clean, rows)
        self.columns = torch.cat(
            [self.slots.index[:, :noisy], lengths[:, None] + torch.arange(clean, device=device)], 1
        )
        self.positions = self.columns
        padded = F.pad(tokens, (1, 1), value=mask_id)
        self.inputs = padded.gather(1, (self.columns + (0 if shifted else 1)).clamp_max(tokens.shape[1] + 1))
        # Slots that noisy sites see: finished positions, the block, and its last token if that is known.
        end = start + size
        if shifted:
            end = end + (padded.gather(1, end[:, None].clamp_max(tokens.shape[1] + 1))[:, 0] != mask_id)
        self.seen = end
        self.slots.width = int(end.max())
        self.even = bool((end == end[0]).all())
        self._numbers = torch.arange(self.slots.width, device=device)
        self._noisy = noisy

    def layout(self, stack: "Stack") -> Layout:
        self.cache.begin(self.slots)
        columns, numbers, n = self.columns[:, :, None], self._numbers, self._noisy
        hidden = None
        if stack.config.causal:
            hidden = (numbers > columns[:, :n]) | (numbers >= self.seen[:, None, None])
        elif not self.even:
            hidden = (numbers >= self.seen[:, None, None]).expand(-1, n, -1)
        of_clean = None
        if self.slots.clean:
            ends = columns[:, n:] + 1 if self.shifted else (columns[:, n:] // self.size + 1) * self.size
            of_clean = (numbers >= ends)[:, None]
        neighbours = (
            self._neighbours(*reach(stack.config.convolution, shifted=self.shifted))
            if stack.config.convolution
            else None
        )
        clean = CleanSites(n, of_clean, neighbours)
        return stack.layout_at(self.positions, None if hidden is None else hidden[:, None], clean, self.shifted)

    def _neighbours(self, before: int, after: int) -> Tensor:
        """[R, size, S] slots."""
        offset = torch.arange(-before, after + 1, device=self.columns.device)[:, None]
        slot = self.columns[:, None] + offset
        own = self.columns[:, None] // self.size == slot // self.size
        inside = (slot >= 0) & (slot < self.slots.width) & ((offset <= 0) | own)
        return torch.where(inside, slot, -1)

    def blind_inputs(self, mask_id: int) -> Tensor:
        blind = self.inputs.clone()
        blind[:, 1 : self._noisy] = mask_id
        return blind
