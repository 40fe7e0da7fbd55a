"""The one transformer stack from which every model is built: [B, L, D] in, [B, L, D] out."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adlm.errors import ConfigError, OutOfRange
from adlm.models.block import Block, Outputs
from adlm.models.block_cache import FinishedBlocks
from adlm.models.cache import Cache
from adlm.models.derived import Deriving
from adlm.models.hand_gradients import SHORT, by_hand
from adlm.models.layers import CleanSites, Layout, Norm, Rotary, TimeEmbedding, positions_in
from adlm.models.matrix_products import inference_products

# Which positions a position sees: those to its left; its block and all blocks before it; or all.
Attention = Literal["causal", "block", "full"]
NormKind = Literal["layer", "rms"]
MlpKind = Literal["gelu", "exact_gelu", "swiglu"]
Biases = Literal["mlp", "none", "qkv", "all"]


@dataclass(frozen=True)
class StackConfig:
    """The shape of a stack.

    Args:
        attention: which positions a position sees. The size of blocks belongs to the network, and can be chosen for
            each pass.
        convolution: size of the short convolution in each block; 0 is none, as published.
        condition: width of the conditioning of adaptive norms, 128 as published; 0 leaves them out.
        timed: the conditioning follows the time; otherwise, as published, it is that of t = 0 for all t.
        query_key_norm: normalize queries and keys, with which small runs learn faster; not as published. Scores are
            then at most the root of a head's width: narrow heads cannot single out one of hundreds of tokens.
        input_reinjection: normalize the input and add it again before the block of this number; 0, as published, is
            never. A stack then sees its tokens as late as a denoiser with the `Hidden` hand-over does.
        adapter_rank: of low-rank adapters (LoRA, arXiv 2106.09685) that act at noisy positions only (as in arXiv
            2507.11851), and are all that is trained: the left-to-right model that a network starts from stays in it
            unchanged, and finished text is cached as that model reads it. 0 is none.

    What follows is for the weights of other families (`adlm.convert.from_ar`):

        norm, norm_eps: layer norms, or by the root mean square.
        mlp: gelu in its tanh form, exact_gelu, or swiglu, silu(gate) * value.
        hidden: width of the MLP; 0 is mlp_ratio * width.
        kv_heads: heads of keys and values, each for a group of queries; 0 is as many as of queries.
        head_width: channels of a head; 0 is width / heads.
        biases: which maps have one; all includes the norms.
        query_key_gains: normalized queries and keys have a learned gain.
        rotary_base, rotary_fraction: of the angles, and how much of each head they turn; a fraction of 0 leaves
            positions to learned vectors.
        parallel: attention and MLP read the same input.
    """

    width: int = 128
    heads: int = 4
    layers: int = 6
    mlp_ratio: int = 4
    dropout: float = 0.0
    attention: Attention = "full"
    convolution: int = 0
    condition: int = 0
    timed: bool = False
    query_key_norm: bool = False
    input_reinjection: int = 0
    adapter_rank: int = 0
    norm: NormKind = "layer"
    norm_eps: float = 1e-5
    mlp: MlpKind = "gelu"
    hidden: int = 0
    kv_heads: int = 0
    head_width: int = 0
    biases: Biases = "mlp"
    query_key_gains: bool = False
    rotary_base: float = 10_000.0
    rotary_fraction: float = 1.0
    parallel: bool = False

    def __post_init__(self) -> None:
        for name in ("width", "heads", "layers", "mlp_ratio"):
            if getattr(self, name) < 1:
                raise OutOfRange(name, getattr(self, name), "at least 1")
        for name in ("hidden", "kv_heads", "head_width"):
            if getattr(self, name) < 0:
                raise OutOfRange(name, getattr(self, name), "at least 1, or 0 for the default")
        if self.adapter_rank < 0:
            raise OutOfRange("adapter_rank", self.adapter_rank, "at least 1, or 0 for none")
        if self.adapter_rank and self.timed:
            raise ConfigError("adapters need a stack without time conditioning", subject="adapter_rank")
        for name in ("norm_eps", "rotary_base"):
            if not getattr(self, name) > 0:
                raise OutOfRange(name, getattr(self, name), "positive")
        if not 0 <= self.rotary_fraction <= 1:
            raise OutOfRange("rotary_fraction", self.rotary_fraction, "from 0 to 1")
        if self.heads % self.key_heads:
            raise OutOfRange("kv_heads", self.kv_heads, f"a divisor of the {self.heads} heads")
        if self.query_key_gains and not self.query_key_norm:
            raise ConfigError("query_key_gains=True needs query_key_norm=True", subject="query_key_gains")
        if not self.head_width and self.width % (2 * self.heads):
            raise ConfigError(
                f"width must be a multiple of {2 * self.heads}, twice the number of heads, got {self.width}",
                subject="width",
            )
        if not 0 <= self.input_reinjection < self.layers:
            raise OutOfRange("input_reinjection", self.input_reinjection, f"a block from 1 to {self.layers - 1}, or 0")
        if self.timed and self.attention == "block":
            raise ConfigError(
                "a time-conditioned stack cannot read blocks, which are at different times",
                fix="set timed=False",
                subject="timed",
            )
        if self.timed and not self.condition:
            raise ConfigError(
                "timed=True needs a conditioning: set condition to its width, such as 128", subject="condition"
            )

    @property
    def causal(self) -> bool:
        """Whether positions see only what is to their left."""
        return self.attention == "causal"

    @property
    def channels(self) -> int:
        """The width of a head."""
        return self.head_width or self.width // self.heads

    @property
    def key_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def mlp_width(self) -> int:
        """Width of the MLP, after its nonlinearity."""
        return self.hidden or self.mlp_ratio * self.width

    def build_norm(self, width: int = 0) -> Norm:
        """A norm of the stack's kind; over its own width by default."""
        rms = self.norm == "rms"
        return Norm(width or self.width, rms=rms, eps=self.norm_eps, bias=self.biases == "all" and not rms)

    def block_work(self, sites: int, pairs: int, asking: int | None = None) -> tuple[int, int]:
        """Multiplications of a row in a block: up to the attention scores, and after them.

        The maps to queries, keys and values, and a row of scores twice; then the map back and those of the MLP.

        Args:
            sites: at which the row is read: its length, and more for block diffusion.
            pairs: of sites whose attention score is computed.
            asking: sites that have queries; by default all.
        """
        queries, keys = self.heads * self.channels, self.key_heads * self.channels
        maps = (3 if self.mlp == "swiglu" else 2) * self.mlp_width
        before = (queries * (sites if asking is None else asking) + 2 * keys * sites) * self.width
        return before + 2 * pairs * queries, (queries + maps) * self.width * sites

    def block_activations(self, short: int) -> tuple[int, int]:
        """Bytes per token, in units of D, that a block keeps for its backward pass: before attention, and after it.

        The residual stream before each half, in float32; and in the type of matrix products, of `short` bytes, its two
        normalized inputs, q, k, v, what the heads gather, and the MLP before and after its nonlinearity, 6 + 2 ratio
        in all, and a gated MLP twice its width more. Dropout adds 2, a convolution 1, normalized queries and keys 3,
        the time 2 of float32 and 2 more. In block diffusion, what the heads gather is joined from two parts.
        """
        queries, keys = (heads * self.channels / self.width for heads in (self.heads, self.key_heads))
        attention = 1 + 2 * queries + 2 * keys + 1.5 * (queries + keys) * self.query_key_norm
        mlp = (4 if self.mlp == "swiglu" else 2) * self.mlp_width / self.width
        before = 4 + short * (attention + bool(self.convolution)) + 4 * self.timed
        if self.attention == "block":
            before += short
        after = 4 + short * (1 + mlp + 2 * bool(self.dropout)) + (4 + 2 * short) * self.timed
        return round(before), round(after)

    def build(self) -> "Stack":
        return Stack(self)


