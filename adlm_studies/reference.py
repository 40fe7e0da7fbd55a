"""Reference implementations: dense PyTorch, written straight from the paper, for studies, benchmarks and tests.

`ReferenceAdlm` has the structure of the published code. Both stages compute logits [B, L, V], the denoiser reads those
of the anchor stage through Linear(V, D), the mask is excluded and visible tokens are carried over on the full tensor,
the norms are modulated in every block even if the time fed to them is 0. It is no straw man: fused attention, one
product for q, k and v, full tensors overwritten where autograd allows it. Its parameters have the names and shapes of a
two-stage model with `condition=128`, so that both run on the same weights.

`ReferenceAnelbo`, `reference_ancestral` and `reference_left_to_right` train and sample any model of the library with
every logit at every position of every row. They use the same random numbers as the library, so results are equal.

Shapes: B batch, L length, V vocabulary with the mask, D width, H heads, C conditioning width.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.errors import ConfigError
from adlm.models.costs import forward_work
from adlm.models.hand_over import Logits
from adlm.models.language_model import LanguageModel
from adlm.models.layers import sigma_at
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.two_stage import as_two_stage
from adlm.objectives.nelbo import Anelbo
from adlm.randomness import Noise
from adlm.samplers.canvas import Canvas
from adlm.samplers.draw import draw
from adlm.samplers.state import Sample
from adlm.types import Batch, LossTerms

_NEVER = -1e6  # log-probability of what cannot be, finite as published


class _TimeEmbedding(nn.Module):
    """sigma [B] -> [B, C]."""

    def __init__(self, condition: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, condition), nn.Linear(condition, condition)

    def forward(self, sigma: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10_000) / 128 * torch.arange(128, device=sigma.device))
        angles = sigma[:, None] * frequencies
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return F.silu(self.second(F.silu(self.first(waves))))


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale) + shift


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, H, L, D/H] turned by cos and sin [L, D/H] of its positions' angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class _Block(nn.Module):
    """A DiT block: attention and MLP, each with shift, scale and gate from the conditioning."""

    def __init__(self, width: int, heads: int, condition: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = _zero(nn.Linear(condition, 6 * width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, condition: Tensor) -> Tensor:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.modulation(condition)[:, None].chunk(6, dim=-1)
        h = self.attention(_modulated(self.norm_1(x), shift_1, scale_1), cos, sin)
        x = x + gate_1 * self.dropout(h)
        h = self.up(_modulated(self.norm_2(x), shift_2, scale_2))
        return x + gate_2 * self.dropout(self.down(F.gelu(h, approximate="tanh")))

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(_rotated(q, cos, sin), _rotated(k, cos, sin), v)
        return self.out(y.transpose(1, 2).flatten(2))


class _Stack(nn.Module):
    """x [B, L, D], sigma [B] -> what the head reads [B, L, D]."""

    def __init__(self, width: int, heads: int, layers: int, condition: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(width, heads, condition, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.time = _TimeEmbedding(condition)
        self.modulation = _zero(nn.Linear(condition, 2 * width))
        inverse = 10_000.0 ** -(torch.arange(0, width // heads, 2) / (width // heads))
        self.inverse_frequency: Tensor
        self.register_buffer("inverse_frequency", inverse, persistent=False)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        condition = self.time(sigma)
        angles = torch.outer(torch.arange(x.shape[1], device=x.device), self.inverse_frequency).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        for block in self.blocks:
            x = block(x, cos, sin, condition)
        shift, scale = self.modulation(condition)[:, None].chunk(2, dim=-1)
        return _modulated(self.norm(x), shift, scale)


class ReferenceAdlm(nn.Module):
    """x_t [B, L] -> raw anchor logits and raw final logits, both [B, L, V].

    Args:
        timed: the blocks are conditioned on sigma = -log alpha_t; otherwise, as published, on 0.
    """

    def __init__(
        self,
        size: int,
        mask_id: int,
        *,
        width: int,
        heads: int,
        anchor_layers: int,
        denoiser_layers: int,
        condition: int = 128,
        dropout: float = 0.0,
        timed: bool = False,
    ) -> None:
        super().__init__()
        self.mask_id, self.time_conditioned = mask_id, timed
        self.embedding = nn.ModuleDict({"tokens": nn.Embedding(size, width)})
        self.anchor = _Stack(width, heads, anchor_layers, condition, dropout)
        self.anchor_head = _zero(nn.Linear(width, size))
        self.hand_over = nn.ModuleDict({"project": nn.Linear(size, width)})
        self.denoiser = _Stack(width, heads, denoiser_layers, condition, dropout)
        self.head = _zero(nn.Linear(width, size))

    def forward(self, x_t: Tensor, t: Tensor | None = None) -> tuple[Tensor, Tensor]:
        sigma = torch.zeros(len(x_t), device=x_t.device)
        if self.time_conditioned and t is not None:
            sigma = -torch.log1p(-(1 - 1e-3) * t)
        anchor_logits = self.anchor_head(self.anchor(self.embedding["tokens"](x_t), sigma))
        logits = self.head(self.denoiser(self.hand_over["project"](anchor_logits), sigma))
        return anchor_logits, logits


def _zero(linear: nn.Linear) -> nn.Linear:
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def log_probabilities(logits: Tensor, x_t: Tensor, mask_id: int) -> Tensor:
    """SUBS: log p(x_0 | x_t) [B, L, V]. The mask is never predicted, a visible token stays. Overwrites `logits`."""
    logits[..., mask_id] = _NEVER
    log_p = logits - logits.logsumexp(-1, keepdim=True)
    visible = x_t != mask_id
    log_p.masked_fill_(visible[..., None], _NEVER)
    log_p[visible, x_t[visible]] = 0
    return log_p


def rare_in_row(x_0: Tensor, most: int = 5) -> Tensor:
    """The tokens that occur at most `most` times in their row, [B, L] bool."""
    rows = []
    for row in x_0:
        _, position, counts = torch.unique(row, return_inverse=True, return_counts=True)
        rows.append(counts[position] <= most)
    return torch.stack(rows)


def reference_loss(model: ReferenceAdlm, x_0: Tensor, x_t: Tensor, t: Tensor, *, gamma: float) -> tuple[Tensor, Tensor]:
    """The sums of the loss and of the bound alone over the batch, with the log-linear schedule's weight 1/t.

    nll = sum_l -log p(x_0^l | x_t) / t;  loss = nll + gamma * sum_{anchors l} -log p_anchor(x_0^l | x_t) / t,
    visible anchors included. Visible tokens have log p = 0.
    """
    anchor, final = model(x_t, t)
    weight = 1 / t[:, None]
    nll = (_nats(log_probabilities(final.float(), x_t, model.mask_id), x_0) * weight).sum()
    if not gamma:
        return nll, nll.detach()
    return nll + gamma * _anchor_nats(anchor, x_0, rare_in_row(x_0) * weight), nll.detach()


def _nats(log_p: Tensor, tokens: Tensor) -> Tensor:
    return -log_p.gather(-1, tokens[..., None])[..., 0]


def _anchor_nats(logits: Tensor, tokens: Tensor, weight: Tensor) -> Tensor:
    nats = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), reduction="none")
    return (nats.view_as(tokens) * weight).sum()


@torch.no_grad()
def reference_probabilities(model: ReferenceAdlm, x_t: Tensor, t: Tensor | None = None) -> Tensor:
    """p(x_0 | x_t) [B, L, V], which the published sampler computes at every step."""
    return log_probabilities(model(x_t, t)[1].float(), x_t, model.mask_id).exp_()


class ReferenceAncestral:
    """Ancestral sampling as published samplers do it, with the log-linear schedule: alpha = 1 - (1 - 1e-3) t.

    p(x_0 | x_t) is kept as long as no row of the batch changes; q(x_s | x_t) is another full tensor. Tokens are drawn
    at every position by exponential noise, in float64 since float32 is biased.
    """

    def __init__(self, model: ReferenceAdlm, generator: torch.Generator) -> None:
        self.model, self.generator = model, generator
        self.memo: Tensor | None = None

    @torch.no_grad()
    def step(self, x_t: Tensor, t: float, s: float) -> Tensor:
        """x_s [B, L] from x_t, for s < t."""
        masked_t, masked_s = (1 - 1e-3) * t, (1 - 1e-3) * s
        if self.memo is None:
            self.memo = reference_probabilities(self.model, x_t)
        q = self.memo.double()
        q *= masked_t - masked_s
        q[:, :, self.model.mask_id] = masked_s
        noise = torch.empty_like(q).exponential_(generator=self.generator)
        x_s = torch.where(x_t == self.model.mask_id, (q / noise).argmax(-1), x_t)
        if not torch.equal(x_s, x_t):
            self.memo = None
        return x_s

    def sample(self, x_t: Tensor, steps: int) -> Tensor:
        """x_0 [B, L] in equal steps from t = 1."""
        for step in range(steps):
            x_t = self.step(x_t, 1 - step / steps, 1 - (step + 1) / steps)
        return x_t


class DenseLogits(NamedTuple):
    """Raw logits [B, L, V] of the last stage, and of the first where there are two."""

    final: Tensor
    anchor: Tensor | None = None


def dense_logits(
    model: LanguageModel, tokens: Tensor, t: Tensor | None = None, segments: Tensor | None = None
) -> DenseLogits:
    """The logits of both heads at every position; if logits are handed over, through W_in as published."""
    if model.stages < 2:
        return DenseLogits(model(tokens, t, segments=segments))
    model = as_two_stage(model, "dense logits")
    stage = model.anchor_stage(tokens, t, segments=segments)
    anchor = model.anchor_head.raw(stage.anchor)
    module: Any = model.hand_over
    by_logits = isinstance(model.config.hand_over, Logits)
    handed = module.project(anchor) if by_logits else module(stage, model.anchor_head)
    return DenseLogits(model.head.raw(model.denoiser(handed, sigma_at(t), segments)[1]), anchor)


@dataclass(frozen=True)
class ReferenceAnelbo(Anelbo):
    """Anelbo from the logits [B, L, V] of both stages: takes all anchors, none of them stale."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fraction != 1 or self.stale:
            subject = "fraction" if self.fraction != 1 else "stale"
            raise ConfigError("the reference bound takes all anchors, none of them stale", subject=subject)

    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        corrupted = self.corruption(batch, model.vocabulary.mask_id, noise)
        dense = dense_logits(model, corrupted.x_t, corrupted.t, batch.segments)
        log_p = log_probabilities(dense.final.float(), corrupted.x_t, model.vocabulary.mask_id)
        clean = (_nats(log_p, batch.tokens) * corrupted.masked * corrupted.weight).sum()
        loss = clean
        if dense.anchor is not None and self.gamma:
            among = corrupted.masked if self.masked_only else batch.scored
            weight = (self.rule.mark(batch) & among) * corrupted.weight
            loss = loss + min(self.gamma, progress) * _anchor_nats(dense.anchor, batch.tokens, weight)
        return LossTerms(loss, clean.detach(), batch.scored.sum())


