"""The transformer block of every stack: attention and an MLP, at all positions or at chosen ones.

Block and norms follow DiT (arXiv 2212.09748) as SEDD and MDLM use it, so that official weights fit.

Shapes: B batch, L length, D width, H heads, C conditioning width, N chosen positions.
"""

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.models import int8
from adlm.models.adapter import Adapter
from adlm.models.block_cache import SlotMemory
from adlm.models.cache import BlockCache
from adlm.models.derived import Deriving
from adlm.models.hand_gradients import by_hand
from adlm.models.hand_second_half import SecondHalf
from adlm.models.layers import (
    CleanSites,
    Layout,
    ShortConvolution,
    attend,
    gelu,
    linear,
    paired_queries_keys_values,
    queries_keys_values,
    rotate,
)

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
        """The features [N, D] at these positions, from [B, L, D]."""
        return x[:, : self.mask.shape[1]].flatten(0, 1).index_select(0, self.flat)

    def select_rows(self, x: Tensor) -> Tensor:
        """The values [N, D] of the row of each position, from [B, D]."""
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
    """A block's weights with a modulation that is the same everywhere multiplied into them.

    The maps to queries, keys and values and to the MLP come last: where nothing changes them, they are called as
    modules, which adapters of the library peft replace.
    """

    gain_1: Tensor
    shift_1: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gain_2: Tensor
    shift_2: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    qkv: Tensor | None = None
    up: Tensor | None = None