class Stack(Deriving):
    """Blocks and a last norm.

    `checkpointing`, off at first, computes each block again in the backward pass instead of storing its inner
    activations.
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        self.rotary = Rotary(2 * round(config.rotary_fraction * config.channels / 2), config.rotary_base)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = config.build_norm()
        self.time = TimeEmbedding(config.condition) if config.condition else None
        self.modulation = nn.Linear(config.condition, 2 * config.width) if config.condition else None
        if self.modulation is not None:
            nn.init.zeros_(self.modulation.weight)
            nn.init.zeros_(self.modulation.bias)

    def forward(
        self,
        x: Tensor,
        sigma: Tensor | None = None,
        segments: Tensor | None = None,
        output_mask: Tensor | None = None,
        cache: Cache | FinishedBlocks | None = None,
        layout: Layout | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x [B, L, D] -> the residual stream after the last block, and what a head reads: that, normalized.

        Args:
            sigma: -log alpha_t [B], for time-conditioned stacks.
            segments: [B, L] numbers; positions see each other if they are equal. Each number has one run of positions
                in a row.
            output_mask: [B, L] bool; with it both results are [N, D], at these positions only.
            cache: of the positions before these; it gets what blocks keep of these, and knows the segments.
            layout: of a pass in blocks; by default that of rows which are read once, from left to right or whole.
        """
        condition = self._condition(sigma)
        if layout is None:
            assert not isinstance(cache, FinishedBlocks)
            if cache is not None:
                segments = cache.segments_after(x.shape[1])
            layout = self._layout(x, segments, 0 if cache is None else cache.length)
        outputs = None if output_mask is None else Outputs.of(output_mask)
        with inference_products(x, self.config.width):
            return self._read(x, layout, condition, outputs, cache)

    def _read(
        self,
        x: Tensor,
        layout: Layout,
        condition: Tensor | None,
        outputs: Outputs | None,
        cache: Cache | FinishedBlocks | None,
    ) -> tuple[Tensor, Tensor]:
        last, again = len(self.blocks) - 1, self.config.input_reinjection
        if again:
            x = embedded = F.rms_norm(x, x.shape[-1:])
        for i, block in enumerate(self.blocks):
            if again and i == again:
                x = x + embedded
            memory = None if cache is None else cache.of(block)
            arguments = (x, layout, condition, outputs if i == last else None, memory)
            # Recomputing would append to the cache a second time.
            if self.checkpointing and self.training and cache is None:
                x = checkpoint(block, *arguments, use_reentrant=False)
            else:
                x = block(*arguments)
        return x, self._normalized(x, condition, outputs)

    def layout_at(self, positions: Tensor, hidden: Tensor | None, clean: CleanSites, shifted: bool) -> Layout:
        """The layout of sites at these positions [B|1, S]."""
        cos, sin = self.rotary(positions[:, :, None, None])
        if len(cos) == 1:
            cos, sin = cos[0], sin[0]
        clean = clean._replace(hidden=self._added(clean.hidden))
        adapted = 0 if self.config.causal or clean.left_to_right else clean.first
        return Layout(cos, sin, None, self._added(hidden), shifted=shifted, clean=clean, adapted=adapted)

    def _added(self, hidden: Tensor | None) -> Tensor | None:
        """What attention adds to the scores, so that not every block makes it, and keeps it for its backward pass."""
        if hidden is None or (by_hand(hidden) and hidden.shape[-1] <= SHORT):
            return hidden
        dtype = self.norm.weight.dtype
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)

    def _layout(self, x: Tensor, segments: Tensor | None, start: int) -> Layout:
        """Of the positions `start` and after; `segments` [B, start + L] has those before them too."""
        length = x.shape[1]
        adapted = 0 if self.config.causal else length
        hidden = None
        if self.config.causal and not (start and length == 1):  # one new position sees all
            hidden = torch.ones(length, start + length, dtype=torch.bool, device=x.device).triu(start + 1)
        if segments is None:
            cos, sin = self.rotary(torch.arange(start, start + length, device=x.device)[:, None, None])
            causal = self.config.causal
            return Layout(cos, sin, None, hidden, causal and not start, shifted=causal, adapted=adapted)
        apart = (segments[:, start:, None] != segments[:, None, :])[:, None]
        cos, sin = self.rotary(positions_in(segments)[:, start:, None, None])
        hidden = apart if hidden is None else apart | hidden
        return Layout(cos, sin, segments, hidden, shifted=self.config.causal, adapted=adapted)

    def _normalized(self, x: Tensor, condition: Tensor | None, outputs: Outputs | None) -> Tensor:
        if self.modulation is None:
            return self.norm(x)
        if self.config.timed:
            modulation = self.modulation(condition)
            modulation = modulation[:, None] if outputs is None else outputs.select_rows(modulation)
            shift, scale = modulation.chunk(2, dim=-1)
            return self.norm(x) * (1 + scale) + shift
        gain, shift = self.derived("last", lambda: self._last(condition))
        return self.norm.scaled(x, gain, shift)

    def _last(self, condition: Tensor | None) -> tuple[Tensor, Tensor]:
        assert self.modulation is not None
        shift, scale = self.modulation(condition)[0].to(self.norm.weight.dtype).chunk(2)
        bias = self.norm.bias
        return self.norm.weight * (1 + scale), shift if bias is None else bias * (1 + scale) + shift

    def _condition(self, sigma: Tensor | None) -> Tensor | None:
        """[B, C], or [1, C] where it is the same for all rows."""
        time = self.time
        if time is None:
            return None
        if not self.config.timed:
            return self.derived("condition", lambda: time(torch.zeros(1, device=self.norm.weight.device)))
        if sigma is None:
            raise ConfigError("a time-conditioned model needs the time: pass t", subject="t")
        return time(sigma)
