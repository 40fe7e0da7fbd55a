"""The negative log-likelihood of rows: exact for left-to-right models, a clean bound for masked ones."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.data.loader import read_rows
from adlm.data.table import Table
from adlm.diffusion.corruption import CountMasking, UniformMasking
from adlm.diffusion.schedule import LogLinear
from adlm.distributed import DistributedContext
from adlm.errors import ConfigError, UnknownName
from adlm.models.language_model import LanguageModel
from adlm.objectives.bound import clean_objective, mean_of, position_nats
from adlm.objectives.d3pm import D3pm
from adlm.objectives.nelbo import Nelbo
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.objectives.order_likelihood import ORDERS, OrderLikelihood
from adlm.objectives.score_entropy import ScoreEntropy
from adlm.randomness import Noise
from adlm.resumable import each_of
from adlm.types import Estimate

# Estimators of the masked diffusion bound. All are unbiased (importance: except for times below 1e-4); the first has
# the least variance.
AGREEING: dict[str, Objective] = {
    "counts": Nelbo(CountMasking()),
    "times": Nelbo(UniformMasking(LogLinear(eps=0.0), first=0.0)),
    "importance": Nelbo(UniformMasking(LogLinear(eps=0.0), first=1e-4, importance=True)),
}
ESTIMATORS: dict[str, Objective] = {
    "exact": CrossEntropy(),
    **AGREEING,
    "published": Nelbo(UniformMasking()),
    "score-entropy": ScoreEntropy(CountMasking()),
    "d3pm": D3pm(UniformMasking(steps=1000)),
    **{f"order:{name}": OrderLikelihood(order=name) for name in ORDERS},
}
RowScorer = Callable[[NDArray[np.int64]], NDArray[np.float64]]  # consecutive row numbers [n] -> nats [n, 1]


class Perplexity(NamedTuple):
    """Nats per row and per scored token of the text (neither padding nor context). `draws` is 0 if they are exact."""

    nats_per_row: Estimate
    nats_per_token: Estimate

    @property
    def perplexity(self) -> float:
        return exp(self.nats_per_token.mean)

    @property
    def error(self) -> float:
        """Standard error of the perplexity, by the delta method."""
        return self.perplexity * self.nats_per_token.error


def table_perplexity(
    model: LanguageModel,
    table: Table,
    *,
    num_rows: int | None = None,
    draws: int = 8,
    objective: Objective | None = None,
    batch: int = 64,
    seed: int = 0,
    context: DistributedContext | None = None,
) -> Perplexity:
    """The perplexity of the first `num_rows` rows of a table. Its error is over rows: it covers masks and text.

    Args:
        draws: noise levels per row.
        objective: the bound and how it is estimated; by default the exact likelihood, or the masked diffusion bound
            from stratified mask counts.
        batch: rows that a process scores at a time.
        context: the processes that share the work, and the device.
    """
    objective = objective or clean_objective(model)
    context = context or DistributedContext(device=next(model.parameters(), torch.zeros(0)).device)
    count = min(num_rows or len(table), len(table))
    score = row_scorer(model, table, objective, draws, seed, context.device)
    each = each_of(count, score, width=1, batch=batch, context=context)[:, 0]
    row = mean_of(torch.from_numpy(each), draws_of(objective, draws))
    tokens = int(table.scored_lengths(np.arange(count)).sum()) / count
    return Perplexity(row, Estimate(row.mean / tokens, row.error / tokens, row.draws))


def row_scorer(
    model: LanguageModel,
    table: Table,
    objective: Objective,
    draws: int,
    seed: int,
    device: torch.device,
) -> RowScorer:
    """A function from consecutive row numbers [n] to the nats of these rows [n, 1]."""
    model.eval()
    noise = Noise(seed).fork("perplexity")

    def score(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        piece = read_rows(table, numbers, first_sample_id=int(numbers[0])).to(device)
        with torch.no_grad():
            nats = position_nats(model, piece, draws=draws, noise=noise, objective=objective)
        return nats.cpu().double().sum(-1, keepdim=True).numpy()

    return score


def estimator(name: str, model: LanguageModel) -> Objective:
    """An estimator by its name, if it suits the model."""
    if name not in ESTIMATORS:
        raise UnknownName("estimator", name, [*ESTIMATORS, "all"])
    objective = ESTIMATORS[name]
    if model.attention == "block":
        clean = clean_objective(model)
        if isinstance(objective, OrderLikelihood) and isinstance(clean, Nelbo):
            return replace(objective, corruption=clean.corruption)
        if name != "counts":
            raise ConfigError(
                f"the estimator {name!r} does not suit a model that reads blocks",
                fix="use counts or an order, or leave it out",
                subject="estimator",
            )
        return clean
    if isinstance(objective, CrossEntropy) != model.causal:
        fix = "leave it out" if model.causal else f"use one of {', '.join(list(ESTIMATORS)[1:])}"
        kind = "left to right: its likelihood is exact" if model.causal else "both ways: it has a bound"
        raise ConfigError(
            f"the estimator {name!r} does not suit the model, which reads {kind}; {fix}", subject="estimator"
        )
    return objective


def draws_of(objective: Objective, draws: int) -> int:
    """The draws of an estimate, 0 if the objective is exact."""
    return 0 if objective.exact else draws


def exp(nats: float) -> float:
    """exp(nats), infinite where that is too large for a float (a model that has diverged)."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf
