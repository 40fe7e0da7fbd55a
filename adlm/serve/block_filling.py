"""One request that is written in blocks beside others: its canvas, and the blocks that it has left."""

import threading
from collections.abc import Callable

from adlm.samplers.ancestral import Ancestral, Remasking
from adlm.samplers.blocks import Blocks, BlockWalk
from adlm.samplers.first_hitting import FirstHitting
from adlm.samplers.ordered import Ordered
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import SamplerState
from adlm.serve.block_pool import PooledBlocks
from adlm.serve.row_filling import Record
from adlm.serve.ticket import Ticket

# Those that ask a state for nothing but rows, so that it does not matter whose rows they are.
_BY_ROW = (Ancestral, FirstHitting, Ordered, Remasking)


def fits_a_group(sampler: Sampler, state: SamplerState) -> bool:
    """Whether blocks can be filled together with those of other requests."""
    if type(sampler) is not Blocks or type(sampler.inner) not in _BY_ROW:
        return False
    return state.network.attention == "block" and not state.canvas.constraints


class BlockFilling:
    """One request in a group: its rows, and how far they are.

    Args:
        record: told what each pass predicts, see `RecordingNetwork`.

    told: steps that the callback was told of.
    later: calls of the callback that wait until whoever reads the text has caught up.
    done: whether no block is left.
    stopped: set when the request has left its group: because it is `done`, because of an `error`, or because whoever
        reads its text is behind.
    """

    def __init__(self, state: SamplerState, ticket: Ticket, record: Record | None) -> None:
        self.state, self.ticket = state, ticket
        self.record = record if len(state.tokens) == 1 else None
        self.walk = BlockWalk(state)
        self.told, self.done = 0, False
        self.later: list[Callable[[], None]] = []
        self.stopped = threading.Event()
        self.error: BaseException | None = None

    @property
    def cache(self) -> PooledBlocks:
        cache = self.walk.reader.cache
        assert isinstance(cache, PooledBlocks)
        return cache

    @property
    def length(self) -> int:
        return int(self.state.tokens.shape[1])

    @property
    def rows(self) -> int:
        return len(self.state.tokens)

    def refused(self) -> bool:
        """Whether the request is to stop: it was cancelled, or its time is over."""
        if self.error is None:
            try:
                self.ticket.check()
            except BaseException as error:
                self.error = error
        return self.error is not None

    def goes_on(self) -> bool:
        """Begin the next block, if there is one and somebody to read it."""
        if self.refused() or self.later or self.ticket.held():
            return False
        try:
            self.done = not self.walk.begin_block()
        except Exception as error:
            self.error = error
        return self.error is None and not self.done

    def end_block(self) -> None:
        """Its block is full."""
        if self.error is None:
            try:
                self.walk.end_block()
            except Exception as error:
                self.error = error

    def tell_later(self) -> None:
        """Call the callback for what has waited."""
        for call in self.later:
            call()
        self.later = []
