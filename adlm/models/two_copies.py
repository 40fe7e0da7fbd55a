"""A pass over two copies of a row, [x_t ; x_0]: all blocks of block diffusion at once (BD3-LM, arXiv 2503.09573).

The first copy is noisy: a position sees its own block of it, and the earlier blocks of the second copy, which is clean.
The clean copy is what decoding caches: its positions see the clean tokens of their own and of earlier blocks. If the
model is shifted (position l reads token l - 1), clean positions are causal instead, just as in the left-to-right model
that it was started from. A shifted block reads its last token, once that is known, at one site more: the position
that would read it belongs to the next block.

Shapes: B rows, L positions, S = N + C sites: N noisy ones (the L positions, then those for last tokens), C clean ones.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from adlm.models.layers import CleanSites, Layout, positions_in, reach, shift_right, starts_of

if TYPE_CHECKING:
    from adlm.models.stack import Stack


class TwoCopies(NamedTuple):
    """The sites of a pass, noisy ones first. What rows share has a batch size of 1.

    inputs: [B, S] token ids.
    positions: [B|1, S] number within the document, for position embeddings.
    columns: [B|1, S] number within the row; a site for a last token has that of the position after it.
    blocks: [B|1, S] number of the block within the row.
    segments: [B, S], or None if all positions of a row belong together.
    real: [B, N] bool, False at sites that only fill up; None if there are none.
    length, noisy: L and N.
    shifted: position l reads token l - 1.
    """

    inputs: Tensor
    positions: Tensor
    columns: Tensor
    blocks: Tensor
    segments: Tensor | None
    real: Tensor | None
    length: int
    noisy: int
    shifted: bool

    @property
    def cache(self) -> None:
        """Always None: all blocks are read at once."""
        return None

    def layout(self, stack: "Stack") -> Layout:
        """The positions of the sites and what they see in this stack."""
        size = stack.config.convolution
        neighbors = self.neighbors(*reach(size, shifted=self.shifted)) if size else None
        clean = CleanSites(self.noisy, self.hidden_from_clean(), neighbors)
        return stack.layout_at(self.positions, self.hidden_from_noisy(causal=stack.config.causal), clean, self.shifted)

    def blind_inputs(self, mask_id: int) -> Tensor:
        """The inputs [B, S] with every block masked, as a stage that knows only finished blocks reads them."""
        starts = starts_of(self.blocks[:, : self.length])
        known = F.pad(starts, (0, self.noisy - self.length), value=False)
        known = F.pad(known, (0, self.inputs.shape[1] - self.noisy), value=True)
        return self.inputs.masked_fill(~known, mask_id)

    def hidden_from_noisy(self, *, causal: bool = False) -> Tensor:
        """The sites that noisy sites must not see, [B|1, 1, N, S] bool.

        Args:
            causal: they see nothing to their right within their block either.
        """
        n, blocks, columns = self.noisy, self.blocks, self.columns
        own = blocks[:, :n, None] == blocks[:, None, :n]
        if causal:
            own = own & (columns[:, None, :n] <= columns[:, :n, None])
        if self.real is not None:
            own = own & self.real[:, None]
        past = self._same_document(blocks[:, None, n:] < blocks[:, :n, None], slice(0, n))
        rows = max(len(own), len(past))
        return ~torch.cat([own.expand(rows, -1, -1), past.expand(rows, -1, -1)], -1)[:, None]

    def hidden_from_clean(self) -> Tensor | None:
        """The clean sites that clean sites must not see, [B|1, 1, C, C] bool; None for the plain triangle."""
        if self.shifted and self.segments is None:
            return None
        n, order = self.noisy, self.columns if self.shifted else self.blocks
        seen = order[:, None, n:] <= order[:, n:, None]
        return ~self._same_document(seen, slice(n, None))[:, None]

    def neighbors(self, before: int, after: int) -> Tensor:
        """The sites around each site that it may read, [B|1, before + 1 + after, S]; -1 for none.

        Where the block of a noisy site begins, the clean copy comes before it, exactly as in decoding.
        """
        n, blocks, sites = self.noisy, self.blocks, self.blocks.shape[1]
        numbers = torch.arange(sites, device=blocks.device).expand_as(blocks)
        clean = numbers >= n
        found = []
        for offset in range(-before, after + 1):
            column = self.columns + offset
            inside = (column >= 0) & (column < self.length)
            column = column.clamp(0, self.length - 1)
            # Noisy sites of the L positions come first, in order. (`gather` would take rows of its index alone.)
            own = blocks.gather(1, column.expand_as(blocks)) == blocks
            copied = n + column
            in_clean = inside & (copied < sites) & (own if offset > 0 else torch.ones_like(own))
            in_noisy = torch.where(own, column, copied if offset < 0 else -1)
            site = torch.where(clean, torch.where(in_clean, copied, -1), torch.where(inside, in_noisy, -1))
            if offset == 0:
                site = numbers
            elif self.segments is not None:
                there = self.segments.gather(1, site.clamp_min(0).expand_as(self.segments))
                site = torch.where(there == self.segments, site, -1)
            found.append(site)
        return torch.stack(torch.broadcast_tensors(*found), 1)

    def _same_document(self, seen: Tensor, queries: slice) -> Tensor:
        """Of what is `seen` [B|1, Q, C] of the clean sites, that in the same document."""
        if self.segments is None:
            return seen
        return seen & (self.segments[:, queries, None] == self.segments[:, None, self.noisy :])


def block_numbers(length: int, size: int | Tensor, segments: Tensor | None, device: torch.device) -> Tensor:
    """The block [B|1, L] of each position, in blocks of `size` (or sizes [B]) that start with documents."""
    sizes = size[:, None] if isinstance(size, Tensor) else size
    if segments is None:
        return torch.arange(length, device=device)[None] // sizes
    return (positions_in(segments) % sizes == 0).cumsum(-1) - 1


def two_copies(
    tokens: Tensor, clean: Tensor, blocks: Tensor, segments: Tensor | None, *, mask_id: int, start: int | None
) -> TwoCopies:
    """The sites at which x_t `tokens` [B, L] and x_0 `clean` [B, L] are read, in blocks with these numbers [B|1, L].

    Args:
        start: the token that a shifted model reads before a row; None if it is not shifted.
    """
    length, device = tokens.shape[1], tokens.device
    if segments is not None:
        # Neither padding nor another document belongs to the block of a text.
        blocks = (starts_of(blocks) | starts_of(segments)).cumsum(-1) - 1
    columns = torch.arange(length, device=device)[None]
    positions = columns if segments is None else positions_in(segments)
    # The clean copy of the last block is seen by nothing.
    known = int((blocks < blocks[:, -1:]).sum(-1).max())
    if start is None:
        inputs = torch.cat([tokens, clean[:, :known]], 1)
        return _sites(inputs, positions, columns, blocks, segments, None, None, known, shifted=False)
    read = shift_right(tokens, start, segments)
    read_clean = shift_right(clean, start, segments)
    read = torch.where(starts_of(blocks), read_clean, read)
    ends = F.pad(starts_of(blocks)[:, 1:], (0, 1), value=True) & (tokens != mask_id)
    counts = ends.sum(-1)
    most = int(counts.max())
    if not most:
        inputs = torch.cat([read, read_clean[:, :known]], 1)
        return _sites(inputs, positions, columns, blocks, segments, None, None, known, shifted=True)
    last = ends.byte().argsort(dim=-1, descending=True, stable=True)[:, :most]
    real = torch.arange(most, device=device) < counts[:, None]
    inputs = torch.cat([read, tokens.gather(1, last), read_clean[:, :known]], 1)
    return _sites(inputs, positions, columns, blocks, segments, last, real, known, shifted=True)


def _sites(
    inputs: Tensor,
    positions: Tensor,
    columns: Tensor,
    blocks: Tensor,
    segments: Tensor | None,
    last: Tensor | None,
    real: Tensor | None,
    known: int,
    *,
    shifted: bool,
) -> TwoCopies:
    length = columns.shape[1]

    def sites(values: Tensor, step: int = 0) -> Tensor:
        if last is None:
            return torch.cat([values, values[:, :known]], 1)
        values = values.expand(len(last), -1)
        return torch.cat([values, values.gather(1, last) + step, values[:, :known]], 1)

    if real is not None:
        real = F.pad(real, (length, 0), value=True)
    noisy = length if last is None else length + last.shape[1]
    where = None if segments is None else sites(segments)
    return TwoCopies(inputs, sites(positions, 1), sites(columns, 1), sites(blocks), where, real, length, noisy, shifted)
