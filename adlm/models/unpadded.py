"""Computing without padding: the texts of padded rows are packed into fewer rows, and the features unpacked.

Rows of one sentence each are mostly padding (published LM1B: 128 positions for about 28 tokens). Segments keep texts
in one row from seeing each other just as they keep padding out, so the features are the same.
"""

import heapq
from typing import NamedTuple

import torch
from torch import Tensor

from adlm.types import Features

# Repacking pays below this fraction of text in a batch. benchmarks/core/padding.py measures it.
WORTHWHILE = 0.8


class PackingPlan(NamedTuple):
    """Flat positions of all text, in the batch's order: `old` [T] in its rows, `new` [T] in the new ones."""

    old: Tensor
    new: Tensor
    segments: Tensor


def plan_for(segments: Tensor) -> PackingPlan | None:
    """The plan for repacking the texts of padded rows [B, L]; None if that does not pay.

    The plan is made on the CPU, so an accelerator is waited for once: to copy `segments`.
    """
    device, segments = segments.device, segments.cpu()
    rows, length = segments.shape
    text = segments >= 0
    lengths = text.sum(-1)
    starts = text.to(torch.uint8).argmax(-1)
    positions = torch.arange(length) - starts[:, None]
    whole = bool((text == ((positions >= 0) & (positions < lengths[:, None]))).all())  # one run of text per row
    if not whole or int(lengths.sum()) > WORTHWHILE * segments.numel():
        return None
    row_of, first, count = _packed(lengths.tolist(), length)
    if count >= rows:
        return None
    new = ((torch.tensor(row_of) * length + torch.tensor(first))[:, None] + positions)[text]
    old = text.flatten().nonzero()[:, 0]
    # Numbers that no two texts share.
    numbers = segments + torch.arange(rows)[:, None] * (int(segments.max()) + 1)
    packed = torch.full((count * length,), -1, dtype=segments.dtype)
    packed[new] = numbers[text]
    return PackingPlan(*(x.to(device, non_blocking=True) for x in (old, new, packed.view(count, length))))


def _packed(lengths: list[int], length: int) -> tuple[list[int], list[int], int]:
    """Row and first position of each text, longest first, on the row with the most room; and the number of rows."""
    row_of, first = [0] * len(lengths), [0] * len(lengths)
    free: list[tuple[int, int]] = []  # (minus the room left, row)
    rows = 0
    for text in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[text] == 0:
            continue
        if not free or -free[0][0] < lengths[text]:
            heapq.heappush(free, (-length, rows))
            rows += 1
        room, row = heapq.heappop(free)
        row_of[text], first[text] = row, length + room
        heapq.heappush(free, (room + lengths[text], row))
    return row_of, first, max(rows, 1)


def pack(plan: PackingPlan, values: Tensor, fill: int | bool) -> Tensor:
    """The values of the texts [B, L] at their new positions."""
    out = values.new_full((plan.segments.numel(),), fill)
    out[plan.new] = values.flatten()[plan.old]
    return out.view(plan.segments.shape)


def unpack(plan: PackingPlan, features: Features, output_mask: Tensor | None, shape: torch.Size) -> Features:
    """Features of the packed rows as those of the batch [B, L]; zeros at padding."""
    anchor = None if features.anchor is None else _scattered(plan, features.anchor, shape)
    if output_mask is None:
        return Features(_scattered(plan, features.final, shape), anchor)
    # Both are in the order of their own rows: the rank of each output position among the new ones.
    order = plan.new[output_mask.flatten()[plan.old]].argsort().argsort()
    return Features(features.final[order], anchor)


def _scattered(plan: PackingPlan, x: Tensor, shape: torch.Size) -> Tensor:
    out = x.new_zeros(shape.numel(), x.shape[-1])
    return out.index_copy(0, plan.old, x.flatten(0, 1)[plan.new]).view(*shape, -1)
