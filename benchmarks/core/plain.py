"""The peer of the speed and memory benchmarks: ADLM written plainly, as one would from the paper.

It has the structure of the published code in ordinary dense PyTorch. Both stages make logits [B, L, V], the
denoiser reads the anchor stage's through Linear(V, D), the mask is excluded and visible tokens are carried over
on the full tensor, the norms are modulated in every block though the time fed to them is 0, and anchors are
counted a row at a time. It is plain and not a straw man: fused attention, one product for q, k and v, full
tensors overwritten where autograd allows it, no logits kept that nothing reads again.

Parameters carry the names and shapes of `TwoStage` with `condition=128`, so that both run on the same weights;
tests/benchmarks/test_plain.py holds it to the official figures.

Shapes: B batch, L length, V vocabulary with the mask, D width, H heads, C conditioning width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NEVER = -1e6  # log-probability of what cannot be, finite as published


class TimeEmbedding(nn.Module):
    """sigma [B] -> [B, C]."""

    def __init__(self, condition: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, condition), nn.Linear(condition, condition)

    def forward(self, sigma: Tensor) -> Tensor:
        frequencies = torch.exp(-math.log(10_000) / 128 * torch.arange(128, device=sigma.device))
        angles = sigma[:, None] * frequencies
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
        return F.silu(self.second(F.silu(self.first(waves))))


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale) + shift


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, H, L, D/H] turned by cos and sin [L, D/H] of its positions' angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Block(nn.Module):
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
        h = self.attention(modulated(self.norm_1(x), shift_1, scale_1), cos, sin)
        x = x + gate_1 * self.dropout(h)
        h = self.up(modulated(self.norm_2(x), shift_2, scale_2))
        return x + gate_2 * self.dropout(self.down(F.gelu(h, approximate="tanh")))

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v)
        return self.out(y.transpose(1, 2).flatten(2))


class Stack(nn.Module):
    """x [B, L, D], sigma [B] -> what the head reads [B, L, D]."""

    def __init__(self, width: int, heads: int, layers: int, condition: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, condition, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.time = TimeEmbedding(condition)
        self.modulation = _zero(nn.Linear(condition, 2 * width))
        inverse = 10_000.0 ** -(torch.arange(0, width // heads, 2) / (width // heads))
        self.register_buffer("inverse_frequency", inverse, persistent=False)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        condition = self.time(sigma)
        angles = torch.outer(torch.arange(x.shape[1], device=x.device), self.inverse_frequency).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        for block in self.blocks:
            x = block(x, cos, sin, condition)
        shift, scale = self.modulation(condition)[:, None].chunk(2, dim=-1)
        return modulated(self.norm(x), shift, scale)


class PlainAdlm(nn.Module):
    """x_t [B, L] -> raw anchor logits and raw final logits, both [B, L, V].

    Args:
        timed: the blocks are told sigma = -log alpha_t; otherwise, as published, 0.
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
        self.mask_id, self.timed = mask_id, timed
        self.embedding = nn.ModuleDict({"tokens": nn.Embedding(size, width)})
        self.anchor = Stack(width, heads, anchor_layers, condition, dropout)
        self.anchor_head = _zero(nn.Linear(width, size))
        self.hand_over = nn.ModuleDict({"project": nn.Linear(size, width)})
        self.denoiser = Stack(width, heads, denoiser_layers, condition, dropout)
        self.head = _zero(nn.Linear(width, size))

    def forward(self, x_t: Tensor, t: Tensor | None = None) -> tuple[Tensor, Tensor]:
        sigma = torch.zeros(len(x_t), device=x_t.device)
        if self.timed:
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
    logits[:, :, mask_id] = NEVER
    log_p = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
    visible = x_t != mask_id
    log_p.masked_fill_(visible[..., None], NEVER)
    log_p[visible, x_t[visible]] = 0
    return log_p


def anchor_mask(x_0: Tensor, most: int = 5) -> Tensor:
    """[B, L]: the token occurs at most `most` times in its own row."""
    rows = []
    for row in x_0:
        _, position, counts = torch.unique(row, return_inverse=True, return_counts=True)
        rows.append(counts[position] <= most)
    return torch.stack(rows)


def plain_loss(model: PlainAdlm, x_0: Tensor, x_t: Tensor, t: Tensor, *, gamma: float) -> tuple[Tensor, Tensor]:
    """The sums of loss and of the bound alone over the batch, with the log-linear schedule's weight 1/t.

    nll = sum_l -log p(x_0^l | x_t) / t;  loss = nll + gamma * sum_{anchors l} -log p_anchor(x_0^l | x_t) / t,
    visible anchors too. Visible tokens have log p = 0.
    """
    anchor_logits, logits = model(x_t, t)
    log_p = log_probabilities(logits.float(), x_t, model.mask_id)
    weight = 1 / t[:, None]
    nll = (-log_p.gather(-1, x_0[..., None])[..., 0] * weight).sum()
    if not gamma:
        return nll, nll.detach()
    anchor = F.cross_entropy(anchor_logits.float().flatten(0, 1), x_0.flatten(), reduction="none").view_as(x_0)
    return nll + gamma * (anchor * anchor_mask(x_0) * weight).sum(), nll.detach()


@torch.no_grad()
def plain_sampling_forward(model: PlainAdlm, x_t: Tensor, t: Tensor | None = None) -> Tensor:
    """p(x_0 | x_t) [B, L, V], which the published sampler makes anew at every step."""
    return log_probabilities(model(x_t, t)[1].float(), x_t, model.mask_id).exp_()
