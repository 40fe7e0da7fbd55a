"""Parts of a block with gradients written by hand, for training on a CPU.

Autograd would compute the same with many passes over memory and tensors of zeros; small models spend more time there
than in matrix products. Each function here does its part in as few passes as it can. Without gradients, on other
devices and in compiled code the plain forms in `layers.py` are used, and a test holds the two against each other.

Shapes: B batch, L length, D width, H heads, K neighbors.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Rows of keys up to this long are attended to by plain products; beyond, kernels that never store the scores are as
# fast in less memory (docs/log.md).
SHORT = 128
_SCORES = 1 << 18  # scores at a time


def by_hand(x: Tensor) -> bool:
    """Whether gradients of x are best taken by the functions in this module."""
    return x.device.type == "cpu" and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def short_rows(q: Tensor, k: Tensor) -> bool:
    """Whether `Attention` is faster than the kernel of the library for queries and keys [B, H, L, D/H]."""
    return by_hand(q) and k.shape[-2] <= SHORT and q.numel() > 0 and q.shape[1] == k.shape[1]


def attention_by(device: str, length: int) -> str:
    """How rows of this length are attended to in training, and why."""
    if device != "cpu":
        return "PyTorch's kernel"
    if length <= SHORT:
        return f"plain products: the fastest on a CPU for rows of up to {SHORT} keys"
    return f"PyTorch's kernel: plain products are faster for rows of up to {SHORT} keys only"


class Convolution(torch.autograd.Function):
    """x [B, L, D] + sum_k weight_k x_{l + k - before} with weight [K, D]: a depthwise convolution over neighbors.

    With `segments` [B, L], neighbors count if their numbers are equal.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, before: int, segments: Tensor | None) -> Tensor:
        w = weight.to(x.dtype)
        ctx.before, ctx.dtype = before, weight.dtype
        ctx.save_for_backward(x, w, segments)
        out = torch.mul(x, 1 + w[before])
        for k, here, there in _shifts(x.shape[1], len(w), before):
            out[:, here].addcmul_(_within(x[:, there], segments, here, there), w[k])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w, segments = ctx.saved_tensors
        before = ctx.before
        grad_x, grad_w = torch.mul(grad, 1 + w[before]), torch.zeros_like(w, dtype=ctx.dtype)
        grad_w[before] = (grad * x).sum((0, 1))
        for k, here, there in _shifts(x.shape[1], len(w), before):
            reaching = _within(grad[:, here], segments, here, there)
            grad_x[:, there].addcmul_(reaching, w[k])
            grad_w[k] = (reaching * x[:, there]).sum((0, 1))
        return grad_x, grad_w, None, None


