"""One reveal per network call, at its exact time (arXiv 2409.02908)."""

from dataclasses import dataclass, field

import numpy as np
import torch

from adlm.diffusion.schedule import LogLinear, Schedule
from adlm.samplers.sampler import Unmasking
from adlm.samplers.state import SamplerState


@dataclass(frozen=True)
class FirstHitting(Unmasking):
    """The distribution of ancestral sampling with infinitely many steps, in as many network calls as there are blanks.

    Going back from time 1, each blank is hit at a time of its own, at which the masked fraction 1 - alpha is a uniform
    part of what it was at time 1. So the blanks of a row come in the order of uniform numbers.
    """

    schedule: Schedule = field(default_factory=LogLinear)

    def fill(self, state: SamplerState) -> None:
        blank = state.blank.cpu().numpy()
        u = np.where(blank, state.row_noise.uniform("hit"), 0.0)
        order = (-u).argsort(-1)
        masked_at_first = 1 - self.schedule.alpha(torch.ones((), dtype=torch.float64))
        times = self.schedule.inverse(1 - masked_at_first * torch.from_numpy(u)).numpy()
        rows, counts = np.arange(len(blank)), blank.sum(-1)
        steps = int(counts.max())
        for step in range(steps):
            position = order[:, step]
            fresh = np.zeros_like(blank)
            fresh[rows, position] = counts > step
            where = state.to_device(fresh)
            state.reveal(where, state.to_device(times[rows, position]), step)
            state.show(where, steps=steps)
