"""One left-to-right request of a batch: its canvas, and how far it is."""

import threading
from collections.abc import Callable

import torch

from adlm.models.cache import Cache
from adlm.samplers.left_to_right import LeftToRight
from adlm.samplers.recording import BlankPredictions
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import SamplerState
from adlm.serve.ticket import Ticket

Record = Callable[[BlankPredictions], None]


def fits_a_batch(sampler: Sampler, state: SamplerState) -> bool:
    """Whether rows can be filled step by step beside others: they have one run of blanks, all rows the same."""
    if type(sampler) is not LeftToRight or state.canvas.constraints or not state.network.causal:
        return False
    blank = state.blank
    first = blank[0]
    run = int(first.sum())
    if not run or not bool((blank == first).all()) or not bool((state.open == blank).all()):
        return False
    start = int(first.long().argmax())
    return bool(first[start : start + run].all())


class RowFilling:
    """One request in a batch: the rows of its canvas, and how far they are.

    Args:
        record: told what each pass predicts, see `RecordingNetwork`.

    position: that is written next, in all rows.
    rows: numbers of those that have not ended.
    cache: of what they have read, while they are in no batch.
    cached: numbers of the rows in the cache, which may have ended since.
    stopped: set when the request has left its batch: because it is `done`, because of an `error`, or because whoever
        reads its text is behind.
    """

    def __init__(self, state: SamplerState, ticket: Ticket, record: Record | None) -> None:
        self.state, self.ticket, self.record = state, ticket, record
        blank = state.blank[0]
        self.start = self.position = int(blank.long().argmax())
        self.end = self.start + int(blank.sum())
        self.rows = list(range(len(state.tokens)))
        self.cached = self.rows
        self.cache: Cache | None = None
        self.seed, self.sample_ids = state.row_noise.seeds(("token",)), state.row_noise.sample_ids
        self.stopped = threading.Event()
        self.error: BaseException | None = None

    @property
    def length(self) -> int:
        return int(self.state.tokens.shape[1])

    @property
    def done(self) -> bool:
        return not self.rows or self.position == self.end

    def skip(self, until: int) -> None:
        """Steps at which nothing is written are steps to a callback."""
        if self.state.on_step is not None:
            nothing = torch.zeros_like(self.state.open)
            for _ in range(self.state.shown, until):
                self.state.show(nothing, steps=self.length)

    def took(self, drawn: list[int]) -> None:
        """Go to the next position: these tokens were written, one in each row that had not ended."""
        state, rule, position = self.state, self.state.stop_rule, self.position
        fresh = None
        if state.on_step is not None:
            fresh = torch.zeros_like(state.open)
            fresh[self.rows, position] = True
        if rule is not None:
            ended = [
                row
                for row, token in zip(self.rows, drawn, strict=True)
                if token == rule.token or (rule.strings and self._complete(row))
            ]
            if ended:
                state.tokens[ended, position + 1 : self.end] = rule.token
                if fresh is not None:
                    fresh[ended, position + 1 : self.end] = True
                self.rows = [row for row in self.rows if row not in ended]
        self.position += 1
        if fresh is not None:
            state.show(fresh, steps=self.length)

    def _complete(self, row: int) -> bool:
        tokens, rule = self.state.tokens[row].tolist(), self.state.stop_rule
        return rule is not None and rule.complete(tokens[: self.start], tokens[self.start : self.position + 1])
