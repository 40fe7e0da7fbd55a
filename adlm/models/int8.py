"""Products with int8 weights, for sampling and scoring on a CPU: faster, and not exact.

Each output channel of a weight has a scale of its own, and so has each row of activations.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from adlm.errors import ConfigError

# Processors without VNNI add products of 8 bits in 16, which overflow unless activations have 7.
_LEVELS = 127


class Int8Weight(NamedTuple):
    """A weight [out, in] as the kernel wants it, and the scale [out] and zero [out] of its channels."""

    weight: Tensor
    scale: Tensor
    zero: Tensor
    bias: Tensor | None


def packed(weight: Tensor, bias: Tensor | None) -> Int8Weight:
    """A weight [out, in] quantized to int8 with one scale and zero per output channel."""
    scale = (weight.abs().amax(1) / 127).clamp_min(1e-12).float()
    short = (weight / scale[:, None]).round().to(torch.int8)
    zero = torch.zeros(len(weight), dtype=torch.long)
    return Int8Weight(torch.ops.onednn.qlinear_prepack(short, None), scale, zero, bias)


def linear(x: Tensor, to: Int8Weight) -> Tensor:
    """The linear map of an int8 weight, as F.linear: x [..., in] -> [..., out]."""
    rows = x.reshape(-1, x.shape[-1])
    low, high = rows.amin(-1, keepdim=True).clamp_max(0), rows.amax(-1, keepdim=True).clamp_min(1e-12)
    # One level stands for zero in all rows, the scale is each row's own.
    zero = int((_LEVELS * -low.min() / (high.max() - low.min())).round().clamp(1, _LEVELS - 1))
    scale = torch.maximum(high / (_LEVELS - zero), -low / zero)
    short = (rows / scale).add_(zero).round_().clamp_(0, _LEVELS).to(torch.uint8)
    product = torch.ops.onednn.qlinear_pointwise(
        short, 1.0, zero, to.weight, to.scale, to.zero, None, 1.0, 0, torch.float32, "none", [], ""
    )
    product *= scale
    if to.bias is not None:
        product += to.bias
    return product.view(*x.shape[:-1], -1)


def check_supported(device: torch.device) -> None:
    """Refuse where there is no kernel for it."""
    found = f"the model is on {device.type}" if device.type != "cpu" else "this build of PyTorch has no kernel for them"
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        raise ConfigError(f"int8 weights are not available: {found}; use bfloat16", subject="int8")
