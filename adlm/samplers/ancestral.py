"""Over a grid of times: MDLM's ancestral sampler (arXiv 2406.07524), and ReMDM's, which takes tokens back."""

from abc import ABC
from dataclasses import dataclass, field

import torch

from adlm.diffusion.schedule import LogLinear, Schedule
from adlm.errors import ConfigError
from adlm.samplers.remasking import Cap, Never, RemaskRule, ReverseStep
from adlm.samplers.sampler import Unmasking
from adlm.samplers.state import SamplerState


@dataclass(frozen=True)
class OnGrid(Unmasking, ABC):
    """Args:
    steps: equal steps from time 1 to 0. Tokens revealed in one step do not see each other, so more steps write
        better text. They cost little: a row goes through the network only in steps that reveal something in it.
    """

    steps: int = 256
    schedule: Schedule = field(
        default_factory=lambda: LogLinear(0.0)
    )  # alpha = 1 - t, as the official samplers have it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1:
            raise ConfigError(f"asked for {self.steps} steps", "fewer than 1", "give 1 or more")

    def walk(self, board: SamplerState, rule: RemaskRule) -> None:
        for step in range(self.steps):
            self.take(step, board, rule)

    def take(self, step: int, board: SamplerState, rule: RemaskRule) -> None:
        """One step of the grid, of the posterior with a rule's sigma."""
        blank = board.blank
        visible = board.open & ~blank
        t, s = 1 - step / self.steps, 1 - (step + 1) / self.steps
        change = rule.step(t, s, self.schedule, board.confidence.masked_fill(~visible, torch.inf))
        if step == self.steps - 1:  # some schedules and rules end with masks
            change = ReverseStep(change.alpha_t, 1.0)
        fresh = blank & (board.uniform("reveal", step) < change.reveal)
        # What the network is told is the time at which so much is visible: not t where a rule lets time stand.
        told = self.schedule.inverse(torch.tensor(change.alpha_t, dtype=torch.float64)).clamp(0, 1)
        board.reveal(fresh, told.item(), step)
        remasked = None
        if isinstance(change.sigma, torch.Tensor) or change.sigma > 0:
            remasked = visible & (board.uniform("remask", step) < change.sigma)
            board.remask(remasked)
        board.show(fresh, remasked, self.steps)


@dataclass(frozen=True)
class Ancestral(OnGrid):
    """Reveals blanks at random over a grid of times; what is written stays (MDLM).

    In each step a blank is revealed with probability (alpha_s - alpha_t) / (1 - alpha_t).
    """

    def fill(self, board: SamplerState) -> None:
        self.walk(board, Never())


@dataclass(frozen=True)
class Remasking(OnGrid):
    """ReMDM's: what was revealed may be masked again by a rule and written anew, so that mistakes can be mended."""

    rule: RemaskRule = field(default_factory=Cap)

    def fill(self, board: SamplerState) -> None:
        self.walk(board, self.rule)
