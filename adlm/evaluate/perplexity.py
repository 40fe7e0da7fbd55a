"""The negative log-likelihood of held-out rows: exact for left-to-right models, a clean bound for masked ones."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adlm.data.loader import read_rows
from adlm.data.shards import Shards
from adlm.diffusion.corruption import CountMasking
from adlm.models.language_model import LanguageModel
from adlm.objectives.objective import negative_log_likelihood
from adlm.randomness import Noise
from adlm.types import Batch, Estimate


class Perplexity(NamedTuple):
    """Nats a row and a token of text. `draws` is 0 where the value is exact for each row."""

    nats_a_row: Estimate
    nats_a_token: Estimate

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_a_token.mean)

    @property
    def error(self) -> float:
        """Standard error of the perplexity, by the delta method."""
        return self.perplexity * self.nats_a_token.error


@torch.no_grad()
def row_nats(model: LanguageModel, batch: Batch, *, draws: int, noise: Noise) -> Tensor:
    """-log p [B] of each row, or the estimate of its bound from `draws` mask counts stratified over 1..n."""
    if model.causal:
        return _weighted(model, batch, batch.tokens, batch.scored, torch.ones(len(batch.tokens)))
    parts: list[Tensor] = []
    offset = noise.fork("offset").uniform(batch.draw, 1)[:, 0]
    for i in range(draws):
        level = (offset + i) / draws
        _, x_t, _, masked, weight = CountMasking().at(level, batch, model.vocabulary.mask_id, noise.fork(i))
        parts.append(_weighted(model, batch, x_t, masked, weight))
    return torch.stack(parts).mean(0)


def _weighted(model: LanguageModel, batch: Batch, x_t: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
    hidden = model.features(x_t).final[chosen]
    nll = negative_log_likelihood(model.logits, hidden, batch.tokens[chosen], model.vocabulary.size)
    table = nll.new_zeros(chosen.shape).masked_scatter(chosen, nll)
    return table.sum(-1) * weight.to(table)


def perplexity(
    model: LanguageModel,
    shards: Shards,
    *,
    rows: int | None = None,
    draws: int = 8,
    batch: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
    watch: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Score the first `rows` rows. The error is over rows, so it holds the draw of the masks and of the text."""
    model.eval()
    count = min(rows or len(shards), len(shards))
    noise = Noise(seed).fork("perplexity")
    parts: list[Tensor] = []
    texts = 0
    for start in range(0, count, batch):
        piece = read_rows(shards, np.arange(start, min(start + batch, count)), first_draw=start).to(device)
        parts.append(row_nats(model, piece, draws=draws, noise=noise).double().cpu())
        texts += int(shards.lengths(piece.index.cpu().numpy()).sum())
        if watch is not None:
            watch(start + len(piece.tokens), count)
    nats = torch.cat(parts)
    error = nats.std().item() / math.sqrt(len(nats)) if len(nats) > 1 else math.inf
    drawn = 0 if model.causal else draws
    tokens_a_row = texts / len(nats)
    mean = nats.mean().item()
    return Perplexity(Estimate(mean, error, drawn), Estimate(mean / tokens_a_row, error / tokens_a_row, drawn))
