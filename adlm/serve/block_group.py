"""Requests that one sampler writes in blocks, as rows of one state: a step of the sampler is one for all of them.

Requests join and leave between blocks. Each keeps its own canvas, noise, stop rule, cache and callbacks, so it writes
the tokens that it writes alone. Next to a pass of a dozen rows, a sampler for each of them takes as long as the pass.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adlm.models.block_cache import FinishedBlocks
from adlm.models.hand_over import AnchorState
from adlm.models.language_model import BlockFeatures
from adlm.randomness import Noise
from adlm.samplers.block_reader import BlockReader
from adlm.samplers.blocks import Blocks
from adlm.samplers.canvas import Canvas
from adlm.samplers.filters import Sites
from adlm.samplers.network import Network, NetworkWrapper, anchor_predictions
from adlm.samplers.recording import BlankPredictions
from adlm.samplers.row_noise import RowNoise
from adlm.samplers.state import Prediction, SamplerState, StepEvent, slice_size
from adlm.serve.block_filling import BlockFilling
from adlm.serve.block_pool import PooledBlocks
from adlm.serve.row_filling import Record
from adlm.serve.ticket import Cancelled


class BlockGroup:
    """Requests whose blocks are filled together.

    Args:
        key: how the network reads, and the pool of the caches; the same for all requests of the group.

    network: what computes; set before the first step.
    waiting: requests that join at the next step.
    """

    network: Network

    def __init__(self, sampler: Blocks, key: tuple[Any, ...]) -> None:
        self.sampler, self.key = sampler, key
        self.waiting: list[BlockFilling] = []
        self.fillings: list[BlockFilling] = []
        self._blocks: _JointBlocks | None = None  # that are being filled

    @property
    def load(self) -> int:
        """Positions of all rows."""
        return sum(each.rows * each.length for each in [*self.fillings, *self.waiting])

    def join(self) -> bool:
        """Take in those that wait. False: there is nobody."""
        self.fillings, self.waiting = [*self.fillings, *self.waiting], []
        return bool(self.fillings)

    def step(self) -> None:
        """Fill the next block of every row."""
        going = [each for each in self.fillings if each.goes_on()]
        for each in self.fillings:
            if each not in going:
                each.stopped.set()
        self.fillings = going
        if going:
            # Rows that stand side by side in the pool are seen without a copy.
            self._fill(sorted(going, key=lambda each: each.cache.numbers[0]))

    def cancel(self, error: BaseException) -> None:
        """All requests end with an error."""
        everyone, self.fillings, self.waiting = [*self.fillings, *self.waiting], [], []
        for each in everyone:
            each.error = each.error or error
            each.stopped.set()

    def check(self) -> None:
        """Before each pass: who has been refused writes no more, and if nobody is left, nothing is computed."""
        if self._blocks is not None:
            for each in self._blocks.fillings:
                if each.refused():
                    self._blocks.close(each)
            if all(each.error is not None for each in self._blocks.fillings):
                raise Cancelled

    def _fill(self, fillings: list[BlockFilling]) -> None:
        before = [(each.state.tokens, each.state.shown) for each in fillings]
        try:
            with _JointBlocks(self.sampler, self.network, fillings) as self._blocks:
                self.sampler.inner.fill(self._blocks)
        except Exception as error:
            for each, (tokens, shown) in zip(fillings, before, strict=True):
                each.state.tokens, each.state.shown = tokens, shown
                if len(fillings) == 1:
                    each.error = each.error or error
                elif each.error is None:  # an error in one request must not reach others
                    self._fill([each])
        else:
            for each in fillings:
                each.end_block()
        finally:
            self._blocks = None


class _JointBlocks(SamplerState):
    """The open blocks of several requests as rows of one state."""

    def __init__(self, sampler: Blocks, network: Network, fillings: list[BlockFilling]) -> None:
        states, mask_id = [each.state for each in fillings], network.vocabulary.mask_id
        length = max(each.length for each in fillings)
        missing = [(0, length - each.length) for each in fillings]
        tokens = torch.cat([F.pad(s.tokens, pad, value=mask_id) for s, pad in zip(states, missing, strict=True)])
        open_ = torch.cat([F.pad(s.open, pad, value=False) for s, pad in zip(states, missing, strict=True)])
        records = [each.record for each in fillings for _ in range(each.rows)]
        if any(records):
            network = _RecordedBlocks(network, open_, records)
        super().__init__(
            network,
            Canvas(tokens, ~open_, torch.cat([state.canvas.sample_ids for state in states])),
            Noise(0),
            on_step=self._tell_step if any(state.on_step for state in states) else None,
            on_draw=self._tell_draw if any(state.on_draw for state in states) else None,
        )
        sampler.setup(self)
        self.row_noise = RowNoise.joined([state.row_noise for state in states])
        self.whole, self.fillings = False, fillings
        caches = [each.cache for each in fillings]
        joint = PooledBlocks(caches[0].pool, [row for cache in caches for row in cache.numbers], caches[0].room)
        joint.lengths = [known for cache in caches for known in cache.lengths]
        self.reader = BlockReader(network, self.tokens, self.stale_anchors, joint)
        self.reader.move(torch.cat([each.walk.reader.start for each in fillings]))
        self._own: dict[BlockFilling, slice] = {}
        row = 0
        for each in fillings:
            own = self._own[each] = slice(row, row + each.rows)
            each.state.tokens, row = self.tokens[own, : each.length], own.stop

    def close(self, filling: BlockFilling) -> None:
        """Write no more in the rows of a request."""
        self.open[self._own[filling]] = False

    def __enter__(self) -> "_JointBlocks":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # The callbacks refer to this state, which would keep the caches of the requests until the next collection.
        self.on_step = self.on_draw = None
        if error is None:
            self._give_back()

    def _give_back(self) -> None:
        """Tell every request what was read of it."""
        reader = self.reader
        assert reader is not None
        for each, own in self._own.items():
            if each.error is not None:
                continue
            mine = each.walk.reader
            each.cache.lengths = reader.cache.lengths[own]
            mine.calls = [a + b for a, b in zip(mine.calls, reader.calls[own], strict=True)]
            mine.anchor_calls = [a + b for a, b in zip(mine.anchor_calls, reader.anchor_calls[own], strict=True)]
            each.ticket.calls += max(reader.calls[own])

    def _tell_step(self, event: StepEvent) -> None:
        """Call the callbacks of the requests in which something changed."""
        changed = (event.fresh | event.remasked).any(-1).tolist()
        for each, own in self._own.items():
            state, on_step = each.state, each.state.on_step
            if on_step is None or each.error is not None or not any(changed[own]):
                continue
            if state.shown >= each.told:  # otherwise it was told before, in the company of a request that failed
                each.told = state.shown + 1
                fresh, remasked = event.fresh[own, : each.length], event.remasked[own, : each.length]
                told = StepEvent(state.shown, None, state.tokens, fresh, remasked, event.passes)
                if each.later or each.ticket.held():
                    told = told._replace(tokens=state.tokens.clone())
                    each.later.append(partial(on_step, told))
                else:
                    self._call(each, partial(on_step, told))
            state.shown += 1

    def _tell_draw(self, sites: Sites, prediction: Prediction) -> None:
        rows = sites.row.tolist()
        last = 0
        for each, own in self._own.items():  # in the order of the sites' rows
            first = last
            while last < len(rows) and rows[last] < own.stop:
                last += 1
            on_draw = each.state.on_draw
            if on_draw is not None and each.error is None and last > first:
                part = slice(first, last)
                mine = Sites(each.state.tokens, sites.row[part] - own.start, sites.position[part])
                self._call(each, partial(on_draw, mine, prediction.part(part)))

    def _call(self, filling: BlockFilling, callback: Callable[[], None]) -> None:
        """An error of a request's callback ends that request alone."""
        try:
            callback()
        except BaseException as error:
            filling.error = error
            self.close(filling)