class GatheredConvolution(torch.autograd.Function):
    """x [B, L, D] + sum_k weight_k x_{index_k} with weight [K, D]: neighbors anywhere, as in block diffusion.

    `index` [K, B L] has flat numbers of positions, B L for none.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, index: Tensor) -> Tensor:
        w = weight.to(x.dtype)
        table = torch.cat([x.flatten(0, 1), x.new_zeros(1, x.shape[-1])])
        ctx.dtype = weight.dtype
        ctx.save_for_backward(table, w, index)
        out = table[:-1].clone()
        for k, numbers in enumerate(index):
            out.addcmul_(table.index_select(0, numbers), w[k])
        return out.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        table, w, index = ctx.saved_tensors
        g = grad.reshape(-1, grad.shape[-1])
        grad_table, grad_w = torch.cat([g, g.new_zeros(1, g.shape[-1])]), torch.zeros_like(w, dtype=ctx.dtype)
        for k, numbers in enumerate(index):
            grad_table.index_add_(0, numbers, g * w[k])
            grad_w[k] = table.index_select(0, numbers).mul_(g).sum(0)
        return grad_table[:-1].view_as(grad), grad_w, None


def _shifts(length: int, size: int, before: int) -> list[tuple[int, slice, slice]]:
    """For each neighbor but the position itself: its number k, the positions that have it, and where it is."""
    shifts = [(k, k - before) for k in range(size)]
    return [
        (k, slice(max(0, -shift), length - max(0, shift)), slice(max(0, shift), length + min(0, shift)))
        for k, shift in shifts
        if shift and abs(shift) < length
    ]


def _within(x: Tensor, segments: Tensor | None, here: slice, there: slice) -> Tensor:
    """x [B, n, D] without what would cross the border of a segment."""
    return x if segments is None else x * (segments[:, here] == segments[:, there])[..., None]


class Heads(torch.autograd.Function):
    """Queries, keys and values [B, H, L, D/H] from their products [B, L, heads of all, D/H] side by side.

    The two channels of a rotated pair are neighbors here, so that a rotation is one product of complex numbers; scores
    do not depend on the order of channels. Queries and keys are normalized to a root mean square of 1 if `normalize`.
    With y = r x, r = 1 / rms(x), the gradient of x is r (g - y mean(g y)); a rotation changes neither r nor that mean.

    Args:
        turns: cos + i sin of the angles, [L, 1, D/H/2] or [B, L, 1, D/H/2].
        counts: heads of queries, keys and values.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, turns: Tensor, counts: tuple[int, int, int], normalize: bool
    ) -> tuple[Tensor, ...]:
        rows, length, _, width = x.shape
        turning = counts[0] + counts[1]
        wide = x[:, :, :turning].to(_wide(x))
        turns = turns.to(torch.complex128 if wide.dtype == torch.float64 else torch.complex64)
        if turns.dim() == 3:  # a long inner loop
            turns = turns.expand(-1, turning, -1).contiguous()
        turned = torch.view_as_real(_pairs(wide) * turns).flatten(-2)
        scale = None
        if normalize:
            square = torch.linalg.vector_norm(turned, dim=-1, keepdim=True).square_()
            scale = square.div_(width).add_(torch.finfo(x.dtype).eps).rsqrt_()
            turned.mul_(scale)
        out = tuple(x.new_empty(rows, heads, length, width) for heads in counts)
        for target, source in zip(out, (*turned.split(counts[:2], 2), x[:, :, turning:]), strict=True):
            target.transpose(1, 2).copy_(source)
        ctx.counts = counts
        ctx.save_for_backward(turns, turned if normalize else None, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        turns, y, scale = ctx.saved_tensors
        rows, _, length, width = grads[0].shape
        grad_x = grads[0].new_empty(rows, length, sum(ctx.counts), width, dtype=_wide(grads[0]))
        for target, grad in zip(grad_x.split(ctx.counts, 2), grads, strict=True):
            target.copy_(grad.transpose(1, 2))
        turned = before = grad_x[:, :, : sum(ctx.counts[:2])]
        if scale is not None:
            along = (turned * y).sum(-1, keepdim=True).div_(-width)
            turned = torch.addcmul(turned, y, along).mul_(scale)
        torch.mul(_pairs(turned), turns.conj(), out=_pairs(before))
        return grad_x.to(grads[0].dtype), None, None, None


def _pairs(x: Tensor) -> Tensor:
    """x [..., D/H] as complex numbers [..., D/H/2], in the same memory."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


class Attention(torch.autograd.Function):
    """softmax(q k^T / sqrt(width)) v over [B, H, L, D/H] without what is `hidden`, for short rows.

    Probabilities are kept for the backward pass. They are computed some heads at a time, so that they stay in the
    cache; in float32, since that is faster than bfloat16 for so little, and scores need it.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
        ctx.scale, ctx.dtype = q.shape[-1] ** -0.5, q.dtype
        # Queries are scaled, since they are fewer numbers than scores.
        flat = [x.reshape(-1, *x.shape[-2:]).to(_wide(x)) for x in (q * ctx.scale, k, v)]
        q2, k2, v2 = flat
        p = torch.empty(len(q2), q2.shape[1], k2.shape[1], dtype=q2.dtype)
        out = torch.empty_like(q2)
        mask = None if hidden is None else _each_head(hidden, q)
        with torch.autocast("cpu", enabled=False):
            for part in _parts(p):
                scores = torch.bmm(q2[part], k2[part].mT, out=p[part])
                if mask is not None:
                    scores.masked_fill_(mask if mask.dim() == 2 else mask[part], -math.inf)
                torch.softmax(scores, -1, out=scores)
                torch.bmm(scores, v2[part], out=out[part])
        ctx.save_for_backward(*flat, p)
        return out.view(q.shape).to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p = ctx.saved_tensors
        g = grad.reshape(q.shape).to(q.dtype)
        grads = [torch.empty_like(x) for x in (q, k, v)]
        for part in _parts(p):
            torch.bmm(p[part].mT, g[part], out=grads[2][part])
            slope = torch.bmm(g[part], v[part].mT)
            slope = torch._softmax_backward_data(slope, p[part], -1, p.dtype)
            torch.bmm(slope, k[part], out=grads[0][part]).mul_(ctx.scale)
            torch.bmm(slope.mT, q[part], out=grads[1][part])
        shape = grad.shape[:2]
        return (*(x.view(*shape, *x.shape[1:]).to(ctx.dtype) for x in grads), None)


def _parts(p: Tensor) -> list[slice]:
    step = max(1, _SCORES // max(1, p[0].numel()))
    return [slice(start, start + step) for start in range(0, len(p), step)]


def _each_head(hidden: Tensor, q: Tensor) -> Tensor:
    """hidden [L, L] as it is, or [B, 1, L, L] as [B H, L, L]."""
    if hidden.dim() == 2:
        return hidden
    return hidden.expand(*q.shape[:2], *hidden.shape[-2:]).flatten(0, 1)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
