"""The negative log-likelihood of held-out rows: exact for left-to-right models, a clean bound for masked ones."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adlm.data.loader import read_rows
from adlm.data.table import Table
from adlm.diffusion.corruption import CountMasking, UniformMasking
from adlm.diffusion.schedule import LogLinear
from adlm.distributed import DistributedContext
from adlm.errors import ConfigError, ModelError, UnknownName
from adlm.evaluate.bound import clean_objective, mean_of, position_nats
from adlm.evaluate.documents import TextRows
from adlm.evaluate.result import Figure
from adlm.evaluate.work import Watch, each_of
from adlm.models.language_model import LanguageModel
from adlm.objectives.d3pm import D3pm
from adlm.objectives.nelbo import Nelbo
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.objectives.score_entropy import ScoreEntropy
from adlm.randomness import Noise
from adlm.types import Estimate

# Of the masked diffusion bound, unbiased (importance: but for times below 1e-4). The first has the least variance.
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
}


class Perplexity(NamedTuple):
    """Nats a row, and a token of the text that was scored: neither padding nor what was given counts as one.

    `draws` is 0 where the value is exact for each row.
    """

    nats_per_row: Estimate
    nats_per_token: Estimate

    @property
    def perplexity(self) -> float:
        return _exp(self.nats_per_token.mean)

    @property
    def error(self) -> float:
        """Standard error of the perplexity, by the delta method."""
        return self.perplexity * self.nats_per_token.error


def perplexity(
    model: LanguageModel,
    table: Table,
    *,
    rows: int | None = None,
    draws: int = 8,
    objective: Objective | None = None,
    batch: int = 64,
    seed: int = 0,
    world: DistributedContext | None = None,
    through: Callable[[Callable[[LanguageModel], Tensor]], Tensor] | None = None,
    watch: Watch | None = None,
) -> Perplexity:
    """Score the first `rows` rows. The error is over rows, so it holds the draw of the masks and of the text.

    Args:
        objective: the bound, and how it is estimated; by default the exact likelihood, or the masked diffusion
            bound from stratified mask counts.
        draws: noise levels per row.
        batch: rows that a process scores at a time.
        world: the processes that share the work, where there are several, and the device.
        through: how to call a function with the model, where that takes more than calling it.
    """
    objective = objective or clean_objective(model)
    world = world or DistributedContext(device=next(model.parameters(), torch.zeros(0)).device)
    count = min(rows or len(table), len(table))
    score = _scorer(model, table, objective, draws, seed, world.device, through)
    each = each_of(count, score, width=1, batch=batch, world=world, watch=watch)[:, 0]
    row = mean_of(torch.from_numpy(each), _draws(objective, draws))
    tokens = int(table.scored_lengths(np.arange(count)).sum()) / count
    return Perplexity(row, Estimate(row.mean / tokens, row.error / tokens, row.draws))


@dataclass(frozen=True, eq=False)
class ScoredItems:
    """What each item (document or row) costs, and the tokens, characters and bytes of text that it holds: [items].

    `draws` is 0 where nats are exact.
    """

    nats: NDArray[np.float64]
    tokens: NDArray[np.float64]
    characters: NDArray[np.float64]
    bytes: NDArray[np.float64]
    draws: int

    def figures(self) -> dict[str, Figure]:
        """Totals over totals, with standard errors over items: they hold the draw of the masks and of the text."""
        kind = "bound" if self.draws else "exact"
        nats = ratio(self.nats, self.tokens)
        found = {
            "perplexity": (_exp(nats[0]), _exp(nats[0]) * nats[1], ""),
            "nats_per_token": (*nats, "nats"),
            "bits_a_byte": (*ratio(self.nats / math.log(2), self.bytes), "bits"),
            "bits_a_character": (*ratio(self.nats / math.log(2), self.characters), "bits"),
        }
        return {
            name: Figure(value, error if math.isfinite(error) else None, kind, unit, self.draws)
            for name, (value, error, unit) in found.items()
        }

    def items(self) -> dict[str, list[float]]:
        names = ("nats", "tokens", "characters", "bytes")
        return {name: getattr(self, name).tolist() for name in names}


def score_items(
    model: LanguageModel,
    table: TextRows,
    objective: Objective,
    *,
    draws: int = 8,
    batch: int = 32,
    seed: int = 0,
    world: DistributedContext | None = None,
    partial: Path | None = None,
    made_of: Mapping[str, Any] | None = None,
    watch: Watch | None = None,
) -> ScoredItems:
    """What every item of the text costs; the same on any number of processes.

    Args:
        batch: rows that a process scores at a time.
        partial, made_of: as in `each_of`: an interrupted measurement goes on.
    """
    model.eval()
    world = world or DistributedContext(device=next(model.parameters(), torch.zeros(0)).device)
    score = _scorer(model, table, objective, draws, seed, world.device)

    def checked(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        nats = score(numbers)
        if wrong := np.isnan(nats[:, 0]).sum():
            raise ModelError(
                f"asked to score rows {numbers[0]} to {numbers[-1]} of {table.name}",
                f"{wrong} of them cost nan: the model's logits are not numbers",
                "check its weights, or train it again from a checkpoint before it went astray",
            )
        return nats

    nats = each_of(
        len(table), checked, width=1, batch=batch, world=world, partial=partial, made_of=made_of, watch=watch
    )[:, 0]
    lengths = table.scored_lengths(np.arange(len(table)))
    nats, *sizes = (table.by_item(values) for values in (nats, lengths, table.characters, table.bytes))
    return ScoredItems(nats, sizes[0], sizes[1], sizes[2], _draws(objective, draws))


def estimator(name: str, model: LanguageModel) -> Objective:
    """An estimator by its name, if it is one for the model."""
    if name not in ESTIMATORS:
        raise UnknownName("estimator", name, [*ESTIMATORS, "all"])
    objective = ESTIMATORS[name]
    if isinstance(objective, CrossEntropy) != model.causal:
        fix = "leave it out" if model.causal else f"take one of {', '.join(list(ESTIMATORS)[1:])}"
        kind = "left to right: its likelihood is exact" if model.causal else "both ways: it has a bound"
        raise ConfigError(f"asked for the estimator {name!r}", f"the model reads {kind}", fix)
    return objective


def ratio(values: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float]:
    """sum(values) / sum(sizes) and its standard error over items, infinite for a single one.

    By the delta method: the spread of values - ratio * sizes. Items that are longer than others cost more, which says
    nothing against the figure.
    """
    total, n = float(sizes.sum()), len(values)
    value = float(values.sum()) / total
    if n < 2 or not math.isfinite(value):
        return value, math.inf
    spread = values - value * sizes
    return value, math.sqrt(n / (n - 1) * float((spread**2).sum())) / total


def _scorer(
    model: LanguageModel,
    table: Table,
    objective: Objective,
    draws: int,
    seed: int,
    device: torch.device,
    through: Callable[[Callable[[LanguageModel], Tensor]], Tensor] | None = None,
) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    """From consecutive row numbers [n] to what the rows cost, [n, 1]."""
    model.eval()
    call = through or (lambda function: function(model))
    noise = Noise(seed).fork("perplexity")

    def score(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        piece = read_rows(table, numbers, first_sample_id=int(numbers[0])).to(device)
        with torch.no_grad():
            nats = call(lambda model: position_nats(model, piece, draws=draws, noise=noise, objective=objective))
        return nats.cpu().double().sum(-1, keepdim=True).numpy()

    return score


def _draws(objective: Objective, draws: int) -> int:
    return 0 if isinstance(objective, CrossEntropy) else draws


def _exp(nats: float) -> float:
    try:
        return math.exp(nats)
    except OverflowError:  # of a model that has gone astray
        return math.inf
