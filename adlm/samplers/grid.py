"""A grid of times, and which positions change at each of its steps, known before any token is.

Whether a blank is revealed or a token masked again depends on random numbers and the time, not on what is written, but
for rules that look at confidences. So the positions of all steps are found first, many steps at once, and steps at
which nothing changes cost no more than that.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.diffusion.schedule import Schedule
from adlm.samplers.remasking import RemaskRule, ReverseStep
from adlm.samplers.state import SamplerState

_CHUNK = 1 << 16  # random numbers at a time

Mask = NDArray[np.bool_]  # [B, L]


class Grid(NamedTuple):
    """The steps of a sampler: probabilities to reveal a blank and to remask a token, and the network's time input."""

    reveal: NDArray[np.float64]
    sigma: NDArray[np.float64]
    time: NDArray[np.float64]


class Change(NamedTuple):
    """The positions that a step reveals and remasks."""

    step: int
    fresh: Mask
    remasked: Mask


class Turn(NamedTuple):
    """The next reveal of every row that has one left: first `remasked` is masked again, then `fresh` is written.

    steps: [B], the step of the grid at which it is in each row.
    """

    steps: NDArray[np.int64]
    fresh: Mask
    remasked: Mask


def times(step: int, steps: int) -> tuple[float, float]:
    """The times at which a step begins and ends."""
    return 1 - step / steps, 1 - (step + 1) / steps


@lru_cache(maxsize=1 << 14)
def told_time(schedule: Schedule, alpha: float) -> float:
    """The time at which a fraction alpha is visible. It is not that of the step, if a rule lets time stand."""
    return schedule.inverse(torch.tensor(alpha, dtype=torch.float64)).clamp(0, 1).item()


def reverse_step(step: int, steps: int, schedule: Schedule, rule: RemaskRule, confidence: torch.Tensor) -> ReverseStep:
    """A step of the grid. The last one reveals all that is left: some schedules and rules end with masks."""
    change = rule.step(*times(step, steps), schedule, confidence)
    return ReverseStep(change.alpha_t, 1.0) if step == steps - 1 else change


@lru_cache(maxsize=64)
def grid(steps: int, schedule: Schedule, rule: RemaskRule) -> Grid:
    """All steps of a rule that does not read confidences."""
    nothing = torch.empty(0)
    changes = [reverse_step(step, steps, schedule, rule, nothing) for step in range(steps)]
    told = [told_time(schedule, change.alpha_t) for change in changes]
    return Grid(
        np.array([float(change.reveal) for change in changes]),
        np.array([float(change.sigma) for change in changes]),
        np.array(told),
    )


def chunks(steps: int, size: int) -> Iterator[range]:
    """Parts of the grid small enough that their random numbers, `size` per step, fit in memory."""
    count = max(1, _CHUNK // max(1, size))
    for start in range(0, steps, count):
        yield range(start, min(start + count, steps))


def changes(state: SamplerState, over: Grid) -> Iterator[Change]:
    """The steps at which something changes, in order."""
    writable, blank = state.open.cpu().numpy(), state.blank.cpu().numpy()
    for steps in chunks(len(over.reveal), blank.size):
        part = slice(steps.start, steps.stop)
        remasks = over.sigma[part].any()
        if not remasks and not blank.any():
            continue
        reveal = state.row_noise.uniforms("reveal", steps) < over.reveal[part, None, None]
        remask = (
            state.row_noise.uniforms("remask", steps) < over.sigma[part, None, None]
            if remasks
            else np.zeros_like(reveal)
        )
        for i, step in enumerate(steps):
            fresh, remasked = blank & reveal[i], writable & ~blank & remask[i]
            if fresh.any() or remasked.any():
                yield Change(step, fresh, remasked)
                blank = blank & ~fresh | remasked


def turns(state: SamplerState, over: Grid) -> Iterator[Turn]:
    """The changes of a grid, the first reveals of all rows together, then the second ones, and so on.

    Rows do not see each other, so each has its own time, and a pass has as many rows as possible.
    """
    rows, length = state.tokens.shape
    told: list[list[tuple[int, NDArray[np.intp], Mask]]] = [[] for _ in range(rows)]
    pending = np.zeros((rows, length), dtype=bool)  # masked again since the row's last reveal
    for change in changes(state, over):
        for row in change.fresh.any(-1).nonzero()[0]:
            told[row].append((change.step, change.fresh[row].nonzero()[0], pending[row].nonzero()[0]))
            pending[row] = False
        pending |= change.remasked
    for i in range(max(map(len, told), default=0)):
        turn = Turn(np.zeros(rows, dtype=np.int64), np.zeros_like(pending), np.zeros_like(pending))
        for row, own in enumerate(told):
            if i < len(own):
                turn.steps[row] = own[i][0]
                turn.fresh[row, own[i][1]] = turn.remasked[row, own[i][2]] = True
        yield turn
