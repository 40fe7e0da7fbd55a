"""Left-to-right requests as rows of one batch: a step is one pass, one draw and one thread for all of them.

Requests join and leave between steps. Each keeps its own canvas, noise, filters, stop rule and callbacks, so it writes
the tokens that it writes alone. What a step computes for one request and for all is the same work on a CPU up to some
ten rows, since the weights are most of what is read.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adlm.models.cache import Cache
from adlm.models.language_model import LanguageModel
from adlm.randomness import bits_at
from adlm.samplers.filters import Sites
from adlm.samplers.network import anchor_predictions
from adlm.samplers.recording import BlankPredictions
from adlm.samplers.state import Prediction, predicted, slice_size
from adlm.serve.row_filling import RowFilling

MOST_PROMPT = 1 << 10  # positions of prompts that are read between two steps, unless one has more


class _Drawing(NamedTuple):
    """Requests whose next tokens are drawn, with features [N, D] of all their rows and those of the anchor stage."""

    fillings: list[RowFilling]
    final: Tensor
    anchor: Tensor | None

    @classmethod
    def joined(cls, parts: Sequence["_Drawing"]) -> "_Drawing":
        anchors = [part.anchor for part in parts if part.anchor is not None]
        return cls(
            [each for part in parts for each in part.fillings],
            torch.cat([part.final for part in parts]),
            torch.cat(anchors) if anchors else None,
        )


class RowBatch:
    """Rows that are written together with a network.

    Args:
        key: how the network reads; the same for all requests of the batch.
        count: told how many rows went through the network, for each pass.

    waiting: requests that join at the next step.
    """

    def __init__(self, network: LanguageModel, key: Hashable, count: Callable[[int], None]) -> None:
        self.network, self.key, self._count = network, key, count
        self.waiting: list[RowFilling] = []
        self.fillings: list[RowFilling] = []  # in the order of their rows in the cache
        self._arriving: list[RowFilling] = []  # that join in this step
        self._cache: Cache | None = None
        self._tokens: Tensor | None = None  # [B, L] of all rows, which the states of the requests see a part of
        self._first: dict[RowFilling, int] = {}  # rows of each request in `_tokens`

    @property
    def load(self) -> int:
        """Positions of all rows."""
        return sum(len(each.rows) * each.length for each in [*self.fillings, *self.waiting])

    def step(self) -> None:
        """Write the next token of every row."""
        for each in self.fillings:
            self._refused(each)
        self._leave()
        self._arriving = arrived = self._arrived()
        unread = [each for each in arrived if each.cache is None]
        self._join([each for each in arrived if each.cache is not None])
        drawings = [*self._extended(), *self._prompts(unread)]
        # Those that have read their prompt have no place among the rows yet.
        fresh = [each for drawing in drawings for each in drawing.fillings if each not in self._first]
        self._place([*self.fillings, *fresh])
        self._draw(drawings)
        self._join(fresh)
        self._leave()
        self._arriving = []

    def cancel(self, error: BaseException) -> None:
        """All requests end with an error."""
        everyone = dict.fromkeys([*self.fillings, *self._arriving, *self.waiting])
        self.fillings, self._arriving, self.waiting = [], [], []
        self._cache = self._tokens = None
        for each in everyone:
            if not each.stopped.is_set():
                self._stop(each, error)

    def _refused(self, filling: RowFilling) -> bool:
        """Whether a request is to stop: it was cancelled, or its time is over."""
        try:
            filling.ticket.check()
        except BaseException as error:
            filling.error = error
        return filling.error is not None

    def _stop(self, filling: RowFilling, error: BaseException | None = None) -> None:
        filling.error = filling.error or error
        filling.state.tokens = filling.state.tokens.clone()  # no part of the batch any more
        self._first.pop(filling, None)
        filling.stopped.set()

    def _arrived(self) -> list[RowFilling]:
        """Those that join now: as many as have short prompts, or one with a long one."""
        found: list[RowFilling] = []
        positions = 0
        while self.waiting:
            each = self.waiting[0]
            positions += 0 if each.cache is not None else len(each.rows) * each.start
            if found and positions > MOST_PROMPT:
                break
            self.waiting.remove(each)
            if self._refused(each):
                self._stop(each)
            else:
                found.append(each)
        return found

    def _extended(self) -> list[_Drawing]:
        """Every row reads its last token."""
        if self._cache is None or not self.fillings:
            return []
        tokens, row, position = self._sites(self.fillings)
        self._counted(self.fillings, self._cache.rows)
        try:
            found = self.network.extend(tokens[row, position - 1][:, None], self._cache)
        except Exception as error:
            for each in self.fillings:
                each.error = error
            self._leave()
            return []
        return [_Drawing(list(self.fillings), found.final, None if found.anchor is None else found.anchor[:, -1])]

    def _prompts(self, fillings: Sequence[RowFilling]) -> list[_Drawing]:
        """Read prompts, those of one length together."""
        groups = groupby(sorted(fillings, key=lambda each: each.start), key=lambda each: each.start)
        return [drawing for _, group in groups for drawing in self._prompt(list(group))]

    def _prompt(self, fillings: list[RowFilling]) -> list[_Drawing]:
        tokens = torch.cat([each.state.tokens[:, : each.start] for each in fillings])
        cache = self.network.cache(len(tokens), tokens.shape[1] + 1, t=torch.zeros(len(tokens), device=tokens.device))
        try:
            found = self.network.extend(tokens, cache)
        except Exception as error:
            if len(fillings) > 1:  # an error in one request must not reach others
                return [drawing for each in fillings for drawing in self._prompt([each])]
            self._stop(fillings[0], error)
            return []
        self._counted(fillings, len(tokens))
        owner = torch.tensor([i for i, each in enumerate(fillings) for _ in each.rows])
        for i, each in enumerate(fillings):
            each.cache = cache if len(fillings) == 1 else cache.part((owner == i).to(tokens.device))
        return [_Drawing(fillings, found.final, None if found.anchor is None else found.anchor[:, -1])]

    def _counted(self, fillings: Sequence[RowFilling], rows: int) -> None:
        self._count(rows)
        for each in fillings:
            each.ticket.calls += 1
            each.state.network_calls += len(each.rows)
            each.state.anchor_calls += len(each.rows) if self.network.stages > 1 else 0

    def _place(self, fillings: Sequence[RowFilling]) -> None:
        """Give the requests rows of one table of tokens."""
        if list(self._first) == list(fillings):
            return
        length, mask_id = max((each.length for each in fillings), default=0), self.network.vocabulary.mask_id
        parts = [F.pad(each.state.tokens, (0, length - each.length), value=mask_id) for each in fillings]
        self._first, row = {}, 0
        self._tokens = torch.cat(parts) if parts else None
        for each, part in zip(fillings, parts, strict=True):
            assert self._tokens is not None
            self._first[each] = row
            each.state.tokens = self._tokens[row : row + len(part), : each.length]
            row += len(part)

    def _sites(self, fillings: Sequence[RowFilling]) -> Sites:
        """The next place to be written in every row that has not ended; rows are numbered as in the table."""
        assert self._tokens is not None
        rows = [self._first[each] + row for each in fillings for row in each.rows]
        positions = [each.position for each in fillings for _ in each.rows]
        both = torch.tensor([rows, positions], device=self._tokens.device)
        return Sites(self._tokens, both[0], both[1])

    def _draw(self, drawings: Sequence[_Drawing]) -> None:
        """Draw the next tokens from features, and write them."""
        if not drawings:
            return
        fillings, final, anchor = drawings[0] if len(drawings) == 1 else _Drawing.joined(drawings)
        first = 0
        for part in _slices(fillings, slice_size(self.network.vocabulary.size)):
            rows = slice(first, first + sum(len(each.rows) for each in part))
            first = rows.stop
            try:
                raw = self.network.logits(final[rows])
                recorded = anchor is not None and any(each.record is not None for each in part)
                stage = anchor_predictions(self.network, anchor[rows]) if recorded and anchor is not None else None
            except Exception as error:
                for each in part:
                    each.error = error
            else:
                for some, index in _alike(part):
                    whole = len(some) == len(part)
                    own = raw if whole else raw[index]
                    self._write(some, own, stage if whole or stage is None else stage[index])

    def _write(self, fillings: Sequence[RowFilling], raw: Tensor, anchor: Tensor | None) -> None:
        """Draw from logits [N, V]."""
        prediction = self._predicted(fillings, raw)
        if prediction is None:
            if len(fillings) > 1:
                first = 0
                for each in fillings:
                    own = slice(first, first + len(each.rows))
                    self._write([each], raw[own], None if anchor is None else anchor[own])
                    first = own.stop
            return
        tokens, row, position = self._sites(fillings)
        tokens[row, position] = prediction.drawn
        drawn, first = prediction.drawn.tolist(), 0
        for each in fillings:
            own = slice(first, first + len(each.rows))
            first = own.stop
            try:
                self._tell(each, prediction, own, anchor)
                each.took(drawn[own])
            except BaseException as error:
                each.error = error

    def _predicted(self, fillings: Sequence[RowFilling], raw: Tensor) -> Prediction | None:
        """What is drawn; None if that is refused. The error is that of the request, if there is but one."""
        sites, state = self._sites(fillings), fillings[0].state
        seeds = np.concatenate([np.broadcast_to(each.seed, len(each.rows)) for each in fillings])
        ids = np.concatenate([each.sample_ids[each.rows] for each in fillings])
        positions = np.array([each.position for each in fillings for _ in each.rows], dtype=np.uint64)
        bits = state.to_device(bits_at(seeds, ids, positions).view(np.int64))
        if len(fillings) == 1:  # an error names the request's own row
            sites = Sites(state.tokens, sites.row - self._first[fillings[0]], sites.position)
        try:
            return predicted(raw, sites, bits, state.filters, mask_id=self.network.vocabulary.mask_id)
        except Exception as error:
            if len(fillings) == 1:
                fillings[0].error = error
            return None

    def _tell(self, filling: RowFilling, prediction: Prediction, own: slice, anchor: Tensor | None) -> None:
        """Call the request's callbacks on what is predicted."""
        position, state = filling.position, filling.state
        if filling.record is not None and own.stop > own.start:
            some = slice(own.start, own.start + 1)  # as alone, those of a canvas with one row
            found = None if anchor is None else anchor[some]
            filling.record(BlankPredictions([position], prediction.raw[some], found))
        if state.on_draw is not None:
            row = torch.tensor(filling.rows, device=state.tokens.device)
            state.on_draw(Sites(state.tokens, row, torch.full_like(row, position)), prediction.part(own))

    def _join(self, fillings: Sequence[RowFilling]) -> None:
        """Take requests with caches of their own into the batch."""
        new = [each for each in fillings if each.error is None and not each.done and each.cache is not None]
        for each in fillings:
            if each not in new:
                self._stop(each)
        if not new:
            return
        caches = [] if self._cache is None or not self.fillings else [self._cache]
        for each in new:
            assert each.cache is not None
            if each.cached != each.rows:
                each.cache.keep(self._mask([row in each.rows for row in each.cached]))
                each.cached = list(each.rows)
            caches.append(each.cache)
            each.cache = None
        self.fillings += new
        self._cache = Cache.joined(caches, max(each.end - each.position for each in self.fillings))
        self._place(self.fillings)

    def _leave(self) -> None:
        """Take out requests that are done or have an error, rows that have ended, and requests whose reader is behind:
        these take along what they have read."""
        if self._cache is None:
            return
        leaving = [each for each in self.fillings if each.error is not None or each.done or each.ticket.held()]
        kept = [row in each.rows and each not in leaving for each in self.fillings for row in each.cached]
        if all(kept):
            return
        for each in leaving:
            if each.error is None and not each.done:
                own = [other is each and row in each.rows for other in self.fillings for row in other.cached]
                each.cache = self._cache.part(self._mask(own))
        self.fillings = [each for each in self.fillings if each not in leaving]
        if self.fillings:
            self._cache.keep(self._mask(kept))
        else:
            self._cache = self._tokens = None
        for each in self.fillings:
            each.cached = list(each.rows)
        for each in leaving:
            each.cached = list(each.rows)
            self._stop(each)

    def _mask(self, rows: list[bool]) -> Tensor:
        return torch.tensor(rows, device=next(self.network.parameters()).device)


def _slices(fillings: Sequence[RowFilling], size: int) -> Iterator[list[RowFilling]]:
    """Requests in order, in parts of at most `size` rows, or with one request."""
    part: list[RowFilling] = []
    for each in fillings:
        if part and sum(len(other.rows) for other in [*part, each]) > size:
            yield part
            part = []
        part.append(each)
    yield part


def _alike(fillings: Sequence[RowFilling]) -> list[tuple[list[RowFilling], list[int]]]:
    """Requests with the same filters, and the numbers of their rows."""
    found: list[tuple[list[RowFilling], list[int]]] = []
    first = 0
    for each in fillings:
        same = next((part for part in found if part[0][0].state.filters == each.state.filters), None)
        if same is None:
            found.append(same := ([], []))
        some, index = same
        some.append(each)
        index += range(first, first + len(each.rows))
        first += len(each.rows)
    return found
