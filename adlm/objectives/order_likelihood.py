"""The exact likelihood of a masked model that reveals one token per pass in an order of its own (DUEL, 2603.01367).

If the next position depends only on what is revealed so far, p(x) is the product of the probabilities at which the
tokens are revealed. That is the distribution of the sampler with this order, one token per step and no filters. The
bound is the mean of -log p over random orders, most of which are worse.

Shapes: B batch, L length, D width, N masked positions, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from adlm.diffusion.corruption import Corruption, CountMasking
from adlm.errors import ConfigError, UnknownName
from adlm.models.language_model import LanguageModel
from adlm.objectives.linear_cross_entropy import SLICE_LOGITS, Nats
from adlm.objectives.objective import LossContext, LossInputs, MaskedObjective
from adlm.randomness import Noise
from adlm.samplers.network import anchor_predictions
from adlm.samplers.ordered import best_first
from adlm.samplers.orders import certainty, entropy, margin
from adlm.types import Batch, Corrupted, Features

# Scores [n] of masked positions, from logits [n, V] and features [n, D] of the anchor stage. The highest comes next.
ORDERS: dict[str, Callable[[LanguageModel, Tensor, Tensor | None], Tensor]] = {
    "left-to-right": lambda model, logits, anchor: logits.new_zeros(len(logits)),  # of equal ones, the first is taken
    "entropy": lambda model, logits, anchor: -entropy(logits),
    "margin": lambda model, logits, anchor: margin(logits.softmax(-1)),
    "anchors": lambda model, logits, anchor: certainty(anchor_predictions(model, cast("Tensor", anchor))),
}


@dataclass(frozen=True)
class OrderLikelihood(MaskedObjective):
    """-log p(x) of one token per pass in an order; blocks of all rows are revealed side by side, each in its order.

    A row of n tokens takes n passes, one in blocks of b takes b. It is for evaluation only.

    Args:
        order: a name in `ORDERS`: the first position, where the model's distribution has the lowest entropy or the
            largest margin between the two likeliest tokens, or where the anchor stage is most certain.
    """

    order: str = "entropy"
    corruption: Corruption = field(default_factory=CountMasking)

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UnknownName("order", self.order, ORDERS)

    @property
    def exact(self) -> bool:
        return True

    def check(self, model: LanguageModel) -> None:
        super().check(model)
        if self.order == "anchors":
            model.check_two_stages("the order of the anchor stage")
        if model.time_conditioned:
            raise ConfigError("a time-conditioned model has no likelihood under an order", subject="estimator")

    def corrupt(self, batch: Batch, mask_id: int, noise: Noise, progress: float = 1.0) -> Corrupted:
        return self.corruption.everything(batch, mask_id)

    @torch.no_grad()
    def nats(self, model: LanguageModel, batch: Batch, level: Tensor, noise: Noise) -> Tensor:
        """-log p of every token when it was revealed, [B, L]; level and noise play no part."""
        self.check(model)
        corrupted = self.corruption.everything(batch, model.vocabulary.mask_id)
        rows, length = batch.tokens.shape
        size = corrupted.block_size or length
        costs = torch.zeros(rows, length, device=batch.tokens.device)
        while bool((masked := corrupted.masked).any()):
            inputs = LossInputs(model, batch, corrupted, 1.0, noise)
            cost, score = self._measured(model, self.read(inputs), inputs)
            scores = torch.full_like(costs, -torch.inf).masked_scatter(masked, score)
            in_blocks = _blocks(scores, size, -torch.inf)
            first = best_first(in_blocks)[:, :1]
            fresh = torch.zeros_like(in_blocks, dtype=torch.bool).scatter_(1, first, True)
            fresh = fresh.view(rows, -1)[:, :length] & masked
            costs += torch.zeros_like(costs).masked_scatter(masked, cost).where(fresh, 0)
            x_t = torch.where(fresh, corrupted.x_0, corrupted.x_t)
            corrupted = corrupted._replace(x_t=x_t, masked=masked & ~fresh)
        return costs

    def _measured(self, model: LanguageModel, features: Features, inputs: LossInputs) -> tuple[Tensor, Tensor]:
        """-log p [N] of the true tokens at the masked positions, and their scores [N]."""
        anchor = None
        if self.order == "anchors" and features.anchor is not None:
            anchor = features.anchor.flatten(0, 1).index_select(0, inputs.index)
        rows = max(1, SLICE_LOGITS // model.vocabulary.size)
        found = []
        for start in range(0, len(features.final), rows):
            part = slice(start, start + rows)
            logits = model.logits(features.final[part]).float()
            cost = torch.nn.functional.cross_entropy(logits, inputs.tokens[part], reduction="none")
            score = ORDERS[self.order](model, logits, None if anchor is None else anchor[part])
            found.append(torch.stack([cost, score.float()]))
        cost, score = torch.cat(found, 1)
        return cost, score

    def bound(self, context: LossContext) -> Nats:
        raise ConfigError("the likelihood under an order is for evaluation, not for training", subject="objective")


def _blocks(values: Tensor, size: int, fill: float) -> Tensor:
    """values [B, L] as [blocks of all rows, size]."""
    return torch.nn.functional.pad(values, (0, -values.shape[1] % size), value=fill).view(-1, size)
