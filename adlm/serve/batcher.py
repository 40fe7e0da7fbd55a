"""The network's passes for all requests: those that wait are computed together in one pass.

On a CPU there are a few lanes: threads that compute passes beside each other. Two passes of half the rows on one core
each are quicker than one pass of all rows spread over two, since small products gain little from a second core.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

import torch

from adlm.models.language_model import LanguageModel
from adlm.samplers.blocks import Blocks
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import SamplerState
from adlm.serve.batched_network import BatchedNetwork
from adlm.serve.block_filling import BlockFilling, fits_a_group
from adlm.serve.block_group import BlockGroup
from adlm.serve.block_pool import BlockPools
from adlm.serve.network_calls import MOST_POSITIONS, Alone, NetworkCall
from adlm.serve.row_batch import RowBatch
from adlm.serve.row_filling import Record, RowFilling, fits_a_batch
from adlm.serve.ticket import Cancelled, Ticket, TimedOut

_LANES = 4  # at most: they share Python's one lock
_BEHIND = 0.02  # seconds between two looks whether a reader has caught up
_PATIENCE = 0.1  # seconds that a pass waits for running requests that have not asked for theirs yet, at most


@dataclass(eq=False)
class _Waiting:
    """A call, and the thread that waits for it."""

    ticket: Ticket
    call: NetworkCall
    network: LanguageModel  # as the request reads it: in blocks of some size, or from left to right
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    @cached_property
    def group(self) -> Hashable | None:
        """See `NetworkCall.group`."""
        own = self.call.group
        return None if own is None else (own, self.network.attention, self.network.block_size)


class Batcher:
    """Start it, make networks with `shared` for the threads of requests, and close it.

    `passes` and `rows` count what went through the network.
    """

    def __init__(self, network: LanguageModel) -> None:
        self.network = network
        self.passes = self.rows = self.running = self._filling = 0
        self._batches: list[RowBatch] = []  # that have a row, each of them waiting for its turn or having it
        self._groups: list[BlockGroup] = []  # each with a thread of its own
        self._waiting: list[_Waiting] = []
        self._pools = BlockPools()
        self._closed, self._took = False, 0.0
        self._changed = threading.Condition()
        self._ready = threading.Event()
        self._cores = torch.get_num_threads() if next(network.parameters()).device.type == "cpu" else 1
        self._lanes = [
            threading.Thread(target=self._work, name="batcher", daemon=True) for _ in range(min(self._cores, _LANES))
        ]

    def start(self) -> None:
        """Start the lanes."""
        for lane in self._lanes:
            lane.start()
            self._ready.wait()  # the first keeps what is derived from the weights for all, until the end

    def close(self) -> None:
        """Stop the lanes; calls that still wait are cancelled."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            left, self._waiting = self._waiting, []
        for each in left:
            each.error = Cancelled()
            each.done.set()
        for lane in self._lanes:
            lane.join()
        for batch in self._batches:
            batch.cancel(Cancelled())

    def join(self, by: int) -> None:
        """So many threads more, or fewer, are about to ask for passes: a pass waits for them a little."""
        with self._changed:
            self.running += by
            self._changed.notify_all()

    def shared(self, ticket: Ticket) -> BatchedNetwork:
        """The network for one request."""

        def fill(network: LanguageModel, sampler: Sampler, state: SamplerState, record: Record | None) -> bool:
            if fits_a_batch(sampler, state):
                self._fill_rows(network, RowFilling(state, ticket, record))
            elif fits_a_group(sampler, state):
                self._fill_blocks(network, cast("Blocks", sampler), BlockFilling(state, ticket, record))
            else:
                return False
            return True

        return BatchedNetwork(self.network, partial(self._ask, ticket), fill, self._pools)

    def _ask(self, ticket: Ticket, network: LanguageModel, call: NetworkCall) -> Any:
        """The result of a call, computed by a lane."""
        ticket.check()
        ticket.calls += call.rows > 0
        waiting = _Waiting(ticket, call, network)
        with self._changed:
            if self._closed:
                raise Cancelled
            self._waiting.append(waiting)
            self._changed.notify_all()
        waiting.done.wait()
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    def _fill_rows(self, network: LanguageModel, filling: RowFilling) -> None:
        """Write the rows of a request together with those of others."""
        filling.skip(filling.start)
        while not filling.done:
            with self._changed:
                self._filling += 1
            try:
                self._wait_in(partial(self._enter, network), filling)
            finally:
                with self._changed:
                    self._filling -= 1
        filling.skip(filling.length)

    def _fill_blocks(self, network: LanguageModel, sampler: Blocks, filling: BlockFilling) -> None:
        """Write a request block by block together with others. Its prompt is read before that, with its first block."""
        walk = filling.walk
        if walk.begin_block():
            if int(walk.reader.start.max()) > 2 * network.block_size:
                sampler.inner.fill(filling.state)
                walk.end_block()
            while not filling.done:
                self._wait_in(partial(self._enter_group, network, sampler), filling)
                filling.tell_later()
        walk.end()

    def _wait_in(self, enter: Callable[[Any], None], filling: RowFilling | BlockFilling) -> None:
        """Enter a batch or group, and wait until its work for the request is done, or whoever reads has caught up."""
        with self._changed:
            if self._closed:
                raise Cancelled
            enter(filling)
            self.running -= 1  # it asks for no passes meanwhile
        filling.stopped.wait()
        with self._changed:
            self.running += 1
        if filling.error is not None:
            raise filling.error
        filling.stopped.clear()
        while not filling.done and filling.ticket.held():
            filling.ticket.check()
            time.sleep(_BEHIND)

    def _enter_group(self, network: LanguageModel, sampler: Blocks, filling: BlockFilling) -> None:
        """Join the group with the fewest rows, as in `_enter`."""
        key = (sampler, network.attention, network.block_size, id(filling.cache.pool))
        size = filling.rows * filling.length
        fitting = [group for group in self._groups if group.key == key and group.load + size <= MOST_POSITIONS]
        lightest = min(fitting, key=lambda group: group.load, default=None)
        if lightest is not None and sum(group.key == key for group in self._groups) >= len(self._lanes):
            lightest.waiting.append(filling)
            return
        group = BlockGroup(sampler, key)
        group.waiting.append(filling)

        def ask(network: LanguageModel, call: NetworkCall) -> Any:
            group.check()
            return self._ask(Ticket(math.inf), network, call)

        group.network = BatchedNetwork(network, ask, lambda *_: False, self._pools)
        self._groups.append(group)
        self.running += 1
        threading.Thread(target=self._write_blocks, args=(group,), name="blocks", daemon=True).start()

    def _write_blocks(self, group: BlockGroup) -> None:
        """The work of a group, until it has no requests."""
        torch.set_num_threads(1)
        while True:
            with self._changed:
                if not group.join():
                    self._groups.remove(group)
                    self.running -= 1
                    return
            try:
                group.step()
            except BaseException as error:
                group.cancel(error)

    def _enter(self, network: LanguageModel, filling: RowFilling) -> None:
        """Join the batch with the fewest rows: there is one for each lane, and more where there are too many rows."""
        key, size = (network.attention, network.block_size), len(filling.rows) * filling.length
        fitting = [b for b in self._batches if b.key == key and b.load + size <= MOST_POSITIONS]
        lightest = min(fitting, key=lambda batch: batch.load, default=None)
        if lightest is not None and sum(b.key == key for b in self._batches) >= len(self._lanes):
            lightest.waiting.append(filling)
            return
        batch = RowBatch(network, key, self._count)
        batch.waiting.append(filling)
        self._batches.append(batch)
        self._queue(batch)

    def _queue(self, batch: RowBatch) -> None:
        """A batch waits for its turn, behind all that waits already."""
        call = Alone(lambda: self._take_turn(batch), 0)
        self._waiting.append(_Waiting(Ticket(math.inf), call, batch.network))
        self._changed.notify_all()

    def _take_turn(self, batch: RowBatch) -> None:
        """One step of a batch."""
        try:
            batch.step()
        except Exception as error:
            batch.cancel(error)
        with self._changed:
            if not (batch.fillings or batch.waiting):
                self._batches.remove(batch)
            elif not self._closed:
                self._queue(batch)

    def _count(self, rows: int) -> None:
        with self._changed:
            self.passes += 1
            self.rows += rows

    def _work(self) -> None:
        threads = 0
        with self.network.inference_weights():
            self._ready.set()
            while calls := self._next():
                # This thread's own number, so that lanes do not share cores, and a single request has all of them.
                if threads != (
                    threads := self._cores if self.running + self._filling < 2 else self._cores // len(self._lanes)
                ):
                    torch.set_num_threads(threads)
                start = time.monotonic()
                self._answer(calls)
                if calls[0].call.rows:
                    self._took = time.monotonic() - start

    def _next(self) -> list[_Waiting]:
        """The calls to compute now: those of the group that has waited longest. Empty at the end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                # Threads that were answered together come back one after another: worth a quarter of a pass.
                alone = bool(self._waiting) and self._waiting[0].group is None
                patience = 0.0 if alone else min(_PATIENCE, self._took / 4)
                self._changed.wait_for(lambda: len(self._waiting) >= self._most or self._closed, patience)
                if self._closed:
                    return []
                if self._waiting:  # otherwise another lane was quicker
                    return self._taken()

    @property
    def _most(self) -> int:
        """Of the running requests, as many as one lane computes at once."""
        return max(1, -(-self.running // len(self._lanes)))

    def _taken(self) -> list[_Waiting]:
        first = self._waiting[0]
        taken, load, group = [first], first.call.load, first.group
        for each in self._waiting[1:]:
            if group is not None and each.group == group:
                load += each.call.load
                if load > 1 or len(taken) >= self._most:
                    break
                taken.append(each)
        self._waiting = [each for each in self._waiting if each not in taken]
        return taken

    def _answer(self, calls: list[_Waiting]) -> None:
        alive = []
        for each in calls:
            try:
                each.ticket.check()
                alive.append(each)
            except (Cancelled, TimedOut) as error:
                each.error = error
                each.done.set()
        if not alive:
            return
        try:
            results = self._computed(alive[0].network, [each.call for each in alive])
        except Exception as error:
            if len(alive) > 1:  # an error in one request must not reach others
                for each in alive:
                    self._answer([each])
                return
            alive[0].error = error
        else:
            for each, result in zip(alive, results, strict=True):
                each.result = result
        for each in alive:
            each.done.set()

    def _computed(self, network: LanguageModel, calls: list[NetworkCall]) -> list[Any]:
        if rows := sum(call.rows for call in calls):
            self._count(rows)
        return list(calls[0].compute(network, calls))
