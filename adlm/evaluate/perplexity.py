"""The negative log-likelihood of held-out rows: exact for left-to-right models, a clean bound for masked ones."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adlm.data.loader import read_rows
from adlm.data.shards import Shards
from adlm.evaluate.bound import clean_objective, mean_of, position_nats
from adlm.models.language_model import LanguageModel
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.randomness import Noise
from adlm.types import Estimate


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


def perplexity(
    model: LanguageModel,
    shards: Shards,
    *,
    rows: int | None = None,
    draws: int = 8,
    objective: Objective | None = None,
    batch: int = 64,
    seed: int = 0,
    device: torch.device | str = "cpu",
    watch: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Score the first `rows` rows. The error is over rows, so it holds the draw of the masks and of the text.

    Args:
        objective: the bound, and how it is estimated; by default the exact likelihood, or the masked diffusion
            bound from stratified mask counts.
        draws: noise levels a row.
    """
    model.eval()
    objective = objective or clean_objective(model)
    count = min(rows or len(shards), len(shards))
    noise = Noise(seed).fork("perplexity")
    parts: list[Tensor] = []
    texts = 0
    for start in range(0, count, batch):
        piece = read_rows(shards, np.arange(start, min(start + batch, count)), first_draw=start).to(device)
        costs = position_nats(model, piece, draws=draws, noise=noise, objective=objective)
        parts.append(costs.double().sum(-1).cpu())
        texts += int(shards.lengths(piece.index.cpu().numpy()).sum())
        if watch is not None:
            watch(start + len(piece.tokens), count)
    row = mean_of(torch.cat(parts), 0 if isinstance(objective, CrossEntropy) else draws)
    tokens = texts / count
    return Perplexity(row, Estimate(row.mean / tokens, row.error / tokens, row.draws))
