"""Losses over a vocabulary without its logits in memory: a slice of positions at a time.

Shapes: N positions, D width, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from adlm.models.embedding import Head, widened

# Logits in memory at a time, at most; and as many as are fast to pass over again and again, if that leaves slices of
# enough rows: each slice also goes once through the gradient of the head.
SLICE_LOGITS = 1 << 24
_FAST_LOGITS = 1 << 20


class Nats(NamedTuple):
    """A weighted sum that has gradients, and its terms [N] that have none."""

    total: Tensor
    each: Tensor


def weighted_nll(head: Head, hidden: Tensor, tokens: Tensor, weight: Tensor, *, with_mask: bool = False) -> Nats:
    """sum_n weight_n * -log p(token_n | hidden_n) through a linear head.

    The gradients of a cross-entropy are known as soon as its logits are, so they are taken in the same pass and
    logits are made once: three matrix products where slices made again in the backward pass take four.

    Args:
        with_mask: the mask's own logit counts among the others, as the official anchor loss has it.
    """
    excluded = None if with_mask else head.mask_id
    each, total = _LinearCrossEntropy.apply(hidden, head.weight, head.bias, tokens, weight, excluded)
    return Nats(total, each)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, matrix: Tensor, bias: Tensor, tokens: Tensor, weight: Tensor, excluded: int | None
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        short = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        wide = torch.float64 if short == torch.float64 else torch.float32
        h, w, b = hidden.to(short), matrix.to(short), bias.to(short)
        weight = weight.to(wide)
        rows = _rows(len(h), *matrix.shape)
        each = torch.empty(len(h), dtype=wide, device=h.device)
        # The same tables for all slices: memory that is touched for the first time is slow.
        first = torch.empty(rows, len(matrix), dtype=short, device=h.device)
        second = first if short == wide else torch.empty_like(first, dtype=wide)
        grads = _Gradients(h, w, wide) if any(ctx.needs_input_grad[:3]) else None
        with torch.autocast(device, enabled=False):
            for start in range(0, len(h), rows):
                part = slice(start, start + rows)
                y = tokens[part, None]
                logits = torch.addmm(b, h[part], w.mT, out=first[: len(y)])
                if excluded is not None:
                    logits[:, excluded] = -math.inf
                # -log p_y = (top - logit_y) - log p_top, from the largest logit, whose p cannot underflow.
                below = logits.amax(-1).to(wide) - logits.gather(-1, y)[:, 0].to(wide)
                p = torch.softmax(logits, -1, dtype=wide, out=second[: len(y)])
                torch.sub(below, p.amax(-1).log_(), out=each[part])
                if grads is not None:
                    # d nll / d logits = p - one_hot(y).
                    slope = p.scatter_add_(-1, y, torch.full_like(y, -1, dtype=wide))
                    grads.add(part, slope if short == wide else logits.copy_(slope), weight[part])
        if grads is not None:
            ctx.save_for_backward(grads.hidden, grads.matrix, grads.bias)
        ctx.dtypes = hidden.dtype, matrix.dtype, bias.dtype
        ctx.mark_non_differentiable(each)
        return each, (each * weight).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        # Made for this call and used once: scaled in place.
        grads = (
            grad.mul_(factor.to(grad.dtype)).to(dtype)
            for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return (*grads, None, None, None)


def _rows(positions: int, size: int, width: int) -> int:
    """Positions in a slice, for a vocabulary of `size`."""
    return max(1, min(positions, SLICE_LOGITS // size, max(2 * width, _FAST_LOGITS // size)))


class _Gradients:
    """Sums of the gradients, slice by slice."""

    def __init__(self, h: Tensor, w: Tensor, wide: torch.dtype) -> None:
        self.h, self.w = h, w
        self.hidden = torch.empty_like(h)
        # The first slice overwrites it, unless there is none or a short product has to be added to a wide sum.
        overwritten = len(h) > 0 and h.dtype == wide
        self.matrix = (torch.empty if overwritten else torch.zeros)(w.shape, dtype=wide, device=w.device)
        self.bias = torch.zeros(len(w), dtype=wide, device=w.device)

    def add(self, part: slice, slope: Tensor, weight: Tensor) -> None:
        """slope [n, V] = d nll / d logits of a slice. Weights scale rows, so they go to the narrow side of products."""
        scale = weight[:, None].to(slope.dtype)
        torch.mm(slope, self.w, out=self.hidden[part]).mul_(scale)
        scaled = self.h[part] * scale
        if slope.dtype == self.matrix.dtype:
            self.matrix.addmm_(slope.mT, scaled, beta=0 if part.start == 0 else 1)
        else:
            self.matrix += slope.mT @ scaled
        self.bias += (slope.mT @ weight.to(slope.dtype)).to(self.bias.dtype)


def sliced(part: Callable[..., Tensor], vocabulary_size: int, *tensors: Tensor) -> Tensor:
    """part(*tensors) [N], for any function of logits: in slices of N, each made again in the backward pass."""
    rows = max(1, SLICE_LOGITS // vocabulary_size)
    if len(tensors[0]) <= rows:
        return part(*tensors)
    pieces = zip(*(tensor.split(rows) for tensor in tensors), strict=True)
    return torch.cat([checkpoint(part, *piece, use_reentrant=False) for piece in pieces])


def nll(logits: Callable[[Tensor], Tensor], size: int, hidden: Tensor, tokens: Tensor) -> Tensor:
    """-log p(token) [N] from hidden states [N, D], with gradients, for any `logits`."""

    def part(h: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(widened(logits(h)), y, reduction="none")

    return sliced(part, size, hidden, tokens)
