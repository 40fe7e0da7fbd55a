"""The parts of a transformer block: rotary positions, attention, a short convolution, norms, the time.

Shapes: B batch, L length, D width, H heads, C conditioning width.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.models.block_cache import SlotMemory
from adlm.models.cache import BlockCache
from adlm.models.hand_gradients import Attention, Convolution, GatheredConvolution, Heads, by_hand, short_rows


class Layout(NamedTuple):
    """The numbers of the positions and what each may see: the same for all blocks of a pass.

    cos, sin: [L, 1, 1, D/H/2], or [B, L, 1, 1, D/H/2] if rows differ.
    segments: [B, L]; positions of one row see each other if these are equal; None: all do. If rows are read in parts,
        those of the positions before these come first.
    hidden: [L, L] or [B, 1, L, L] bool, True where a position (row) must not see another (column); None: nowhere.
        If rows are read in parts, there are columns for the positions before these too. Passes in blocks have what is
        added to the scores instead, -inf or 0.
    causal: `hidden` is the plain triangle.
    shifted: positions read the token before theirs, so a convolution looks to the left only.
    clean: for passes in blocks, how the clean sites are read, which come after those that `hidden` is about.
    adapted: how many of the first positions use the adapters of a block, if it has any.
    """

    cos: Tensor
    sin: Tensor
    segments: Tensor | None
    hidden: Tensor | None
    causal: bool = False
    shifted: bool = False
    clean: "CleanSites | None" = None
    adapted: int = 0

    def part(self, positions: slice) -> "Layout":
        """The angles of some of the positions."""
        return self._replace(cos=self.cos[..., positions, :, :, :], sin=self.sin[..., positions, :, :, :])

    def at(self, positions: Tensor) -> "Layout":
        """The layout of the positions `positions` [B, m] alone, as they see all others."""
        rows, column = len(positions), positions[:, :, None, None, None]
        cos, sin = (x.expand(rows, *x.shape[-4:]).take_along_dim(column, 1) for x in (self.cos, self.sin))
        hidden = self.hidden
        if hidden is not None:
            hidden = hidden.expand(rows, 1, *hidden.shape[-2:]).take_along_dim(positions[:, None, :, None], 2)
        return self._replace(cos=cos, sin=sin, hidden=hidden, causal=False)


class CleanSites(NamedTuple):
    """The part of a layout that passes in blocks add. See `adlm.models.two_copies`.

    first: number of the first clean site; those before it are noisy.
    hidden: [B|1, 1, C, K], what the clean sites must not see; None for the plain triangle.
    neighbors: [B|1, size, S] sites that a convolution reads, -1 for none; None without a convolution.
    left_to_right: the sites before `first` are read as a left-to-right model reads them, not as noisy ones.
    """

    first: int
    hidden: Tensor | None
    neighbors: Tensor | None
    left_to_right: bool = False


def shift_right(tokens: Tensor, start: int, segments: Tensor | None = None) -> Tensor:
    """[start, x_0, ..., x_{L-2}]: what a left-to-right model may see at each position; every segment starts anew."""
    before = F.pad(tokens[:, :-1], (1, 0), value=start).to(torch.long)
    return before if segments is None else before.masked_fill(starts_of(segments), start)


def starts_of(segments: Tensor) -> Tensor:
    """The first position of each segment, [B, L] bool."""
    return F.pad(segments[:, 1:] != segments[:, :-1], (1, 0), value=True)


def positions_in(segments: Tensor) -> Tensor:
    """The position [B, L] of each token within its segment, so that padding on the left changes nothing."""
    index = torch.arange(segments.shape[1], device=segments.device)
    return index - (index * starts_of(segments)).cummax(-1).values


class Rotary(nn.Module):
    """Rotary position embedding (arXiv 2104.09864): cos and sin [..., R/2] of angles l * base^(-2i/R).

    Args:
        channels: R, the rotated channels of a head.
    """

    inverse_frequency: Tensor

    def __init__(self, channels: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.channels, self.base = channels, base
        exponent = torch.arange(0, channels, 2).float() / max(channels, 1)
        self.register_buffer("inverse_frequency", base**-exponent, persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.float()[..., None] * self.inverse_frequency
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x_i, x_{i + half}) of the first channels of x [..., D/H] by their angles [..., half]."""
    half = cos.shape[-1]
    if not half:
        return x
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat(turned if not rest.shape[-1] else [*turned, rest], dim=-1)


