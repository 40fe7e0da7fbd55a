"""Models of the package `adlm` for the library transformers, in one file that needs nothing but torch and transformers.

AR and MDLM have one stack; A2R and ADLM (arXiv 2505.18456) have two: an anchor stage predicts every token and hands
over to a denoiser, which predicts again. Left-to-right models (`AdlmForCausalLM`) read rows that begin with the mask
token, which the tokenizer puts there. Masked ones (`AdlmForMaskedLM`) predict token l at position l.

The package itself trains and measures these models, and has many more samplers. Dropout is left out here.

Shapes: B rows, L positions, D width, H heads, V vocabulary.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput


class AdlmConfig(PretrainedConfig):
    """The shape of a network, and of the rows it was trained on, as the package writes them.

    Args:
        network: one or two stacks with all that belongs to them; `kind` says which.
        packing: how texts became rows of one `length`; `rows` in files of version 0.1.
        sampling: the default sampler and its options.
    """

    model_type = "adlm"
    has_no_defaults_at_init = True

    def __init__(
        self,
        network: dict[str, Any] | None = None,
        packing: dict[str, Any] | None = None,
        sampling: dict[str, Any] | None = None,
        vocab_size: int = 2,
        mask_token_id: int = 1,
        **kwargs: Any,
    ) -> None:
        self.network, self.packing, self.sampling = network or {}, packing or kwargs.pop("rows", {}), sampling or {}
        self.vocab_size, self.mask_token_id = vocab_size, mask_token_id
        if network:
            stack = self.stack
            self.hidden_size, self.num_attention_heads = stack["width"], stack["heads"]
            # As many as a cache has layers: the short convolution of a block has one of its own.
            blocks = stack["layers"] + self.network.get("denoiser_layers", 0)
            self.num_hidden_layers = blocks * (2 if stack["convolution"] else 1)
            kwargs["tie_word_embeddings"] = self.network["tied"]
        super().__init__(**kwargs)

    @property
    def stack(self) -> dict[str, Any]:
        """The only stack, or the first of two."""
        return self.network["stack"] if "stack" in self.network else self.network["anchor"]

    @property
    def causal(self) -> bool:
        return _is_causal(self.stack)

    @property
    def full_rows(self) -> bool:
        """Whether the model has only seen full rows, so that blanks have to follow a text that ends early."""
        return self.packing["kind"] == "Wrapped" or bool(self.packing.get("predict_padding"))


def _is_causal(stack: dict[str, Any]) -> bool:
    # Version 0.1 stored a flag.
    return bool(stack["causal"] if "causal" in stack else stack["attention"] == "causal")


class _Layout(NamedTuple):
    """Rotary angles, visibility and cache of the positions of a batch."""

    cos: Tensor  # [B, 1, L, D/H/2]
    sin: Tensor
    visible: Tensor  # [B, L, 1], 0 at padding
    seen: Tensor  # [B, 1, L, all]
    past: Any

    @classmethod
    def of(cls, config: AdlmConfig, new: int, mask: Tensor, past: Any) -> "_Layout":
        """Of the last `new` positions of rows that have an attention mask [B, all]."""
        visible = mask.bool()
        if bool(((visible[:, 1:] & ~visible[:, :-1]).sum(-1) + visible[:, 0] > 1).any()):
            raise ValueError("the attention mask has gaps: padding may come before or after a text, not within it")
        width = config.stack["width"] // config.stack["heads"]
        frequency = 10_000.0 ** -(torch.arange(0, width, 2, device=mask.device).float() / width)
        angles = _positions_of(mask)[:, None, -new:, None].float() * frequency
        seen = visible[:, -new:, None] == visible[:, None, :]
        if config.causal:
            seen = seen & torch.ones_like(seen[0]).tril(mask.shape[1] - new)
        return cls(angles.cos(), angles.sin(), visible[:, -new:, None], seen[:, None], past)


def _positions_of(mask: Tensor) -> Tensor:
    return (mask.long().cumsum(-1) - 1).clamp_min(0)


class _Convolution(nn.Module):
    """x + a depthwise convolution over neighbors, centered or causal."""

    def __init__(self, stack: dict[str, Any], layer: int) -> None:
        super().__init__()
        self.size, self.layer = stack["convolution"], layer
        self.before = self.size - 1 if _is_causal(stack) else self.size // 2
        self.weight = nn.Parameter(torch.zeros(self.size, stack["width"]))

    def forward(self, x: Tensor, layout: _Layout) -> Tensor:
        around = x = x * layout.visible
        if layout.past is not None:
            halves = layout.past.update(*x[:, None].chunk(2, -1), self.layer)
            around = torch.cat(halves, -1)[:, 0, -(x.shape[1] + self.before) :]
        missing = self.size - 1 + x.shape[1] - around.shape[1]
        after = self.size - 1 - self.before
        windows = F.pad(around, (0, 0, missing - after, after)).unfold(1, self.size, 1)
        return x + torch.einsum("bldk,kd->bld", windows, self.weight)


class _Block(nn.Module):
    """x + gate * attention(modulated norm of x), then the same with an MLP. Without a condition, plain norms."""

    def __init__(self, stack: dict[str, Any], number: int) -> None:
        super().__init__()
        width, self.heads, self.normed = stack["width"], stack["heads"], stack["query_key_norm"]
        self.layer = number * (2 if stack["convolution"] else 1)
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.convolution = _Convolution(stack, self.layer + 1) if stack["convolution"] else None
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        inner = stack["mlp_ratio"] * width
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.modulation = nn.Linear(stack["condition"], 6 * width) if stack["condition"] else None

    def forward(self, x: Tensor, layout: _Layout, condition: Tensor | None) -> Tensor:
        m: Any = (0, 0, 1, 0, 0, 1) if self.modulation is None else self.modulation(condition)[:, None].chunk(6, -1)
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = m
        x = x + gate_1 * self.out(self.attention(self.norm_1(x) * (1 + scale_1) + shift_1, layout))
        h = self.norm_2(x) * (1 + scale_2) + shift_2
        return x + gate_2 * self.down(F.gelu(self.up(h), approximate="tanh"))

    def attention(self, h: Tensor, layout: _Layout) -> Tensor:
        if self.convolution is not None:
            h = self.convolution(h, layout)
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.normed:
            q, k = (F.rms_norm(each, each.shape[-1:]) for each in (q, k))
        q, k = (_rotated(each, layout.cos, layout.sin) for each in (q, k))
        if layout.past is not None:
            k, v = layout.past.update(k, v, self.layer)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=layout.seen).transpose(1, 2).flatten(2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (x_i, x_{i + half}) rotated by angles that encode their positions (arXiv 2104.09864)."""
    first, second = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class _TimeEmbedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, width), nn.Linear(width, width)

    def forward(self, sigma: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10_000) * torch.arange(128, device=sigma.device) / 128)
        angles = sigma[:, None] * frequencies
        waves = torch.cat([angles.cos(), angles.sin()], -1).to(self.first.weight.dtype)
        return F.silu(self.second(F.silu(self.first(waves))))


