"""The parts of a transformer block: rotary positions, attention, a short convolution, adaptive norms.

Shapes: B batch, L length, D width, H heads, C conditioning width. Block and norms follow DiT (arXiv
2212.09748) as SEDD and MDLM use it, so that official weights fit.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.models import int8
from adlm.models.cache import BlockCache
from adlm.models.derived import Deriving


class Layout(NamedTuple):
    """Where positions stand and whom they see: the same for all blocks of a pass.

    cos, sin: [L, 1, 1, D/H/2], or [B, L, 1, 1, D/H/2] where rows differ.
    segments: [B, L]; positions of one row see each other where these are equal; None: all do. Where rows are read in
        parts, those of the positions before these come first.
    hidden: [L, L] or [B, 1, L, L] bool, True where a position (row) must not see another (column); None: nowhere.
        Where rows are read in parts, there are columns for the positions before these too.
    causal: `hidden` is the plain triangle.
    """

    cos: Tensor
    sin: Tensor
    segments: Tensor | None
    hidden: Tensor | None
    causal: bool = False

    def at(self, positions: Tensor) -> "Layout":
        """Of the positions `positions` [B, m] alone, as they see all others."""
        rows, column = len(positions), positions[:, :, None, None, None]
        cos, sin = (x.expand(rows, *x.shape[-4:]).take_along_dim(column, 1) for x in (self.cos, self.sin))
        hidden = self.hidden
        if hidden is not None:
            hidden = hidden.expand(rows, 1, *hidden.shape[-2:]).take_along_dim(positions[:, None, :, None], 2)
        return self._replace(cos=cos, sin=sin, hidden=hidden, causal=False)


class Few(NamedTuple):
    """A few positions of each row: positions [B, m] in order, and which are meant [B, m] bool; others fill up."""

    positions: Tensor
    meant: Tensor


def few_of(output_mask: Tensor) -> Few | None:
    """The wanted positions [B, L] bool; None where some row has so many that leaving out the others does not pay."""
    counts = output_mask.sum(-1)
    most = max([1, *counts.tolist()])
    if 4 * most > output_mask.shape[1]:  # short rows gain nothing beyond a quarter, long ones little beyond a half
        return None
    positions = output_mask.byte().argsort(dim=-1, descending=True, stable=True)[:, :most]
    return Few(positions, torch.arange(most, device=output_mask.device) < counts[:, None])


def starts_of(segments: Tensor) -> Tensor:
    """[B, L] bool: the first position of each segment."""
    return F.pad(segments[:, 1:] != segments[:, :-1], (1, 0), value=True)


def positions_in(segments: Tensor) -> Tensor:
    """[B, L]: each position's number within its segment, so that padding on the left changes nothing."""
    index = torch.arange(segments.shape[1], device=segments.device)
    return index - (index * starts_of(segments)).cummax(-1).values