class Block(Deriving):
    """Pre-norm attention and MLP, each scaled and gated by the conditioning if there is one.

    h = x + gate_1 * attention(modulate_1(norm_1(x)));  out = h + gate_2 * mlp(modulate_2(norm_2(h)))

    If `parallel`, the MLP reads x instead of h. A conditioning that does not follow the time is a constant and is
    multiplied into gains and weights, exactly.
    """

    def __init__(self, config: "StackConfig") -> None:
        super().__init__()
        width, hidden = config.width, config.mlp_width
        self.heads, self.key_heads, self.head_width = config.heads, config.key_heads, config.channels
        self.mlp, self.parallel, self.query_key_norm = config.mlp, config.parallel, config.query_key_norm
        self.dropout, self.time_conditioned, self.int8 = config.dropout, config.timed, False
        self.norm_1, self.norm_2 = config.build_norm(), config.build_norm()
        size, biases = config.convolution, config.biases
        self.convolution = ShortConvolution(width, size) if size else None
        gains = config.query_key_gains
        self.query_norm, self.key_norm = ((config.build_norm(self.head_width) if gains else None) for _ in range(2))
        maps = self.heads + 2 * self.key_heads
        self.qkv = nn.Linear(width, maps * self.head_width, bias=biases in ("qkv", "all"))
        self.out = nn.Linear(self.heads * self.head_width, width, bias=biases == "all")
        self.up = nn.Linear(width, (2 if self.mlp == "swiglu" else 1) * hidden, bias=biases in ("mlp", "all"))
        self.down = nn.Linear(hidden, width, bias=biases in ("mlp", "all"))
        rank = config.adapter_rank
        maps_by_name = {"qkv": self.qkv, "out": self.out, "up": self.up, "down": self.down}
        self.adapters = nn.ModuleDict({name: Adapter(map_, rank) for name, map_ in maps_by_name.items() if rank})
        self.modulation = nn.Linear(config.condition, 6 * width) if config.condition else None
        if self.modulation is not None:
            nn.init.zeros_(self.modulation.weight)
            nn.init.zeros_(self.modulation.bias)
        else:
            # As zero modulation does: every block starts as the identity.
            for last in (self.out, self.down):
                nn.init.zeros_(last.weight)
                if last.bias is not None:
                    nn.init.zeros_(last.bias)

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
        if self.adapters and layout.adapted:
            return self._adapted(x, layout, w, outputs, memory)
        mixed = self._attention(self.norm_1.scaled(x, w.gain_1, w.shift_1), layout, outputs, memory)
        return self._after_attention(x if outputs is None else outputs.select(x), mixed, w)

    def _after_attention(self, x: Tensor, mixed: Tensor, w: _Folded) -> Tensor:
        if by_hand(x) and self._plain_second_half():
            up = self.up.weight if w.up is None else w.up
            weights = (w.out, w.out_bias, w.gain_2, w.shift_2, up, self.up.bias, w.down, w.down_bias)
            result: Tensor = SecondHalf.apply(x, mixed, *weights, self.norm_2.eps)
            return result
        adapted = "" if w.up is None else "adapted "
        h = x + self._drop(self._product(f"{adapted}out", mixed, w.out, w.out_bias))
        read = self.norm_2.scaled(x if self.parallel else h, w.gain_2, w.shift_2)
        return h + self._drop(self._product(f"{adapted}down", self._expanded(read, w.up), w.down, w.down_bias))

    def _adapted(
        self,
        x: Tensor,
        layout: Layout,
        w: _Folded,
        outputs: Outputs | None,
        memory: BlockCache | SlotMemory | None,
    ) -> Tensor:
        """As `forward`, with the adapters at noisy positions, which come first, and without them at clean ones."""
        own = self.derived("adapted", lambda: self._changed(w))
        count = layout.adapted
        h = self.norm_1.scaled(x, w.gain_1, w.shift_1)
        if self.convolution is not None:
            h = self.convolution(h, layout, memory)
        noisy, clean = x[:, :count], x[:, count:]
        parts = [(h[:, :count], own.qkv, layout.part(slice(count)))]
        if clean.shape[1]:
            parts.append((h[:, count:], w.qkv, layout.part(slice(count, None))))
            if not self.qkv.weight.requires_grad:  # nothing that is trained comes before clean positions
                clean, parts[1] = clean.detach(), (parts[1][0].detach(), *parts[1][1:])
        heads = [self._queries_keys_values(part, where, weight) for part, weight, where in parts]
        k, v = (torch.cat(both, 2) for both in list(zip(*heads, strict=True))[1:])
        if memory is not None:
            assert isinstance(memory, SlotMemory)
            k, v = memory.place(k, v)
        mixed = attend(heads[0][0], k, v, causal=False, hidden=layout.hidden).transpose(1, 2).flatten(2)
        if outputs is not None:
            return self._after_attention(outputs.select(noisy), outputs.select(mixed), own)
        noisy = self._after_attention(noisy, mixed, own)
        if len(parts) == 1:
            return noisy
        assert layout.clean is not None
        hidden = layout.clean.hidden
        if memory is None:
            _, k, v = heads[1]
        read = attend(heads[1][0], k, v, causal=hidden is None, hidden=hidden).transpose(1, 2).flatten(2)
        return torch.cat([noisy, self._after_attention(clean, read, w)], 1)

    def _plain_second_half(self) -> bool:
        """Whether what follows attention is what `SecondHalf` computes."""
        usual = self.mlp == "gelu" and not self.parallel and not self.norm_2.rms and isinstance(self.up, nn.Linear)
        return usual and not (self.dropout and self.training) and not torch.is_autocast_enabled("cpu")

    def _changed(self, w: _Folded) -> _Folded:
        """The weights with the adapters added."""
        weights = {"qkv": self.qkv.weight, "out": w.out, "up": self.up.weight, "down": w.down}
        adapters = {name: cast("Adapter", adapter) for name, adapter in self.adapters.items()}
        return w._replace(**{name: adapters[name].changed(weight) for name, weight in weights.items()})

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
        h = x + gate_1 * self._drop(self.out(mixed))
        read = self.norm_2(x if self.parallel else h) * (1 + scale_2) + shift_2
        return h + gate_2 * self._drop(self.down(self._expanded(read)))

    def _folded(self, condition: Tensor | None) -> _Folded:
        (gain_1, bias_1), (gain_2, bias_2) = ((norm.weight, norm.bias) for norm in (self.norm_1, self.norm_2))
        (out, out_bias), (down, down_bias) = ((last.weight, last.bias) for last in (self.out, self.down))
        if self.modulation is None:
            return _Folded(gain_1, bias_1, out, out_bias, gain_2, bias_2, down, down_bias)
        modulation = self.modulation(condition)[0].to(gain_1.dtype)  # autocast may have shortened it
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = modulation.chunk(6)
        return _Folded(
            gain_1 * (1 + scale_1),
            shift_1 if bias_1 is None else bias_1 * (1 + scale_1) + shift_1,
            gate_1[:, None] * out,
            None if out_bias is None else gate_1 * out_bias,
            gain_2 * (1 + scale_2),
            shift_2 if bias_2 is None else bias_2 * (1 + scale_2) + shift_2,
            gate_2[:, None] * down,
            None if down_bias is None else gate_2 * down_bias,
        )

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def _expanded(self, h: Tensor, weight: Tensor | None = None) -> Tensor:
        h = self._mapped("up", self.up, h, weight)
        if self.mlp == "swiglu":
            gate, value = h.chunk(2, dim=-1)
            return F.silu(gate) * value
        return gelu(h) if self.mlp == "gelu" else F.gelu(h)

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
            q, k, v = self._queries_keys_values(h, layout)
        else:
            _, k, v = self._split(self._part(h, slice(self._queries, None)), layout, 0)
            layout = layout.at(few.positions)
            asking = h.take_along_dim(few.positions[:, :, None], 1)
            q = self._rotated(self._part(asking, slice(self._queries)), layout, self.heads)
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
            _, k, v = self._split(self._part(h, slice(self._queries, None)), layout, 0)
            q = self._rotated(self._part(h[:, :asking], slice(self._queries)), layout.part(slice(asking)), self.heads)
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        else:
            q, k, v = self._queries_keys_values(h, layout)
            q = q[:, :, :asking]
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

    def _queries_keys_values(
        self, h: Tensor, layout: Layout, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B, L, D] -> [B, heads, L, D/H] each, queries and keys as attention compares them."""
        counts = (self.heads, self.key_heads, self.key_heads)
        simple = self.query_norm is None and 2 * layout.cos.shape[-1] == self.head_width
        if simple and by_hand(h) and isinstance(self.qkv, nn.Linear):
            weight = self.qkv.weight if weight is None else weight
            return paired_queries_keys_values(h, weight, self.qkv.bias, layout, counts, normalize=self.query_key_norm)
        products = self._mapped("qkv", self.qkv, h, weight)
        if simple:
            products = products.unflatten(-1, (-1, self.head_width))
            return queries_keys_values(products, layout, counts, normalize=self.query_key_norm)
        q, k, v = self._split(products, layout, self.heads)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _mapped(self, name: str, module: nn.Module, x: Tensor, weight: Tensor | None) -> Tensor:
        """The product with a map of the block, or with other weights in place of its own."""
        if weight is not None:
            return self._product(f"adapted {name}", x, weight, cast("nn.Linear", module).bias)
        # Adapters of peft act only where their map is called.
        if isinstance(module, nn.Linear):
            return self._product(name, x, module.weight, module.bias)
        return module(x)

    def _product(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not self.int8 or torch.is_grad_enabled():
            return linear(x, weight, bias)
        return int8.linear(x, self.derived(f"int8 {name}", lambda: int8.packed(weight, bias)))

    def _may_leave_out_queries(self) -> bool:
        # Training keeps to one path, and so do compiled blocks. Adapters (LoRA) act only where their map is called.
        return not torch.is_grad_enabled() and not torch.compiler.is_compiling() and isinstance(self.qkv, nn.Linear)

    @property
    def _queries(self) -> int:
        """Rows of the first map that make queries; keys and values come after them."""
        return self.heads * self.head_width

    def _part(self, h: Tensor, rows: slice) -> Tensor:
        """Some rows of the map to queries, keys and values."""
        bias = self.qkv.bias
        return linear(h, self.qkv.weight[rows], None if bias is None else bias[rows])

    def _split(self, x: Tensor, layout: Layout, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of so many heads, keys and values side by side -> each [B, L, heads, D/H], ready for attention."""
        size = self.key_heads * self.head_width
        turned, v = x.split([x.shape[-1] - size, size], -1)
        q, k = self._rotated(turned, layout, queries).split([queries, self.key_heads], 2)
        return q, k, v.unflatten(-1, (self.key_heads, self.head_width))

    def _rotated(self, x: Tensor, layout: Layout, queries: int) -> Tensor:
        """Queries of so many heads, then keys -> [B, L, heads, D/H], normalized if asked for, rotated."""
        x = x.unflatten(-1, (1, -1, self.head_width))
        if self.query_norm is not None and self.key_norm is not None:
            parts = zip((self.query_norm, self.key_norm), x.tensor_split([queries], -2), strict=True)
            x = torch.cat([norm(part) for norm, part in parts], -2)
        elif self.query_key_norm:
            x = F.rms_norm(x, x.shape[-1:])
        return rotate(x, layout.cos, layout.sin)[:, :, 0]
