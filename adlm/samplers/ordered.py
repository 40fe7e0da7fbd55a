"""The most certain tokens first: by confidence, margin or entropy, as many per step as a pace says."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from adlm.diffusion.schedule import LogLinear, Schedule
from adlm.errors import ConfigError
from adlm.samplers.orders import Confidence, Order, OrderContext, PredictedOrder
from adlm.samplers.paces import InSteps, Pace, Ranked
from adlm.samplers.sampler import Needs, Unmasking
from adlm.samplers.state import SamplerState


@dataclass(frozen=True)
class Ordered(Unmasking):
    """Reveals the blanks of each row in an order of the model's own making, which is not the model's distribution.

    Args:
        order: which blanks first.
        pace: how many of them per step; at least one of each row.
        agreeing: two-stage models reveal, beyond that, every blank at which the anchor stage's likeliest token is the
            one that was drawn from the denoiser: rows are done in fewer steps.
        schedule: gives time-conditioned models their time, from the fraction of masks that they see.
    """

    order: Order = field(default_factory=Confidence)
    pace: Pace = field(default_factory=InSteps)
    agreeing: bool = False
    schedule: Schedule = field(default_factory=LogLinear)

    @property
    def needs(self) -> Needs:
        return "two-stage" if self.agreeing or self.order.reads_anchors else super().needs

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agreeing and not isinstance(self.order, PredictedOrder):
            raise ConfigError(
                f"agreeing=True needs an order that draws before it chooses, got {type(self.order).__name__}",
                fix="use Confidence, Margin or LeastEntropy",
                subject="Ordered.agreeing",
            )

    def fill(self, state: SamplerState) -> None:
        at_first = state.blank.sum(-1)
        step = 0
        while bool((blank := state.blank).any()):
            t = self._time(state)
            agrees = state.anchor_measure(blank, t, lambda logits: logits.argmax(-1)) if self.agreeing else None
            offer = self.order.offer(OrderContext(state, blank, t, step, self.pace.reads_entropy))
            fresh = self._taken(blank, offer.score, offer.entropy, at_first, step)
            if agrees is not None and offer.tokens is not None:
                fresh[blank] |= agrees == offer.tokens
            if offer.tokens is None or offer.confidence is None:
                state.reveal(fresh, t, step)
            else:
                state.write(fresh, offer.tokens[fresh[blank]], offer.confidence[fresh[blank]])
            state.show(fresh)
            step += 1

    def _time(self, state: SamplerState) -> float | Tensor:
        if not state.network.time_conditioned:
            return 0.0
        return self.schedule.inverse(1 - state.masked_fraction).clamp(0, 1)

    def _taken(self, blank: Tensor, score: Tensor, entropy: Tensor | None, at_first: Tensor, step: int) -> Tensor:
        """[B, L] bool: the first blanks of each row, as many as the pace takes."""
        scores = torch.full(blank.shape, -torch.inf, device=blank.device, dtype=score.dtype)
        entropies = torch.full_like(scores, torch.inf)
        scores[blank] = score
        order = best_first(scores)
        if entropy is not None:
            entropies[blank] = entropy.to(scores.dtype)
            entropies = entropies.gather(-1, order)
        left = blank.sum(-1)
        view = Ranked(scores.gather(-1, order), entropies, left, at_first, step)
        count = self.pace.count(view).clamp_min(1).minimum(left)
        rank = torch.arange(blank.shape[1], device=blank.device)
        return torch.zeros_like(blank).scatter_(-1, order, rank < count[:, None])


def best_first(scores: Tensor, tolerance: float = 1e-5) -> Tensor:
    """Positions [B, L] from the highest score to the lowest; equal ones from left to right.

    Blanks in a row of blanks alone are equal to a model without positions, but for rounding, which depends on what else
    is in the batch and must not decide. So those within `tolerance` of the next count as equal.
    """
    ranked, order = scores.sort(dim=-1, descending=True)
    apart = ranked[:, :-1] - ranked[:, 1:] > tolerance  # between -inf and -inf it is nan, which is not
    group = torch.nn.functional.pad(apart.long().cumsum(-1), (1, 0))
    return order.gather(-1, (group * scores.shape[1] + order).argsort(-1))