class Rotary(nn.Module):
    """Rotary position embedding (arXiv 2104.09864): cos and sin [..., D/H/2] of angles l * 10000^(-2i H/D)."""

    inverse_frequency: Tensor

    def __init__(self, head_width: int) -> None:
        super().__init__()
        exponent = torch.arange(0, head_width, 2).float() / head_width
        self.register_buffer("inverse_frequency", 10_000.0**-exponent, persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.float()[..., None] * self.inverse_frequency
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (x_i, x_{i + half}) of x [..., D/H] by their angles."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, hidden: Tensor | None) -> Tensor:
    """softmax(q k^T / sqrt(width)) v over [B, H, L, D/H], without what is hidden.

    `causal` says that `hidden` is the plain triangle, which the kernels know by themselves.
    """
    mask = None if causal or hidden is None else ~hidden
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def gelu(x: Tensor) -> Tensor:
    """x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form of GELU.

    It is also x sigmoid(2u). Where no gradient is wanted, a CPU computes that in place in half the time.
    """
    if torch.is_grad_enabled() or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    twice = 2 * math.sqrt(2 / math.pi)
    return x.square().mul_(0.044715 * twice).add_(twice).mul_(x).sigmoid_().mul_(x)


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

    def forward(self, x: Tensor, segments: Tensor | None, memory: BlockCache | None = None) -> Tensor:
        size, length = len(self.weight), x.shape[1]
        sides = (self.before, size - 1 - self.before)
        padded = F.pad(x, (0, 0, *sides)) if memory is None else memory.following(x, self.before)
        # Shifted products beat conv1d with groups on a CPU, and need no transpose.
        weight = self.weight.to(x.dtype)
        start = 0 if segments is None else segments.shape[1] - length  # of x, where rows are read in parts
        out = x
        for k in range(size):
            neighbour = padded[:, k : k + length]
            if segments is not None and k != self.before:
                there = F.pad(segments, sides, value=-2)[:, start + k : start + k + length]
                same = there == segments[:, start:]
                neighbour = neighbour * same[..., None]
            out = out + neighbour * weight[k]
        return out


class _Folded(NamedTuple):
    """A block's weights with a modulation that is the same everywhere multiplied into them."""

    gain_1: Tensor
    shift_1: Tensor | None
    out: Tensor
    gain_2: Tensor
    shift_2: Tensor | None
    down: Tensor
    down_bias: Tensor


class Block(Deriving):
    """Pre-norm attention and MLP, each scaled and gated by the conditioning where there is one.

    h = x + gate_1 * attention(modulate_1(norm_1(x)));  out = h + gate_2 * mlp(modulate_2(norm_2(h)))

    A conditioning that does not follow the time is a constant: it is multiplied into gains and weights, exactly.
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
        timed: bool,
        query_key_norm: bool,
    ) -> None:
        super().__init__()
        self.heads, self.head_width, self.query_key_norm = heads, width // heads, query_key_norm
        self.dropout, self.timed, self.int8 = dropout, timed, False
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

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        condition: Tensor | None,
        output_mask: Tensor | None = None,
        memory: BlockCache | None = None,
    ) -> Tensor:
        """x [B, L, D] -> [B, L, D], or [N, D] at the wanted positions.

        Args:
            condition: [B, C] for timed blocks, [1, C] or None for others.
            wanted: [B, L] bool. Attention is the last that looks at other positions, so after it all others are left.
            memory: of the positions before these, where rows are read in parts.
        """
        if self.timed:
            return self._modulated(x, layout, condition, output_mask, memory)
        w = self.derived("folded", lambda: self._folded(condition))
        mixed = self._attention(F.layer_norm(x, x.shape[-1:], w.gain_1, w.shift_1), layout, output_mask, memory)
        if output_mask is not None:
            x = x[output_mask]
        x = x + self._drop(self._product("out", mixed, w.out))
        h = F.layer_norm(x, x.shape[-1:], w.gain_2, w.shift_2)
        return x + self._drop(self._product("down", self._expanded(h), w.down, w.down_bias))

    def _modulated(
        self, x: Tensor, layout: Layout, condition: Tensor | None, output_mask: Tensor | None, memory: BlockCache | None
    ) -> Tensor:
        assert self.modulation is not None
        modulation = self.modulation(condition)[:, None]
        shift_1, scale_1 = modulation.chunk(6, dim=-1)[:2]
        mixed = self._attention(self.norm_1(x) * (1 + scale_1) + shift_1, layout, output_mask, memory)
        if output_mask is not None:
            x, modulation = x[output_mask], modulation.expand(-1, x.shape[1], -1)[output_mask]
        gate_1, shift_2, scale_2, gate_2 = modulation.chunk(6, dim=-1)[2:]
        x = x + gate_1 * self._drop(self.out(mixed))
        h = self.norm_2(x) * (1 + scale_2) + shift_2
        return x + gate_2 * self._drop(self.down(self._expanded(h)))

    def _folded(self, condition: Tensor | None) -> _Folded:
        gain_1, gain_2 = self.norm_1.weight, self.norm_2.weight
        out, down, down_bias = self.out.weight, self.down.weight, self.down.bias
        if self.modulation is None:
            return _Folded(gain_1, None, out, gain_2, None, down, down_bias)
        modulation = self.modulation(condition)[0].to(gain_1.dtype)  # autocast may have shortened it
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = modulation.chunk(6)
        return _Folded(
            gain_1 * (1 + scale_1),
            shift_1,
            gate_1[:, None] * out,
            gain_2 * (1 + scale_2),
            shift_2,
            gate_2[:, None] * down,
            gate_2 * down_bias,
        )

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def _expanded(self, h: Tensor) -> Tensor:
        return gelu(self._mapped("up", self.up, h))

    def _attention(
        self, h: Tensor, layout: Layout, output_mask: Tensor | None = None, memory: BlockCache | None = None
    ) -> Tensor:
        """What the heads gather, side by side, before the output map: [B, L, D], or [N, D] at the wanted positions."""
        if self.convolution is not None:
            h = self.convolution(h, layout.segments, memory)
        few = few_of(output_mask) if output_mask is not None and self._may_leave_out_queries() else None
        if few is None:
            qkv = self._heads(self._mapped("qkv", self.qkv, h))
            q, k = self._turned(qkv[:, :, :2], layout).unbind(2)
            v = qkv[:, :, 2]
            if torch.is_grad_enabled():
                v = v.contiguous()  # as a view it would keep q and k before the turn in memory until the backward pass
        else:
            width = h.shape[-1]
            kv = self._heads(F.linear(h, self.qkv.weight[width:]))
            k, v = self._turned(kv[:, :, :1], layout)[:, :, 0], kv[:, :, 1]
            layout = layout.at(few.positions)
            q = self._heads(F.linear(h.take_along_dim(few.positions[:, :, None], 1), self.qkv.weight[:width]))
            q = self._turned(q, layout)[:, :, 0]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if memory is not None:
            k, v = memory.append(k, v)
        mixed = attend(q, k, v, causal=layout.causal, hidden=layout.hidden).transpose(1, 2).flatten(2)
        if output_mask is None:
            return mixed
        return mixed[output_mask if few is None else few.meant]

    def _mapped(self, name: str, linear: nn.Module, x: Tensor) -> Tensor:
        # Adapters (LoRA) act only where their map is called.
        if self.int8 and isinstance(linear, nn.Linear):
            return self._product(name, x, linear.weight, linear.bias)
        return linear(x)

    def _product(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not self.int8 or torch.is_grad_enabled():
            return F.linear(x, weight, bias)
        return int8.linear(x, self.derived(f"int8 {name}", lambda: int8.packed(weight, bias)))

    def _may_leave_out_queries(self) -> bool:
        # Training keeps to one path, and so do compiled blocks. Adapters (LoRA) act only where their map is called.
        return not torch.is_grad_enabled() and not torch.compiler.is_compiling() and isinstance(self.qkv, nn.Linear)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, L, j D] -> [B, L, j, H, D/H]"""
        return x.unflatten(-1, (-1, self.heads, self.head_width))

    def _turned(self, x: Tensor, layout: Layout) -> Tensor:
        """Queries or keys [B, L, j, H, D/H], of unit size where that is asked for, turned by their positions."""
        if self.query_key_norm:
            x = F.rms_norm(x, x.shape[-1:])
        return rotate(x, layout.cos, layout.sin)


class TimeEmbedding(nn.Module):
    """sigma [B] -> [B, C]: 256 sines and cosines, then two layers."""

    def __init__(self, condition: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, condition), nn.Linear(condition, condition)

    def forward(self, sigma: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10_000) * torch.arange(128, device=sigma.device) / 128)
        angles = sigma.float()[:, None] * frequencies
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.first.weight.dtype)
        return F.silu(self.second(F.silu(self.first(waves))))
