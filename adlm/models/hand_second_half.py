"""What follows attention in a block, with gradients written by hand, for training on a CPU.

Three things make it faster than autograd: GELU and its derivative by the tanh of the library, in slices that stay in
the cache; products in the order of factors that MKL multiplies fastest; and no tensors for what is added or scaled.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_SLICE = 1 << 16  # numbers at a time: three tables of them stay in the cache
_C, _K = math.sqrt(2 / math.pi), 0.044715


class SecondHalf(torch.autograd.Function):
    """h = x + W_out m + b_out;  result = h + W_down gelu(W_up norm(h) + b_up) + b_down, at positions [..., D].

    With u the input of GELU and th = tanh(c (u + k u^3)), what is kept of it is u (1 + th), twice the result, and
    th + u (1 - th^2) c (1 + 3 k u^2), twice the derivative less 1.

    Args:
        mixed: [..., heads * head width], what the heads gather.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mixed: Tensor,
        out: Tensor,
        out_bias: Tensor | None,
        gain: Tensor,
        shift: Tensor | None,
        up: Tensor,
        up_bias: Tensor | None,
        down: Tensor,
        down_bias: Tensor | None,
        eps: float,
    ) -> Tensor:
        width = x.shape[-1]
        m = mixed.reshape(-1, mixed.shape[-1])
        h = torch.addmm(x.reshape(-1, width), m, _transposed(out))
        if out_bias is not None:
            h.add_(out_bias)
        read, mean, rstd = torch.native_layer_norm(h, (width,), gain, shift, eps)
        twice = read @ up.mT if up_bias is None else torch.addmm(up_bias, read, up.mT)
        slope = torch.empty_like(twice)
        _gelu_(twice, slope)
        result = torch.addmm(h, twice, _transposed(down), alpha=0.5)
        if down_bias is not None:
            result.add_(down_bias)
        ctx.save_for_backward(m, out, gain, shift, up, down, h, mean, rstd, read, twice, slope)
        ctx.shape = mixed.shape
        return result.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        m, out, gain, shift, up, down, h, mean, rstd, read, twice, slope = ctx.saved_tensors
        need = ctx.needs_input_grad
        g = grad.reshape(h.shape)
        grad_up, grad_up_bias, grad_down = None, None, None
        if need[8]:
            grad_down = (g.mT @ twice).mul_(0.5)
        # Twice the gradient of u.
        inner = torch.mm(g, down)
        for part, by in zip(inner.split(_rows(inner)), slope.split(_rows(inner)), strict=True):
            part.addcmul_(part, by)
        if need[6]:
            grad_up = (read.mT @ inner).mul_(0.5).mT
        if need[7]:
            grad_up_bias = inner.sum(0).mul_(0.5)
        grad_read = torch.mm(inner, up).mul_(0.5)
        normed = (True, need[4], shift is not None and need[5])
        grad_h, grad_gain, grad_shift = torch.ops.aten.native_layer_norm_backward(
            grad_read, h, gain.shape, mean, rstd, gain, shift, normed
        )
        grad_h.add_(g)
        return (
            grad_h.view(grad.shape) if need[0] else None,
            torch.mm(grad_h, out).view(ctx.shape) if need[1] else None,
            grad_h.mT @ m if need[2] else None,
            grad_h.sum(0) if need[3] else None,
            grad_gain if need[4] else None,
            grad_shift if normed[2] else None,
            grad_up,
            grad_up_bias,
            grad_down,
            g.sum(0) if need[9] else None,
            None,
        )


def _gelu_(u: Tensor, slope: Tensor) -> None:
    """u [N, M] becomes 2 gelu(u), and `slope` 2 gelu'(u) - 1."""
    c = torch.tensor(_C, dtype=u.dtype)
    size = _rows(u)
    buffer = torch.empty_like(u[:size])
    for part, by in zip(u.split(size), slope.split(size), strict=True):
        z = buffer[: len(part)]
        torch.mul(part, part, out=by)
        torch.add(c, by, alpha=_C * _K, out=z).mul_(part)
        torch.add(z, part, alpha=-2 / 3 * _C, out=by)  # u c (1 + 3 k u^2) / 3
        z.tanh_()
        torch.ops.aten.tanh_backward.grad_input(by, z, grad_input=by)
        torch.add(z, by, alpha=3, out=by)
        part.addcmul_(part, z)


def _rows(u: Tensor) -> int:
    return max(1, _SLICE // u.shape[-1])


def _transposed(weight: Tensor) -> Tensor:
    """W^T in memory: a product with it is faster, by more than the copy takes, if W has fewer rows than positions."""
    return weight.mT.contiguous()
