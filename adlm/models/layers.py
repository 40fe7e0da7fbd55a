"""The parts of a transformer block: rotary positions, attention, a short convolution, adaptive norms.

Shapes: B batch, L length, D width, H heads, C conditioning width. Block and norms follow DiT (arXiv
2212.09748) as SEDD and MDLM use it, so that official weights fit.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rotary(nn.Module):
    """Rotary position embedding (arXiv 2104.09864): cos and sin [L, D/H/2] of angles l * 10000^(-2i H/D)."""

    inverse_frequency: Tensor

    def __init__(self, head_width: int) -> None:
        super().__init__()
        exponent = torch.arange(0, head_width, 2).float() / head_width
        self.register_buffer("inverse_frequency", 10_000.0**-exponent, persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.float()[:, None] * self.inverse_frequency
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (x_i, x_{i + half}) of x [B, H, L, D/H] by their angles."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(width)) v over [B, H, L, D/H]."""
    if q.device.type == "cpu" and q.shape[-2] <= 256:
        # For short rows on a CPU the fused kernel's backward is slower than three plain operations.
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
        if causal:
            length = q.shape[-2]
            scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
        return scores.softmax(-1) @ v
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


class Norm(nn.Module):
    """Layer normalisation with a gain and no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), self.weight)


class ShortConvolution(nn.Module):
    """x + depthwise convolution over `size` neighbours, centred or causal. Starts as the identity.

    It gives a masked model its neighbours from the start, which helps small ones early (docs/log.md).
    """

    def __init__(self, width: int, size: int, *, causal: bool) -> None:
        super().__init__()
        self.before = size - 1 if causal else size // 2
        self.weight = nn.Parameter(torch.zeros(size, width))

    def forward(self, x: Tensor) -> Tensor:
        size, length = len(self.weight), x.shape[1]
        padded = F.pad(x, (0, 0, self.before, size - 1 - self.before))
        # Shifted products beat conv1d with groups on a CPU, and need no transpose.
        weight = self.weight.to(x.dtype)
        out = x
        for k in range(size):
            out = out + padded[:, k : k + length] * weight[k]
        return out


class Block(nn.Module):
    """Pre-norm attention and MLP, each scaled and gated by the conditioning where there is one.

    h = x + gate_1 * attention(modulate_1(norm_1(x)));  out = h + gate_2 * mlp(modulate_2(norm_2(h)))
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        mlp_ratio: int,
        dropout: float,
        causal: bool,
        convolution: int,
        condition: int,
        query_key_norm: bool,
    ) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal, self.query_key_norm = heads, dropout, causal, query_key_norm
        self.norm_1, self.norm_2 = Norm(width), Norm(width)
        self.convolution = ShortConvolution(width, convolution, causal=causal) if convolution else None
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, mlp_ratio * width)
        self.down = nn.Linear(mlp_ratio * width, width)
        self.modulation = nn.Linear(condition, 6 * width) if condition else None
        if self.modulation is not None:
            nn.init.zeros_(self.modulation.weight)
            nn.init.zeros_(self.modulation.bias)
        else:
            # As zero modulation does: every block starts as the identity.
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.down.weight)
            nn.init.zeros_(self.down.bias)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, condition: Tensor | None) -> Tensor:
        h_1 = self.norm_1(x)
        modulation = None
        if self.modulation is not None:
            modulation = self.modulation(condition)[:, None].chunk(6, dim=-1)  # each [B or 1, 1, D]
            h_1 = h_1 * (1 + modulation[1]) + modulation[0]
        attended = self._drop(self._attention(h_1, cos, sin))
        x = x + (attended if modulation is None else modulation[2] * attended)
        h_2 = self.norm_2(x)
        if modulation is not None:
            h_2 = h_2 * (1 + modulation[4]) + modulation[3]
        mixed = self._drop(self.down(F.gelu(self.up(h_2), approximate="tanh")))
        return x + (mixed if modulation is None else modulation[5] * mixed)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def _attention(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.convolution is not None:
            h = self.convolution(h)
        batch, length, width = h.shape
        q, k, v = self.qkv(h).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.query_key_norm:
            q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])
        mixed = attend(rotate(q, cos, sin), rotate(k, cos, sin), v, causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class TimeEmbedding(nn.Module):
    """sigma [B] -> [B, C]: 256 sines and cosines, then two layers."""

    def __init__(self, condition: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, condition), nn.Linear(condition, condition)

    def forward(self, sigma: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10_000) * torch.arange(128, device=sigma.device) / 128)
        angles = sigma.float()[:, None] * frequencies
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return F.silu(self.second(F.silu(self.first(waves))))