def queries_keys_values(
    x: Tensor, layout: Layout, counts: tuple[int, int, int], *, normalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [B, H, L, D/H] from their products [B, L, heads of all three, D/H]; q and k are rotated.

    Args:
        counts: heads of queries, keys and values.
        normalize: queries and keys, before they are rotated.
    """
    both, v = x.split([counts[0] + counts[1], counts[2]], 2)
    if normalize:
        both = F.rms_norm(both, both.shape[-1:])
    q, k = rotate(both, layout.cos.squeeze(-2), layout.sin.squeeze(-2)).split(counts[:2], 2)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def paired_queries_keys_values(
    x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout, counts: tuple[int, int, int], *, normalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`queries_keys_values` of x W^T + b, by hand. q and k have their channels in another order, the same for both."""
    width = 2 * layout.cos.shape[-1]
    turning = (counts[0] + counts[1]) * width

    def paired(rows: Tensor) -> Tensor:
        """Rows of the map, those of each rotated pair next to each other instead of half a head apart."""
        turned = rows[:turning].unflatten(0, (-1, 2, width // 2)).transpose(1, 2).flatten(0, 2)
        return torch.cat([turned, rows[turning:]])

    products = F.linear(x, paired(weight), None if bias is None else paired(bias)).unflatten(-1, (-1, width))
    turns = torch.complex(layout.cos, layout.sin).squeeze(-2)
    heads: tuple[Tensor, Tensor, Tensor] = Heads.apply(products, turns, counts, normalize)
    return heads


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, hidden: Tensor | None) -> Tensor:
    """softmax(q k^T / sqrt(width)) v over [B, H, L, D/H], without what is hidden (bool, or -inf and 0).

    Keys and values may have fewer heads, each for a group of queries. `causal` says that `hidden` is the plain
    triangle, which the kernels know by themselves.
    """
    if short_rows(q, k):
        if causal and hidden is None:
            hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        if hidden is not None and hidden.dim() == 4 and len(hidden) == 1:
            hidden = hidden[0, 0]
        mixed: Tensor = Attention.apply(q, k, v, hidden)
        return mixed
    mask = None if causal or hidden is None else ~hidden if hidden.dtype == torch.bool else hidden
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, as `F.linear`; on a CPU up to twice as fast at two to eight positions, which decoding reads.

    There the weights are most of what is read, and MKL reads them faster as the left factor.
    """
    if _may_swap_factors(x) and 2 <= (positions := x.numel() // x.shape[-1]) <= 8:
        product = torch.mm(weight, x.reshape(positions, -1).t()).t()
        product = product.contiguous() if bias is None else product + bias
        return product.view(*x.shape[:-1], -1)
    return F.linear(x, weight, bias)


def _may_swap_factors(x: Tensor) -> bool:
    """Whether `linear` may take its other way: without gradients, in float32 on a CPU."""
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return plain and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def gelu(x: Tensor) -> Tensor:
    """x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form of GELU.

    It is also x sigmoid(2u). Without gradients, a CPU computes that in place in half the time.
    """
    if torch.is_grad_enabled() or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    twice = 2 * math.sqrt(2 / math.pi)
    return x.square().mul_(0.044715 * twice).add_(twice).mul_(x).sigmoid_().mul_(x)


class Norm(nn.Module):
    """Layer normalization (or, if `rms`, by the root mean square) with a gain, and an optional bias."""

    def __init__(self, width: int, *, rms: bool = False, eps: float = 1e-5, bias: bool = False) -> None:
        super().__init__()
        self.rms, self.eps = rms, eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x, self.weight, self.bias)

    def scaled(self, x: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
        """The normalized input with this gain [D] and shift [D] in place of the norm's own."""
        if not self.rms:
            return F.layer_norm(x, (x.shape[-1],), gain, shift, self.eps)
        x = F.rms_norm(x, (x.shape[-1],), gain, self.eps)
        return x if shift is None else x + shift


class ShortConvolution(nn.Module):
    """x + depthwise convolution over `size` neighbors, centered, or causal if the model is shifted.

    Starts as the identity. It gives a masked model its neighbors from the start, which helps small ones early
    (docs/log.md).
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, width))

    def forward(self, x: Tensor, layout: Layout, memory: BlockCache | SlotMemory | None = None) -> Tensor:
        if layout.clean is not None:
            assert layout.clean.neighbors is not None
            assert not isinstance(memory, BlockCache)
            return self._gathered(x, x if memory is None else memory.place_inputs(x), layout.clean.neighbors)
        size, length, segments = len(self.weight), x.shape[1], layout.segments
        sides = reach(size, shifted=layout.shifted)
        before = sides[0]
        if memory is None and by_hand(x):
            out: Tensor = Convolution.apply(x, self.weight, before, segments)
            return out
        if memory is None:
            padded = F.pad(x, (0, 0, *sides))
        else:
            assert isinstance(memory, BlockCache)
            padded = memory.following(x, before)
        # Shifted products beat conv1d with groups on a CPU, and need no transpose.
        weight = self.weight.to(x.dtype)
        start = 0 if segments is None else segments.shape[1] - length  # of x, if rows are read in parts
        out = x
        for k in range(size):
            neighbor = padded[:, k : k + length]
            if segments is not None and k != before:
                there = F.pad(segments, sides, value=-2)[:, start + k : start + k + length]
                same = there == segments[:, start:]
                neighbor = neighbor * same[..., None]
            out = out + neighbor * weight[k]
        return out

    def _gathered(self, x: Tensor, read: Tensor, neighbors: Tensor) -> Tensor:
        """Of x [B, S, D], with the entries [B|1, size, S] of `read` [B, K, D] that stand around each; -1 is zero."""
        rows, entries = len(x), read.shape[1]
        first = torch.arange(rows, device=x.device)[:, None, None] * entries
        index = torch.where(neighbors < 0, rows * entries, neighbors + first).transpose(0, 1).flatten(1)
        if read is x and by_hand(x):
            out: Tensor = GatheredConvolution.apply(x, self.weight, index)
            return out
        # Whole rows of one table: gathering element by element is half as fast.
        table = F.pad(read.flatten(0, 1), (0, 0, 0, 1))
        out = x
        for k, weight in enumerate(self.weight.to(x.dtype)):
            out = torch.addcmul(out, table.index_select(0, index[k]).view_as(x), weight)
        return out


def reach(size: int, *, shifted: bool) -> tuple[int, int]:
    """How far a convolution of this size reaches to the left and to the right."""
    before = size - 1 if shifted else size // 2
    return before, size - 1 - before


def sigma_at(t: Tensor | None) -> Tensor | None:
    """The noise sigma = -log alpha_t of the log-linear schedule, on which time-conditioned networks are conditioned."""
    return None if t is None else -torch.log1p(-(1 - 1e-3) * t)


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
