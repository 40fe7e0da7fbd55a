"""Training and sampling as one would write them down first: every logit at every position of every row, every time.

On the same weights and random numbers as the shipped way, so that what is saved can be seen to change nothing.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from adlm.errors import ConfigError
from adlm.models.costs import forward_work
from adlm.models.hand_over import Logits
from adlm.models.language_model import LanguageModel, sigma_at
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.two_stage import as_two_stage
from adlm.objectives.nelbo import Anelbo
from adlm.randomness import Noise
from adlm.samplers.canvas import Canvas
from adlm.samplers.draw import draw
from adlm.samplers.state import Sample
from adlm.types import Batch, LossTerms

_NEVER = -1e6  # log-probability of what cannot be, finite as published


class Dense(NamedTuple):
    """Raw logits [B, L, V] of the last stage, and of the first where there are two."""

    final: Tensor
    anchor: Tensor | None = None


def dense_logits(
    model: LanguageModel, tokens: Tensor, t: Tensor | None = None, segments: Tensor | None = None
) -> Dense:
    """Both heads at every position; where logits are handed over, through W_in as published."""
    if model.stages < 2:
        return Dense(model(tokens, t, segments=segments))
    model = as_two_stage(model, "dense logits")
    stage = model.anchor_stage(tokens, t, segments=segments)
    anchor = model.anchor_head.raw(stage.anchor)
    module: Any = model.hand_over
    by_logits = isinstance(model.config.hand_over, Logits)
    handed = module.project(anchor) if by_logits else module(stage, model.anchor_head)
    return Dense(model.head.raw(model.denoiser(handed, sigma_at(t), segments)[1]), anchor)


def log_probabilities(logits: Tensor, tokens: Tensor, mask_id: int) -> Tensor:
    """log p(x_0 | x_t) [B, L, V]: the mask is never predicted, a visible token stays. Overwrites `logits`."""
    logits[..., mask_id] = _NEVER
    log_p = logits - logits.logsumexp(-1, keepdim=True)
    visible = tokens != mask_id
    log_p.masked_fill_(visible[..., None], _NEVER)
    log_p[visible, tokens[visible]] = 0
    return log_p


@dataclass(frozen=True)
class ReferenceAnelbo(Anelbo):
    """Anelbo from tables [B, L, V] of both stages. Takes all anchors, and fresh ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fraction != 1 or self.stale:
            found = f"fraction={self.fraction}, stale={self.stale}"
            raise ConfigError("asked for the naive anchored bound", found, "leave both at their defaults")

    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        corrupted = self.corruption(batch, model.vocabulary.mask_id, noise)
        dense = dense_logits(model, corrupted.x_t, corrupted.t, batch.segments)
        log_p = log_probabilities(dense.final.float(), corrupted.x_t, model.vocabulary.mask_id)
        nats = -log_p.gather(-1, batch.tokens[..., None])[..., 0]
        clean = (nats * corrupted.masked * corrupted.weight).sum()
        loss = clean
        if dense.anchor is not None and self.gamma:
            among = corrupted.masked if self.masked_only else batch.scored
            wrong = F.cross_entropy(dense.anchor.float().flatten(0, 1), batch.tokens.flatten(), reduction="none")
            marks = self.rule.mark(batch) & among
            loss = loss + min(self.gamma, progress) * (wrong.view_as(nats) * marks * corrupted.weight).sum()
        return LossTerms(loss, clean.detach(), batch.scored.sum())


def naive_step_work(network: NetworkConfig, vocabulary: Vocabulary, *, length: int, rows: int) -> int:
    """Floating-point operations of a training step with `ReferenceAnelbo`, forward and backward."""
    return 3 * rows * length * _dense_token(network, vocabulary, length)


def naive_pass_work(network: NetworkConfig, vocabulary: Vocabulary, length: int) -> int:
    """Of one row through the network, with every logit of the last stage; and of the first where they are read."""
    if network.stages == 2:
        unread = 0 if isinstance(network.hand_over, Logits) else forward_work(network, vocabulary, length).logits
        return length * (_dense_token(network, vocabulary, length) - unread)
    work = forward_work(network, vocabulary, length)
    return length * (work.token + work.output + work.logits)


def _dense_token(network: NetworkConfig, vocabulary: Vocabulary, length: int) -> int:
    """A forward pass, for each token: both heads, and W_in, as large as a head, in place of the D x D map."""
    work = forward_work(network, vocabulary, length)
    token = work.token + work.output + 2 * work.logits
    if isinstance(network.hand_over, Logits):
        token += work.logits - network.hand_over.work(vocabulary.size, network.width)[1]
    return token


@torch.no_grad()
def naive_ancestral(model: LanguageModel, canvas: Canvas, *, steps: int, noise: Noise) -> Sample:
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
    """Final logits alone: nobody reads the first stage's, unless they are what is handed over."""
    if isinstance(model.config.hand_over, Logits):
        return dense_logits(model, tokens, times).final.float()
    return model(tokens, times)


@torch.no_grad()
def naive_left_to_right(model: LanguageModel, canvas: Canvas, *, noise: Noise) -> Sample:
    """`LeftToRight()` of a blank canvas without a cache: whole rows and all their logits for every token."""
    tokens = canvas.tokens.clone()
    rows, length = tokens.shape
    bits = noise.fork("token").bits(canvas.sample_ids, length)
    for position in range(length):
        logits = model(tokens, torch.zeros(rows, device=tokens.device))
        tokens[:, position] = draw(logits[:, position], bits[:, position])
    return Sample(tokens, rows * length, rows * length if model.stages == 2 else 0)
