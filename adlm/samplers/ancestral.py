"""Over a grid of times: MDLM's ancestral sampler (arXiv 2406.07524), and ReMDM's, which masks tokens again."""

from abc import ABC
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from adlm.diffusion.schedule import LogLinear, Schedule
from adlm.errors import OutOfRange
from adlm.samplers.remasking import Cap, Never, RemaskRule, ReverseStep
from adlm.samplers.sampler import Unmasking
from adlm.samplers.state import SamplerState

_MANY_STEPS = 4096  # beyond this, the step of each reveal is drawn directly, instead of once per step


@dataclass(frozen=True)
class OnGrid(Unmasking, ABC):
    """A sampler that goes from time 1 to time 0 in equal steps.

    Args:
        steps: Tokens revealed in one step do not see each other, so more steps write better text. They cost little: a
            row goes through the network only in steps that reveal something in it.
    """

    steps: int = 256
    schedule: Schedule = field(
        default_factory=lambda: LogLinear(0.0)
    )  # alpha = 1 - t, as the official samplers have it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise OutOfRange("steps", self.steps, "at least 1")

    def walk(self, state: SamplerState, rule: RemaskRule) -> None:
        """All steps of the grid."""
        if isinstance(rule, Never) and self.steps > _MANY_STEPS:
            self._leap(state)
            return
        for step in range(self.steps):
            self.take(step, state, rule)

    def take(self, step: int, state: SamplerState, rule: RemaskRule) -> None:
        """One step of the grid, of the posterior with a rule's sigma."""
        blank = state.blank
        visible = state.open & ~blank
        t, s = self._times(step)
        change = rule.step(t, s, self.schedule, state.confidence.masked_fill(~visible, torch.inf))
        if step == self.steps - 1:  # some schedules and rules end with masks
            change = ReverseStep(change.alpha_t, 1.0)
        fresh = blank & (state.uniform("reveal", step) < change.reveal)
        # The network is told the time at which so much is visible: not t, if a rule lets time stand.
        state.reveal(fresh, self._time_of(change.alpha_t), step)
        remasked = None
        if isinstance(change.sigma, torch.Tensor) or change.sigma > 0:
            remasked = visible & (state.uniform("remask", step) < change.sigma)
            state.remask(remasked)
        state.show(fresh, remasked, steps=self.steps)

    def _leap(self, state: SamplerState) -> None:
        """All steps, of which only those are taken that reveal something.

        A blank is still masked after step k with probability (1 - alpha_s) / (1 - alpha_1), s = 1 - (k + 1) / steps.
        So one uniform number u gives its step: the first with 1 - alpha_s < u (1 - alpha_1). The first such steps of
        all rows are taken together, then the second ones, and so on.
        """
        blank, u = state.blank, state.uniform("reveal")
        hit = self.schedule.inverse(1 - u * (1 - self.schedule.alpha(torch.ones_like(u)))).nan_to_num(0.0).clamp(0, 1)
        step = ((1 - hit) * self.steps).long().clamp(0, self.steps - 1).masked_fill(~blank, self.steps)
        ordered, index = step.sort(-1)
        turn = torch.zeros_like(step).scatter(-1, index, F.pad(ordered.diff(dim=-1) > 0, (1, 0)).cumsum(-1))
        turns = int(turn[blank].max()) + 1 if bool(blank.any()) else 0
        for i in range(turns):
            fresh = blank & (turn == i)
            time = 1 - step.masked_fill(~fresh, 0).amax(-1) / self.steps
            state.reveal(fresh, time, i)
            state.show(fresh, steps=turns)

    def _times(self, step: int) -> tuple[float, float]:
        """The times at which a step begins and ends."""
        return 1 - step / self.steps, 1 - (step + 1) / self.steps

    def _time_of(self, alpha: float) -> float:
        return self.schedule.inverse(torch.tensor(alpha, dtype=torch.float64)).clamp(0, 1).item()


@dataclass(frozen=True)
class Ancestral(OnGrid):
    """Reveals blanks at random over a grid of times; what is written stays (MDLM).

    In each step a blank is revealed with probability (alpha_s - alpha_t) / (1 - alpha_t).
    """

    def fill(self, state: SamplerState) -> None:
        self.walk(state, Never())


@dataclass(frozen=True)
class Remasking(OnGrid):
    """ReMDM's: revealed tokens may be masked again by a rule and written anew, which corrects mistakes."""

    rule: RemaskRule = field(default_factory=Cap)

    @property
    def remasks(self) -> bool:
        return not isinstance(self.rule, Never)

    def fill(self, state: SamplerState) -> None:
        self.walk(state, self.rule)