class _RecordedBlocks(NetworkWrapper):
    """Tells what is predicted at all open blanks of some rows, as `RecordingNetwork` does for one row.

    Args:
        open_: [B, L] bool, the positions of the current blocks that may be written.
        records: of each row, None where nobody asks.
    """

    def __init__(self, network: Network, open_: Tensor, records: Sequence[Record | None]) -> None:
        super().__init__(network)
        self._records = records
        self._asked = open_ & torch.tensor([record is not None for record in records], device=open_.device)[:, None]
        self._narrow: Tensor | None = None  # the features given out last, and their logits
        self._logits: Tensor | None = None

    def read_block(
        self,
        tokens: Tensor,
        start: list[int],
        cache: FinishedBlocks,
        *,
        rows: list[int] | None = None,
        output_mask: Tensor | None = None,
        stage: AnchorState | None = None,
        left_to_right: bool = False,
    ) -> BlockFeatures:
        assert output_mask is not None
        assert not left_to_right
        numbers = list(range(len(tokens))) if rows is None else rows
        asked = self._asked[numbers] & (tokens == self.vocabulary.mask_id)
        where = output_mask | asked
        found = self.network.read_block(tokens, start, cache, rows=rows, output_mask=where, stage=stage)
        row, position = where.nonzero(as_tuple=True)
        begins = torch.tensor(start, device=position.device)
        anchors = None if found.stage is None else found.stage.anchor[row, position - begins[row]]
        # Rows are told one after another, but as few products as possible are made for them.
        size = slice_size(self.vocabulary.size)
        few, counts = len(row) <= size, where.sum(-1).tolist()
        logits = self.network.logits(found.final) if few else None
        stages = anchor_predictions(self.network, anchors) if few and anchors is not None else None
        begin = 0
        for number, count in zip(numbers, counts, strict=True):
            own, record = slice(begin, begin + count), self._records[number]
            begin = own.stop
            if record is not None:
                mine = self.network.logits(found.final[own]) if logits is None else logits[own]
                anchor = None if stages is None else stages[own]
                if stages is None and anchors is not None:
                    anchor = anchor_predictions(self.network, anchors[own])
                record(BlankPredictions(position[own].tolist(), mine, anchor))
        kept = output_mask[where]
        self._narrow, self._logits = found.final[kept], None if logits is None else logits[kept]
        return found._replace(final=self._narrow)

    def logits(self, final: Tensor) -> Tensor:
        if final is self._narrow and self._logits is not None:
            return self._logits
        return self.network.logits(final)
