"""The negative log-likelihood of held-out rows: exact for left-to-right models, a clean bound for masked ones."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adlm.data.loader import read_rows
from adlm.data.table import Table
from adlm.evaluate.bound import clean_objective, mean_of, position_nats
from adlm.models.language_model import LanguageModel
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.randomness import Noise
from adlm.types import Estimate
from adlm.world import World


class Perplexity(NamedTuple):
    """Nats a row, and a token of the text that was scored: neither padding nor what was given counts as one.

    `draws` is 0 where the value is exact for each row.
    """

    nats_a_row: Estimate
    nats_a_token: Estimate

    @property
    def perplexity(self) -> float:
        try:
            return math.exp(self.nats_a_token.mean)
        except OverflowError:  # of a model that has gone astray
            return math.inf

    @property
    def error(self) -> float:
        """Standard error of the perplexity, by the delta method."""
        return self.perplexity * self.nats_a_token.error


def perplexity(
    model: LanguageModel,
    table: Table,
    *,
    rows: int | None = None,
    draws: int = 8,
    objective: Objective | None = None,
    batch: int = 64,
    seed: int = 0,
    world: World | None = None,
    through: Callable[[Callable[[LanguageModel], Tensor]], Tensor] | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Score the first `rows` rows. The error is over rows, so it holds the draw of the masks and of the text.

    Args:
        objective: the bound, and how it is estimated; by default the exact likelihood, or the masked diffusion
            bound from stratified mask counts.
        draws: noise levels a row.
        batch: rows that a process scores at a time.
        world: the processes that share the work, where there are several, and the device.
        through: how to call a function with the model, where that takes more than calling it.
    """
    model.eval()
    objective = objective or clean_objective(model)
    world = world or World(device=next(model.parameters(), torch.zeros(0)).device)
    call = through or (lambda function: function(model))
    count = min(rows or len(table), len(table))
    noise = Noise(seed).fork("perplexity")
    blocks = -(-count // batch)
    rounds = -(-blocks // world.size)
    costs = torch.zeros(rounds, batch, dtype=torch.float64)
    for i in range(rounds):
        # Where blocks run out, a process scores the first again, since processes that share weights go together.
        mine = i * world.size + world.rank
        start = mine * batch if mine < blocks else 0
        numbers = np.arange(start, min(start + batch, count))
        piece = read_rows(table, numbers, first_draw=start).to(world.device)
        with torch.no_grad():
            nats = call(lambda model: position_nats(model, piece, draws=draws, noise=noise, objective=objective))  # noqa: B023
        costs[i, : len(numbers)] = nats.cpu().double().sum(-1)
        if watch is not None:
            watch(min((i + 1) * world.size * batch, count), count)
    each = world.gathered(costs).transpose(0, 1).flatten()[:count]
    row = mean_of(each, 0 if isinstance(objective, CrossEntropy) else draws)
    tokens = int(table.scored_lengths(np.arange(count)).sum()) / count
    return Perplexity(row, Estimate(row.mean / tokens, row.error / tokens, row.draws))
