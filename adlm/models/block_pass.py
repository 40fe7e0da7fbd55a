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
        """The positions of the sites and what they see in this stack."""
        ...

    def blind_inputs(self, mask_id: int) -> Tensor:
        """The inputs [B, S] with every unfinished block masked."""
        ...


class CurrentBlock:
    """The sites of one block of each row. Rows that stand at the same block share positions and masks.

    Args:
        tokens: [R, L] the rows.
        start: first position of the block of each row; everything before it is finished.
        size: b; what lies beyond the end of a row is blank.
        first_id: the token that a shifted model reads before a row; None if it is not shifted.
        rows: numbers of these rows in the cache; None for all.
        last: shifted models have the site of the last token even if no row knows that yet.
        left_to_right: sites of the block see only what is to their left, in every stack.
    """

    def __init__(
        self,
        tokens: Tensor,
        start: list[int],
        size: int,
        cache: FinishedBlocks,
        *,
        mask_id: int,
        first_id: int | None,
        rows: list[int] | None = None,
        last: bool = False,
        left_to_right: bool = False,
    ) -> None:
        self._left_to_right = left_to_right
        shifted = first_id is not None
        self.cache, self.length, self.shifted = cache, size, shifted
        stored = cache.lengths if rows is None else [cache.lengths[row] for row in rows]
        padded = F.pad(F.pad(tokens, (0, size + 1), value=mask_id), (1, 0), value=first_id or 0)
        # The number of slots that noisy sites see: finished positions, the block, and its last token if it is known.
        seen = [first + size for first in start]
        noisy = size
        if shifted and not left_to_right:  # where nothing is to the left of that site
            known = padded.gather(1, torch.tensor(seen, device=tokens.device)[:, None])[:, 0] != mask_id
            seen = [end + more for end, more in zip(seen, known.tolist(), strict=True)]
            noisy += last or max(seen) > max(start) + size or len(set(start)) > 1
        self.slots = Slots(start, stored, noisy, max(seen), rows, tokens.device)
        self.columns = self.positions = self.slots.index
        read = self.columns if shifted else self.columns + 1
        self.inputs = padded.gather(1, read.expand(len(tokens), -1).clamp_max(padded.shape[1] - 1))
        self._seen = None if len(set(seen)) == 1 else torch.tensor(seen, device=tokens.device)[:, None, None]
        self._numbers = torch.arange(self.slots.width, device=tokens.device)

    def layout(self, stack: "Stack") -> Layout:
        self.cache.begin(self.slots)
        columns, numbers, n = self.columns[:, :, None], self._numbers, self.slots.noisy
        hidden = None if self._seen is None else (numbers >= self._seen).expand(-1, n, -1)
        if stack.config.causal or self._left_to_right:
            later = numbers > columns[:, :n]
            hidden = later if hidden is None else hidden | later
        of_clean = None
        if self.slots.clean:
            ends = columns[:, n:] + 1 if self.shifted else (columns[:, n:] // self.length + 1) * self.length
            of_clean = (numbers >= ends)[:, None]
        size = stack.config.convolution
        neighbors = self._neighbors(*reach(size, shifted=self.shifted)) if size else None
        clean = CleanSites(n, of_clean, neighbors, self._left_to_right)
        return stack.layout_at(self.positions, None if hidden is None else hidden[:, None], clean, self.shifted)

    def _neighbors(self, before: int, after: int) -> Tensor:
        """[R|1, size, S] slots."""
        offset = torch.arange(-before, after + 1, device=self.columns.device)[:, None]
        slot = self.columns[:, None] + offset
        own = self.columns[:, None] // self.length == slot // self.length
        inside = (slot >= 0) & (slot < self.slots.width) & ((offset <= 0) | own)
        return torch.where(inside, slot, -1)

    def blind_inputs(self, mask_id: int) -> Tensor:
        if self._left_to_right:
            return self.inputs
        blind = self.inputs.clone()
        blind[:, 1 : self.slots.noisy] = mask_id
        return blind
