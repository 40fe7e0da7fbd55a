"""Rows in which some positions read what the model said at the position before, as Coconut has it (arXiv 2412.06769).

Such a position cannot be computed before the one it reads, but everything before both is computed once and kept.

Shapes: B rows, L positions, D width, N wanted positions.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from adlm.errors import ConfigError
from adlm.models.cache import Cache
from adlm.models.layers import starts_of
from adlm.types import Features

# Features of new positions that read vectors [B, n, D] after those in the cache; at the wanted ones [B, n] or at all.
Read = Callable[[Tensor, Cache, Tensor | None], Features]


def read_in_passes(read: Read, vectors: Tensor, fed: range, cache: Cache, output_mask: Tensor | None) -> Features:
    """The features of new rows, of which positions `fed` read the final feature of the one before.

    A position at which a segment begins has none before it and reads its own vector.

    Args:
        vectors: [B, L, D], what the other positions read.
        cache: an empty one; afterwards it has read all L positions.
        wanted: [B, L] bool; with it `final` is [N, D].
    """
    length = vectors.shape[1]
    segments = cache.segments_after(length)
    begins = None if segments is None else starts_of(segments)[..., None]
    numbers = (
        None
        if output_mask is None
        else torch.arange(output_mask.numel(), device=output_mask.device).view_as(output_mask)
    )
    bounds = [0, *range(fed.start, min(fed.stop, length)), length]
    parts: list[Features] = []
    read_at: list[Tensor] = []
    before: Tensor | None = None
    for start, end in pairwise(bounds):
        x = vectors[:, start:end]
        if before is not None:
            if begins is not None:
                before = torch.where(begins[:, start : start + 1], x[:, :1], before)
            x = torch.cat([before.to(x.dtype), x[:, 1:]], 1)
        # The last position is what the next part begins with.
        these = None if output_mask is None else output_mask[:, start:end] | at_columns(output_mask[:, start:end], [-1])
        part = read(x, cache, these)
        cache.length += end - start
        parts.append(part)
        if these is None or numbers is None:
            before = part.final[:, -1:]
        else:
            before = part.final[these.sum(-1).cumsum(-1) - 1][:, None]
            read_at.append(numbers[:, start:end][these])
    anchors = [part.anchor for part in parts if part.anchor is not None]
    anchor = torch.cat(anchors, 1) if anchors else None
    if output_mask is None:
        return Features(torch.cat([part.final for part in parts], 1), anchor)
    return Features(_chosen(torch.cat([part.final for part in parts]), torch.cat(read_at), output_mask), anchor)


def _chosen(final: Tensor, numbers: Tensor, output_mask: Tensor) -> Tensor:
    """Those [N, D] of the wanted positions [B, L], row by row, from features of positions with these numbers."""
    order = numbers.argsort()
    return final[order[output_mask.flatten()[numbers[order]]]]


def at_columns(like: Tensor, columns: Sequence[int]) -> Tensor:
    """[B, L] bool, as large as `like`: True at these columns of every row."""
    chosen = torch.zeros_like(like, dtype=torch.bool)
    chosen[:, list(columns)] = True
    return chosen


def check_span(tokens: Tensor, first: int, count: int) -> None:
    """Refuse thoughts that do not lie within the rows."""
    length = tokens.shape[1]
    if first < 0 or count < 0 or first + count > length:
        raise ConfigError(
            f"asked to feed {count} thoughts from column {first}",
            f"the rows have {length} tokens",
            "give columns that lie within the rows",
        )