class _Stack(nn.Module):
    """Blocks and a last norm; with `reinjection`, the input is added again before the block of that number."""

    def __init__(self, stack: dict[str, Any], layers: int, first: int, reinjection: int) -> None:
        super().__init__()
        width, condition, self.reinjection = stack["width"], stack["condition"], reinjection
        self.blocks = nn.ModuleList(_Block(stack, first + i) for i in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.time = _TimeEmbedding(condition) if condition else None
        self.modulation = nn.Linear(condition, 2 * width) if condition else None

    def forward(self, x: Tensor, layout: _Layout, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream, and what a head reads: that, normalized."""
        condition = None if self.time is None else self.time(sigma)
        if self.reinjection:
            x = F.rms_norm(x, x.shape[-1:])
        embedded = x
        for i, block in enumerate(self.blocks):
            x = block(x + embedded if self.reinjection and i == self.reinjection else x, layout, condition)
        if self.modulation is None:
            return x, self.norm(x)
        shift, scale = self.modulation(condition)[:, None].chunk(2, -1)
        return x, self.norm(x) * (1 + scale) + shift


class _Embedding(nn.Module):
    def __init__(self, size: int, width: int, positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size, width)
        self.positions = nn.Parameter(torch.zeros(positions, width)) if positions else None

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.tokens(tokens)
        return x if self.positions is None else x + self.positions[positions]


class _Head(nn.Module):
    def __init__(self, size: int, width: int, tied: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, width)) if tied is None else tied
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(h, self.weight, self.bias)


class _HandOver(nn.Module):
    """What the denoiser reads: made of the tokens, the first stage's residual stream, or what its head reads."""

    def __init__(self, kind: str, size: int, width: int, tied: Any) -> None:
        super().__init__()
        self.kind = kind
        if kind == "Logits":
            self.project = nn.Linear(size, width)
        elif kind == "Hidden":
            self.gate, self.project = nn.Linear(2 * width, width), nn.Linear(width, width, bias=False)
        elif kind == "Probabilities":
            self.table = nn.Parameter(torch.zeros(size, width)) if tied is None else tied
        elif kind != "Continued":
            raise ValueError(f"unknown hand-over {kind!r}")

    def forward(self, embedded: Tensor, residual: Tensor, h: Tensor, head: _Head, mask_id: int) -> Tensor:
        if self.kind == "Logits":
            return self.project(head(h))
        if self.kind == "Hidden":
            tokens = F.rms_norm(embedded, embedded.shape[-1:])
            return tokens + torch.sigmoid(self.gate(torch.cat([tokens, h], -1))) * self.project(h)
        if self.kind == "Probabilities":
            return _without(head(h), mask_id).softmax(-1).to(self.table.dtype) @ self.table
        return residual


def _without(logits: Tensor, token: int) -> Tensor:
    """In float32 at least, and never this token: nothing predicts the mask."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits.index_fill(-1, torch.tensor([token], device=logits.device), -math.inf)


class _Network(nn.Module):
    """Tokens [B, L] -> what the last head reads [B, L, D]."""

    def __init__(self, config: AdlmConfig) -> None:
        super().__init__()
        self.config, stack, network = config, config.stack, config.network
        size, width, layers = config.vocab_size, stack["width"], stack["layers"]
        self.embedding = _Embedding(size, width, network["positions"])
        tied = self.embedding.tokens.weight if network["tied"] else None
        first = _Stack(stack, layers, 0, stack.get("input_reinjection", stack.get("reread", 0)))
        self.two_stages = network["kind"] == "TwoStageConfig"
        if self.two_stages:
            self.anchor, self.anchor_head = first, _Head(size, width, tied)
            self.hand_over = _HandOver(network["hand_over"]["kind"], size, width, tied)
            self.denoiser = _Stack(stack, network["denoiser_layers"], layers, 0)
        else:
            self.stack = first
        self.head = _Head(size, width, tied)

    def forward(self, tokens: Tensor, mask: Tensor | None, t: Tensor | None = None, past: Any = None) -> Tensor:
        """The mask [B, L and those before] has 0 at padding; the times t [B] are for models that are told."""
        before, new = 0 if past is None else past.get_seq_length(), tokens.shape[1]
        if mask is None:
            mask = torch.ones(len(tokens), before + new, device=tokens.device)
        layout = _Layout.of(self.config, new, mask, past)
        if t is None or not self.config.stack["timed"]:
            t = torch.zeros(1, device=tokens.device)
        sigma = -torch.log1p(-(1 - 1e-3) * t)
        embedded = self.embedding(tokens, _positions_of(mask)[:, -new:])
        if not self.two_stages:
            return self.stack(embedded, layout, sigma)[1]
        stage = self.anchor(embedded, layout, sigma)
        handed_over = self.hand_over(embedded, *stage, self.anchor_head, self.config.mask_token_id)
        return self.denoiser(handed_over, layout, sigma)[1]

    def logits(self, h: Tensor) -> Tensor:
        return _without(self.head(h), self.config.mask_token_id)


class AdlmModel(PreTrainedModel):
    """A network behind the interface of transformers. Its weights may be saved with or without the prefix `network.`"""

    config_class = AdlmConfig
    base_model_prefix = "network"

    def __init__(self, config: AdlmConfig) -> None:
        super().__init__(config)
        self.network = self._build(config)
        # The library stores tied weights once and ties them again, if it is told the names.
        first: dict[int, str] = {}
        names = [(name, id(each)) for name, each in self.named_parameters(remove_duplicate=False)]
        self._tied_weights_keys = {name: first[key] for name, key in names if first.setdefault(key, name) != name}
        self.post_init()
        self.generation_config = GenerationConfig(
            max_length=config.packing["length"] + config.causal,  # the mask token that rows begin with is one more
            do_sample=True,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
        )

    def _build(self, config: AdlmConfig) -> Any:
        return _Network(config)

    def get_input_embeddings(self) -> nn.Module:
        return self.network.embedding.tokens


class AdlmForCausalLM(AdlmModel, GenerationMixin):
    """AR and A2R. Logits at position l are of the token after it; rows begin with the mask token."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> Any:
        past = DynamicCache() if use_cache and past_key_values is None else past_key_values
        h = self.network(input_ids, attention_mask, past=past)
        logits: Any = self.network.logits(h[:, -logits_to_keep:] if logits_to_keep else h)
        loss: Any = None if labels is None else F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)


class AdlmForMaskedLM(AdlmModel):
    """MDLM and ADLM. Logits at position l are of the token there."""

    @classmethod
    def can_generate(cls) -> bool:
        return True

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        t: Tensor | None = None,
        **_: Any,
    ) -> Any:
        if t is None and self.config.stack["timed"]:
            visible = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            t = ((input_ids == self.config.mask_token_id) & visible.bool()).sum(-1) / visible.sum(-1)
        logits: Any = self.network.logits(self.network(input_ids, attention_mask, t))
        loss: Any = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        max_denoising_steps: int | None = None,
        do_sample: bool = True,
        temperature: float = 1.0,
        top_p: float | None = None,
        num_return_sequences: int = 1,
        generator: torch.Generator | None = None,
        **unknown: Any,
    ) -> Tensor:
        """Prompts [B, L] and what follows them [B * num_return_sequences, L + new]; after the end token, padding.

        MDLM's ancestral sampler (arXiv 2406.07524): each step reveals every remaining mask with the same probability.
        """
        if unknown.keys() - {"pad_token_id"}:  # which pipelines pass along
            raise TypeError(
                f"generate() got unknown arguments {', '.join(unknown)}; the package adlm has more samplers"
            )
        own, length, device = self.config.sampling, self.config.packing["length"], self.device
        steps, top_p = max_denoising_steps or own.get("steps", 256), top_p or own.get("top_p", 1.0)
        prompts = torch.empty(1, 0, dtype=torch.long) if input_ids is None else input_ids
        shown = torch.ones_like(prompts).bool() if attention_mask is None else attention_mask.bool()
        new, longest = max_new_tokens or (max_length or length) - prompts.shape[1], int(shown.sum(-1).max())
        if new < 1 or longest + new > length:
            raise ValueError(f"{new} new tokens after a prompt of {longest}: rows have {length}")
        found = []
        for prompt, kept in zip(prompts.to(device), shown.to(device), strict=True):
            start, end = int(kept.sum()), int(kept.sum()) + new
            width = length if self.config.full_rows else end
            canvas = torch.full((num_return_sequences, width), self.config.mask_token_id, device=device)
            canvas[:, :start] = prompt[kept]
            for step in range(steps):
                blank = canvas == self.config.mask_token_id
                fresh = blank & (torch.rand(canvas.shape, generator=generator, device=device) < 1 / (steps - step))
                fresh[:, end:] = False
                if fresh.any():
                    p = _nucleus((self(canvas).logits[fresh] / temperature).softmax(-1), top_p)
                    canvas[fresh] = torch.multinomial(p, 1, generator=generator)[:, 0] if do_sample else p.argmax(-1)
            before = prompt.repeat(len(canvas), 1)
            before[:, kept] = canvas[:, :start]  # in which masks are filled now
            found.append(torch.cat([before, canvas[:, start:end]], 1))
        sequences = torch.cat(found)
        ended = (sequences[:, -new:-1] == self.config.eos_token_id).cumsum(-1) > 0
        sequences[:, sequences.shape[1] - new + 1 :][ended] = self.config.pad_token_id
        return sequences


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """Probabilities [N, V] of the likeliest tokens that together have probability `top_p`; 0 for the others."""
    ranked, order = p.sort(-1, descending=True)
    return p.scatter(-1, order, ranked.masked_fill(ranked.cumsum(-1) - ranked >= top_p, 0))
