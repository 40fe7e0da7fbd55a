"""One reveal per network call, at its exact time (arXiv 2409.02908)."""

from dataclasses import dataclass, field

import torch

from adlm.diffusion.schedule import LogLinear, Schedule
from adlm.samplers.sampler import Unmasking
from adlm.samplers.state import SamplerState


@dataclass(frozen=True)
class FirstHitting(Unmasking):
    """The law of ancestral sampling with infinitely many steps, in as many network calls as there are blanks.

    Going back from time 1, each blank is hit at a time of its own, at which the masked fraction 1 - alpha is a uniform
    part of what it was at time 1. So the blanks of a row come in the order of uniform numbers.
    """

    schedule: Schedule = field(default_factory=LogLinear)

    def fill(self, state: SamplerState) -> None:
        blank = state.blank
        u = state.uniform("hit").masked_fill(~blank, -1)
        order = u.argsort(-1, descending=True)
        masked_at_first = 1 - self.schedule.alpha(torch.ones((), dtype=u.dtype))
        times = self.schedule.inverse(1 - masked_at_first * u.clamp_min(0))
        counts = blank.sum(-1)
        steps = int(counts.max())
        for step in range(steps):
            position = order[:, step : step + 1]
            fresh = torch.zeros_like(blank).scatter_(-1, position, (counts > step)[:, None])
            state.reveal(fresh, times.gather(-1, position)[:, 0], step)
            state.show(fresh, steps=steps)
