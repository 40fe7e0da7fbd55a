"""The surest tokens first: by confidence, margin or entropy, as many a step as a pace says."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from adlm.diffusion.schedule import LogLinear, Schedule
from adlm.samplers.board import Board
from adlm.samplers.orders import Confidence, Order
from adlm.samplers.paces import InSteps, Pace, Ranked
from adlm.samplers.sampler import Unmasking


@dataclass(frozen=True)
class Ordered(Unmasking):
    """Reveals the blanks of each row in an order of the model's own making, which is not the model's distribution.

    Args:
        order: which blanks first.
        pace: how many of them a step; at least one of each row.
        agreeing: two-stage models reveal, beyond that, every blank at which the anchor stage's likeliest token is the
            one that was drawn from the denoiser: rows are done in fewer steps.
        schedule: what models that are told the time are told, from the share of blanks.
    """

    order: Order = field(default_factory=Confidence)
    pace: Pace = field(default_factory=InSteps)
    agreeing: bool = False
    schedule: Schedule = field(default_factory=LogLinear)

    def fill(self, board: Board) -> None:
        at_first = board.blank.sum(-1)
        step = 0
        while bool((blank := board.blank).any()):
            share = blank.sum(-1) / blank.shape[1]
            t = self.schedule.inverse(1 - share.double()).clamp(0, 1)
            agrees = board.anchor_measure(blank, t, lambda guess: guess.drawn) if self.agreeing else None
            offer = self.order.offer(board, blank, t, step)
            fresh = self._taken(blank, offer.score, offer.entropy, at_first, step)
            if agrees is not None and offer.tokens is not None:
                fresh[blank] |= agrees == offer.tokens
            if offer.tokens is None or offer.confidence is None:
                board.reveal(fresh, t, step)
            else:
                board.write(fresh, offer.tokens[fresh[blank]], offer.confidence[fresh[blank]])
            board.show(fresh)
            step += 1

    def _taken(self, blank: Tensor, score: Tensor, entropy: Tensor, at_first: Tensor, step: int) -> Tensor:
        """[B, L] bool: the first blanks of each row, as many as the pace takes."""
        scores = torch.full(blank.shape, -torch.inf, device=blank.device, dtype=score.dtype)
        entropies = torch.full_like(scores, torch.inf)
        scores[blank], entropies[blank] = score, entropy.to(scores.dtype)
        ranked, order = scores.sort(dim=-1, descending=True, stable=True)
        left = blank.sum(-1)
        view = Ranked(ranked, entropies.gather(-1, order), left, at_first, step)
        count = self.pace.count(view).clamp_min(1).minimum(left)
        rank = torch.arange(blank.shape[1], device=blank.device)
        return torch.zeros_like(blank).scatter_(-1, order, rank < count[:, None])
