"""The transformer block of every stack: attention and an MLP, at all positions or at chosen ones.

Block and norms follow DiT (arXiv 2212.09748) as SEDD and MDLM use it, so that official weights fit.

Shapes: B batch, L length, D width, H heads, C conditioning width, N chosen positions.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.models import int8
from adlm.models.block_cache import SlotMemory
from adlm.models.cache import BlockCache
from adlm.models.derived import Deriving
from adlm.models.layers import CleanSites, Layout, Norm, ShortConvolution, attend, gelu, rotate

if TYPE_CHECKING:
    from adlm.models.stack import StackConfig


class Outputs(NamedTuple):
    """The positions at which a pass has to give a result: `mask` [B, L] bool, and their flat numbers `flat` [N].

    The numbers are found once per pass, since an accelerator has to be waited for. A pass may have further sites after
    the L positions (see `two_copies`); they give no result.
    """

    mask: Tensor
    flat: Tensor

    @classmethod
    def of(cls, mask: Tensor) -> "Outputs":
        return cls(mask, mask.flatten().nonzero()[:, 0])

    def select(self, x: Tensor) -> Tensor:
        """[B, L, D] -> [N, D]"""
        return x[:, : self.mask.shape[1]].flatten(0, 1).index_select(0, self.flat)

    def select_rows(self, x: Tensor) -> Tensor:
        """[B, D] -> [N, D]: what belongs to the row of each position."""
        return x.index_select(0, self.flat // self.mask.shape[1])


class Few(NamedTuple):
    """A few positions of each row: positions [B, m] in order, and which are meant [B, m] bool; others are filler."""

    positions: Tensor
    meant: Tensor


def few_of(output_mask: Tensor) -> Few | None:
    """The output positions [B, L] bool; None if a row has so many that leaving out the others does not pay."""
    counts = output_mask.sum(-1)
    most = max([1, *counts.tolist()])
    if 4 * most > output_mask.shape[1]:  # short rows gain nothing beyond a quarter, long ones little beyond a half
        return None
    positions = output_mask.byte().argsort(dim=-1, descending=True, stable=True)[:, :most]
    return Few(positions, torch.arange(most, device=output_mask.device) < counts[:, None])


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
    """Pre-norm attention and MLP, each scaled and gated by the conditioning if there is one.

    h = x + gate_1 * attention(modulate_1(norm_1(x)));  out = h + gate_2 * mlp(modulate_2(norm_2(h)))

    A conditioning that does not follow the time is a constant and is multiplied into gains and weights, exactly.
    """

    def __init__(self, config: "StackConfig") -> None:
        super().__init__()
        width, hidden = config.width, config.mlp_ratio * config.width
        self.heads, self.head_width, self.query_key_norm = config.heads, width // config.heads, config.query_key_norm
        self.dropout, self.time_conditioned, self.int8 = config.dropout, config.timed, False
        self.norm_1, self.norm_2 = Norm(width), Norm(width)
        size = config.convolution
        self.convolution = ShortConvolution(width, size) if size else None
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.modulation = nn.Linear(config.condition, 6 * width) if config.condition else None
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
        outputs: Outputs | None = None,
        memory: BlockCache | SlotMemory | None = None,
    ) -> Tensor:
        """x [B, L, D] -> [B, L, D], or [N, D] at `outputs`.

        Args:
            condition: [B, C] for time-conditioned blocks, [1, C] or None for others.
            outputs: nothing after attention looks at other positions, so these alone are computed from there on.
            memory: of the positions before these, if rows are read in parts.
        """
        if self.time_conditioned:
            return self._modulated(x, layout, condition, outputs, memory)
        w = self.derived("folded", lambda: self._folded(condition))
        mixed = self._attention(F.layer_norm(x, x.shape[-1:], w.gain_1, w.shift_1), layout, outputs, memory)
        if outputs is not None:
            x = outputs.select(x)
        x = x + self._drop(self._product("out", mixed, w.out))
        h = F.layer_norm(x, x.shape[-1:], w.gain_2, w.shift_2)
        return x + self._drop(self._product("down", self._expanded(h), w.down, w.down_bias))

    def _modulated(
        self,
        x: Tensor,
        layout: Layout,
        condition: Tensor | None,
        outputs: Outputs | None,
        memory: BlockCache | SlotMemory | None,
    ) -> Tensor:
        assert self.modulation is not None
        modulation = self.modulation(condition)
        shift_1, scale_1 = modulation[:, None].chunk(6, dim=-1)[:2]
        mixed = self._attention(self.norm_1(x) * (1 + scale_1) + shift_1, layout, outputs, memory)
        if outputs is None:
            modulation = modulation[:, None]
        else:
            x, modulation = outputs.select(x), outputs.select_rows(modulation)
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
        self, h: Tensor, layout: Layout, outputs: Outputs | None = None, memory: BlockCache | SlotMemory | None = None
    ) -> Tensor:
        """What the heads gather, side by side, before the output map: [B, L, D], or [N, D] at `outputs`."""
        if self.convolution is not None:
            h = self.convolution(h, layout, memory)
        if layout.clean is not None:
            return self._attention_in_blocks(h, layout, layout.clean, outputs, memory)
        few = few_of(outputs.mask) if outputs is not None and self._may_leave_out_queries() else None
        if few is None:
            qkv = self._heads(self._mapped("qkv", self.qkv, h))
            q, k = self._rotated(qkv[:, :, :2], layout).unbind(2)
            v = qkv[:, :, 2]
            if torch.is_grad_enabled():
                v = v.contiguous()  # as a view it would keep q and k before rotation in memory until the backward pass
        else:
            width = h.shape[-1]
            kv = self._heads(F.linear(h, self.qkv.weight[width:]))
            k, v = self._rotated(kv[:, :, :1], layout)[:, :, 0], kv[:, :, 1]
            layout = layout.at(few.positions)
            q = self._heads(F.linear(h.take_along_dim(few.positions[:, :, None], 1), self.qkv.weight[:width]))
            q = self._rotated(q, layout)[:, :, 0]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if memory is not None:
            assert isinstance(memory, BlockCache)
            k, v = memory.append(k, v)
        mixed = attend(q, k, v, causal=layout.causal, hidden=layout.hidden).transpose(1, 2).flatten(2)
        if outputs is None:
            return mixed
        return outputs.select(mixed) if few is None else mixed[few.meant]

    def _attention_in_blocks(
        self,
        h: Tensor,
        layout: Layout,
        clean: CleanSites,
        outputs: Outputs | None,
        memory: BlockCache | SlotMemory | None,
    ) -> Tensor:
        """As `_attention`, for noisy sites and the clean ones after them. At the end, clean ones are only seen."""
        asking = h.shape[1] if outputs is None else outputs.mask.shape[1]
        if asking < h.shape[1] and isinstance(self.qkv, nn.Linear):
            width = h.shape[-1]
            q = self._heads(F.linear(h[:, :asking], self.qkv.weight[:width]))
            kv = self._heads(F.linear(h, self.qkv.weight[width:]))
            k, v = self._rotated(kv[:, :, :1], layout)[:, :, 0], kv[:, :, 1]
            q = self._rotated(q, layout.first(asking))[:, :, 0]
        else:
            qkv = self._heads(self._mapped("qkv", self.qkv, h))
            q, k = self._rotated(qkv[:, :, :2], layout).unbind(2)
            q, v = q[:, :asking], qkv[:, :, 2]
        if torch.is_grad_enabled():
            v = v.contiguous()  # as in `_attention`
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if memory is not None:
            assert isinstance(memory, SlotMemory)
            k, v = memory.place(k, v)
        noisy = min(clean.first, asking)
        hidden = None if layout.hidden is None else layout.hidden[..., :noisy, :]
        mixed = attend(q[:, :, :noisy], k, v, causal=False, hidden=hidden)
        if asking > noisy:
            seen = slice(0 if memory is not None else noisy, None)
            causal = clean.hidden is None
            read = attend(q[:, :, noisy:], k[:, :, seen], v[:, :, seen], causal=causal, hidden=clean.hidden)
            mixed = torch.cat([mixed, read], 2)
        mixed = mixed.transpose(1, 2).flatten(2)
        return mixed if outputs is None else outputs.select(mixed)

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

    def _rotated(self, x: Tensor, layout: Layout) -> Tensor:
        """Queries or keys [B, L, j, H, D/H], normalised if asked for, rotated by their positions."""
        if self.query_key_norm:
            x = F.rms_norm(x, x.shape[-1:])
        return rotate(x, layout.cos, layout.sin)