def reference_step_work(network: NetworkConfig, vocabulary: Vocabulary, *, length: int, rows: int) -> int:
    """Floating-point operations of a training step with `ReferenceAnelbo`, forward and backward."""
    return 3 * rows * length * _dense_token(network, vocabulary, length)


def reference_pass_work(network: Any, vocabulary: Vocabulary, length: int) -> int:
    """Floating-point operations of one row through the network, with all logits that are read."""
    if network.stages == 2:
        unread = 0 if isinstance(network.hand_over, Logits) else forward_work(network, vocabulary, length).logits
        return length * (_dense_token(network, vocabulary, length) - unread)
    work = forward_work(network, vocabulary, length)
    return length * (work.token + work.output + work.logits)


def _dense_token(network: NetworkConfig, vocabulary: Vocabulary, length: int) -> int:
    """A forward pass per token: both heads, and W_in, as large as a head, in place of the D x D map."""
    work = forward_work(network, vocabulary, length)
    token = work.token + work.output + 2 * work.logits
    if isinstance(network.hand_over, Logits):
        token += work.logits - network.hand_over.work(vocabulary.size, network.width)[1]
    return token


@torch.no_grad()
def reference_ancestral(model: LanguageModel, canvas: Canvas, *, steps: int, noise: Noise) -> Sample:
    """`Ancestral(steps=steps)`: at every step a distribution and a draw for every position, of which few are kept."""
    tokens, mask_id = canvas.tokens.clone(), model.vocabulary.mask_id
    rows, length = tokens.shape
    for step in range(steps):
        t, s = 1 - step / steps, 1 - (step + 1) / steps
        times = torch.full((rows,), t, device=tokens.device)
        log_p = log_probabilities(_for_sampling(model, tokens, times), tokens, mask_id)
        bits = noise.fork("token", step).bits(canvas.sample_ids, length)
        drawn = draw(log_p.flatten(0, 1), bits.flatten()).view_as(tokens)
        reveal = noise.fork("reveal", step).uniform(canvas.sample_ids, length) < ((t - s) / t if s else 1.0)
        tokens = torch.where((tokens == mask_id) & ~canvas.frozen & reveal, drawn, tokens)
    calls = steps * rows
    return Sample(tokens, calls, calls if model.stages == 2 else 0)


def _for_sampling(model: LanguageModel, tokens: Tensor, times: Tensor) -> Tensor:
    """The final logits; those of the first stage are not read unless they are handed over."""
    if isinstance(model.config.hand_over, Logits):
        return dense_logits(model, tokens, times).final.float()
    return model(tokens, times)


@torch.no_grad()
def reference_left_to_right(model: LanguageModel, canvas: Canvas, *, noise: Noise) -> Sample:
    """`LeftToRight()` of a blank canvas without a cache: whole rows and all their logits for every token."""
    tokens = canvas.tokens.clone()
    rows, length = tokens.shape
    bits = noise.fork("token").bits(canvas.sample_ids, length)
    for place in range(length):
        logits = model(tokens, torch.zeros(rows, device=tokens.device))
        tokens[:, place] = draw(logits[:, place], bits[:, place])
    return Sample(tokens, rows * length, rows * length if model.stages == 2 else 0)
