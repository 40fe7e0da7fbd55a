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
    """

    cos: Tensor
    sin: Tensor
    segments: Tensor | None
    hidden: Tensor | None
    causal: bool = False
    shifted: bool = False
    clean: "CleanSites | None" = None

    def first(self, count: int) -> "Layout":
        """The angles of the first `count` positions."""
        return self._replace(cos=self.cos[..., :count, :, :, :], sin=self.sin[..., :count, :, :, :])

    def at(self, positions: Tensor) -> "Layout":
        """Of the positions `positions` [B, m] alone, as they see all others."""
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
    neighbours: [B|1, size, S] sites that a convolution reads, -1 for none; None without a convolution.
    """

    first: int
    hidden: Tensor | None
    neighbours: Tensor | None


def shift_right(tokens: Tensor, start: int, segments: Tensor | None = None) -> Tensor:
    """[start, x_0, ..., x_{L-2}]: what a left-to-right model may see at each position; every segment starts anew."""
    before = F.pad(tokens[:, :-1], (1, 0), value=start).to(torch.long)
    return before if segments is None else before.masked_fill(starts_of(segments), start)


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
    """Rotate the pairs (x_i, x_{i + half}) of x [..., D/H] by their angles."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, hidden: Tensor | None) -> Tensor:
    """softmax(q k^T / sqrt(width)) v over [B, H, L, D/H], without what is hidden (bool, or -inf and 0).

    `causal` says that `hidden` is the plain triangle, which the kernels know by themselves.
    """
    mask = None if causal or hidden is None else ~hidden if hidden.dtype == torch.bool else hidden
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def gelu(x: Tensor) -> Tensor:
    """x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form of GELU.

    It is also x sigmoid(2u). Without gradients, a CPU computes that in place in half the time.
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
    """x + depthwise convolution over `size` neighbours, centred, or causal if the model is shifted.

    Starts as the identity. It gives a masked model its neighbours from the start, which helps small ones early
    (docs/log.md).
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, width))

    def forward(self, x: Tensor, layout: Layout, memory: BlockCache | SlotMemory | None = None) -> Tensor:
        if layout.clean is not None:
            assert layout.clean.neighbours is not None
            assert not isinstance(memory, BlockCache)
            return self._gathered(x, x if memory is None else memory.place_inputs(x), layout.clean.neighbours)
        size, length, segments = len(self.weight), x.shape[1], layout.segments
        sides = reach(size, shifted=layout.shifted)
        before = sides[0]
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
            neighbour = padded[:, k : k + length]
            if segments is not None and k != before:
                there = F.pad(segments, sides, value=-2)[:, start + k : start + k + length]
                same = there == segments[:, start:]
                neighbour = neighbour * same[..., None]
            out = out + neighbour * weight[k]
        return out

    def _gathered(self, x: Tensor, read: Tensor, neighbours: Tensor) -> Tensor:
        """Of x [B, S, D], with the entries [B|1, size, S] of `read` [B, K, D] that stand around each; -1 is zero."""
        rows, entries = len(x), read.shape[1]
        # Whole rows of one table: gathering element by element is half as fast, and its gradient slower still.
        table = F.pad(read, (0, 0, 0, 1)).flatten(0, 1)
        first = torch.arange(rows, device=x.device)[:, None, None] * (entries + 1)
        index = torch.where(neighbours < 0, entries, neighbours) + first
        out = x
        for k, weight in enumerate(self.weight.to(x.dtype)):
            out = torch.addcmul(out, table.index_select(0, index[:, k].flatten()).view_as(x), weight)
        return out


def reach(size: int, *, shifted: bool) -> tuple[int, int]:
    """How far a convolution of this size looks to the left and to the right."""
    before = size - 1 if shifted else size // 2
    return before, size - 1 - before


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
