"""Over a grid of times: MDLM's ancestral sampler (arXiv 2406.07524), and ReMDM's, which masks tokens again."""

from abc import ABC
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from adlm.diffusion.schedule import LogLinear, Schedule
from adlm.errors import OutOfRange
from adlm.samplers.grid import Grid, changes, grid, reverse_step, told_time, turns
from adlm.samplers.remasking import Cap, Never, RemaskRule
from adlm.samplers.sampler import Unmasking
from adlm.samplers.state import SamplerState

_MANY_STEPS = 512  # beyond this, the step of each reveal is drawn directly, instead of once per step


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
        """Take all steps of the grid."""
        if isinstance(rule, Never) and self.steps > _MANY_STEPS:
            self._leap(state)
        elif rule.reads_confidence:
            for step in range(self.steps):
                self._take(step, state, rule)
        elif state.on_step is None or not state.whole:
            self._take_turns(state, grid(self.steps, self.schedule, rule))
        else:
            self._take_steps(state, grid(self.steps, self.schedule, rule))

    def _take(self, step: int, state: SamplerState, rule: RemaskRule) -> None:
        """One step of the posterior with a rule's sigma."""
        blank = state.blank
        visible = state.open & ~blank
        confidence = state.confidence.masked_fill(~visible, torch.inf)
        change = reverse_step(step, self.steps, self.schedule, rule, confidence)
        fresh = blank & (state.uniform("reveal", step) < change.reveal)
        state.reveal(fresh, told_time(self.schedule, change.alpha_t), step)
        remasked = None
        if isinstance(change.sigma, torch.Tensor) or change.sigma > 0:
            remasked = visible & (state.uniform("remask", step) < change.sigma)
            state.remask(remasked)
        state.show(fresh, remasked, steps=self.steps)

    def _take_steps(self, state: SamplerState, over: Grid) -> None:
        """All steps with their positions known, one after another, for a callback."""
        taken = 0
        for change in changes(state, over):
            self._show_surplus(state, change.step - taken)
            taken = change.step + 1
            fresh, remasked = state.to_device(change.fresh), state.to_device(change.remasked)
            state.reveal(fresh, over.time[change.step].item(), change.step)
            state.remask(remasked)
            state.show(fresh, remasked, steps=self.steps)
        self._show_surplus(state, self.steps - taken)

    def _show_surplus(self, state: SamplerState, count: int) -> None:
        """Steps at which nothing changes are steps to a callback."""
        nothing = torch.zeros_like(state.open)
        for _ in range(count):
            state.show(nothing, steps=self.steps)

    def _take_turns(self, state: SamplerState, over: Grid) -> None:
        """The same with as many rows in a pass as have something left to write."""
        for turn in turns(state, over):
            fresh, remasked = state.to_device(turn.fresh), state.to_device(turn.remasked)
            if turn.remasked.any():
                state.remask(remasked)
            state.reveal(fresh, state.to_device(over.time[turn.steps]), turn.steps)
            state.show(fresh, remasked)

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
