"""The network's passes for all requests, those that wait together in one pass.

Rows of different lengths stand in one batch under segments, which keep padding from touching a text; where much would
be padding, `LanguageModel.features` packs the texts side by side. Left-to-right models read the next token of all rows
in one pass (`reading.py`), and a prompt by itself.

On a CPU there are a few lanes: threads that compute passes beside each other. Two passes of half the rows on one core
each are quicker than one pass of all rows spread over two, since small products gain little from a second core.
"""

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from adlm.models.cache import Cache
from adlm.models.hand_over import AnchorState
from adlm.models.language_model import LanguageModel
from adlm.serve.reading import CachedReading, read_together
from adlm.types import Features

MOST_POSITIONS = 1 << 15  # in one pass
_LANES = 4  # at most: they share Python's one lock
_PATIENCE = 0.1  # seconds that a pass waits for running requests that have not asked for theirs yet, at most

Kind = Literal["features", "anchor_stage", "denoise", "extend"]


class Cancelled(Exception):
    """Nobody waits for the request any more."""


class TimedOut(Exception):
    """The request has had its time."""


@dataclass
class Ticket:
    """A request's right to be computed, until it is cancelled or its time is over. Counts its passes."""

    deadline: float
    cancelled: bool = False
    calls: int = 0

    def check(self) -> None:
        if self.cancelled:
            raise Cancelled
        if time.monotonic() > self.deadline:
            raise TimedOut


class NetworkInput(NamedTuple):
    """What a pass reads: tokens [B, L], times [B] of timed models, segments [B, L], wanted [B, L], a first stage."""

    tokens: Tensor
    t: Tensor | None = None
    segments: Tensor | None = None
    output_mask: Tensor | None = None
    stage: AnchorState | None = None


@dataclass(eq=False)
class _Call:
    """What a thread waits for: rows of a kind to be computed with others, or something to be done by itself."""

    ticket: Ticket
    kind: Kind | None = None
    rows: NetworkInput | CachedReading | None = None
    alone: Callable[[], Any] | None = None
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    @property
    def positions(self) -> int:
        if isinstance(self.rows, CachedReading):
            return self.rows.cache.rows * self.rows.cache.length  # they are looked at
        return 0 if self.rows is None else self.rows.tokens.numel()


class Batcher:
    """Start it, make networks with `shared` for the threads of requests, and close it.

    `passes` and `rows` count what went through the network.
    """

    def __init__(self, network: LanguageModel) -> None:
        self.network = network
        self.passes = self.rows = self.running = 0
        self._waiting: list[_Call] = []
        self._closed, self._took = False, 0.0
        self._changed = threading.Condition()
        self._ready = threading.Event()
        self._cores = torch.get_num_threads() if next(network.parameters()).device.type == "cpu" else 1
        self._lanes = [
            threading.Thread(target=self._work, name="batcher", daemon=True) for _ in range(min(self._cores, _LANES))
        ]

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()
            self._ready.wait()  # the first keeps what is derived from the weights for all, until the end

    def close(self) -> None:
        """Whoever still waits is told that it was cancelled."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            left, self._waiting = self._waiting, []
        for call in left:
            call.error = Cancelled()
            call.done.set()
        for lane in self._lanes:
            lane.join()

    def join(self, by: int) -> None:
        """So many threads more, or fewer, are about to ask for passes: a pass waits for them a little."""
        with self._changed:
            self.running += by
            self._changed.notify_all()

    def shared(self, ticket: Ticket) -> LanguageModel:
        """The network for one request: the same weights and class, its passes computed here."""

        def features(
            tokens: Tensor,
            t: Tensor | None = None,
            *,
            segments: Tensor | None = None,
            output_mask: Tensor | None = None,
        ) -> Features:
            return self._ask(_Call(ticket, "features", NetworkInput(tokens, self._times(t), segments, output_mask)))

        def anchor_stage(tokens: Tensor, t: Tensor | None = None, *, segments: Tensor | None = None) -> AnchorState:
            return self._ask(_Call(ticket, "anchor_stage", NetworkInput(tokens, self._times(t), segments)))

        def denoise(
            stage: AnchorState,
            tokens: Tensor,
            t: Tensor | None = None,
            *,
            segments: Tensor | None = None,
            output_mask: Tensor | None = None,
        ) -> Tensor:
            return self._ask(
                _Call(ticket, "denoise", NetworkInput(tokens, self._times(t), segments, output_mask, stage))
            )

        def extend(tokens: Tensor, cache: Cache, *, every: bool = False) -> Features:
            if cache.length and tokens.shape[1] == 1 and not every:
                return self._ask(_Call(ticket, "extend", CachedReading(tokens, cache)))

            def alone() -> Features:
                self._count(len(tokens))
                return self.network.extend(tokens, cache, every=every)

            return self._ask(_Call(ticket, alone=alone))

        # A copy that shares its modules, so that it has whatever samplers ask for.
        network = copy.copy(self.network)
        vars(network).update(features=features, anchor_stage=anchor_stage, denoise=denoise, extend=extend)
        return network

    def _times(self, t: Tensor | None) -> Tensor | None:
        return t if self.network.time_conditioned else None

    def _ask(self, call: _Call) -> Any:
        call.ticket.check()
        call.ticket.calls += 1
        with self._changed:
            if self._closed:
                raise Cancelled
            self._waiting.append(call)
            self._changed.notify_all()
        call.done.wait()
        if call.error is not None:
            raise call.error
        return call.result

    def _work(self) -> None:
        threads = 0
        with self.network.inference_weights():
            self._ready.set()
            while calls := self._next():
                # This thread's own number, so that lanes do not share cores, and a single request has all of them.
                if threads != (threads := self._cores if self.running < 2 else self._cores // len(self._lanes)):
                    torch.set_num_threads(threads)
                start = time.monotonic()
                self._answer(calls)
                self._took = time.monotonic() - start

    def _next(self) -> list[_Call]:
        """The calls to compute now: those of the kind that has waited longest. Empty at the end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                # Threads that were answered together come back one after another: worth a quarter of a pass.
                alone = bool(self._waiting) and self._waiting[0].alone is not None
                patience = 0.0 if alone else min(_PATIENCE, self._took / 4)
                self._changed.wait_for(lambda: len(self._waiting) >= self._fraction or self._closed, patience)
                if self._closed:
                    return []
                if self._waiting:  # otherwise another lane was quicker
                    return self._taken()

    @property
    def _fraction(self) -> int:
        """Of the running requests, as many as one lane computes at once."""
        return max(1, -(-self.running // len(self._lanes)))

    def _taken(self) -> list[_Call]:
        first = self._waiting[0]
        taken, positions = [first], first.positions
        for call in self._waiting[1:]:
            if first.kind is not None and call.kind == first.kind:
                positions += call.positions
                if positions > MOST_POSITIONS or len(taken) >= self._fraction:
                    break
                taken.append(call)
        self._waiting = [call for call in self._waiting if call not in taken]
        return taken

    def _count(self, rows: int) -> None:
        with self._changed:
            self.passes += 1
            self.rows += rows

    def _answer(self, calls: list[_Call]) -> None:
        alive = []
        for call in calls:
            try:
                call.ticket.check()
                alive.append(call)
            except (Cancelled, TimedOut) as error:
                call.error = error
                call.done.set()
        if not alive:
            return
        try:
            results = self._computed(alive)
        except Exception as error:
            if len(alive) > 1:  # what is wrong with one request is not to be felt by others
                for call in alive:
                    self._answer([call])
                return
            alive[0].error = error
        else:
            for call, result in zip(alive, results, strict=True):
                call.result = result
        for call in alive:
            call.done.set()

    def _computed(self, calls: list[_Call]) -> Sequence[Any]:
        if calls[0].alone is not None:
            return [calls[0].alone()]
        self._count(sum(len(call.rows.tokens) for call in calls if call.rows is not None))
        readings = [call.rows for call in calls if isinstance(call.rows, CachedReading)]
        if readings:
            return read_together(self.network, readings)
        parts = [call.rows for call in calls if isinstance(call.rows, NetworkInput)]
        kind = calls[0].kind
        assert kind is not None
        if len(parts) == 1:
            return [_pass(self.network, kind, parts[0])]
        together = _together(parts, self.network.vocabulary.mask_id)
        return _apart(parts, together, _pass(self.network, kind, together))


def _pass(network: LanguageModel, kind: Kind, rows: NetworkInput) -> Any:
    tokens, t, segments, output_mask, stage = rows
    if kind == "features":
        return network.features(tokens, t, segments=segments, output_mask=output_mask)
    if kind == "anchor_stage":
        return network.anchor_stage(tokens, t, segments=segments)
    assert stage is not None
    return network.denoise(stage, tokens, t, segments=segments, output_mask=output_mask)


def _together(parts: Sequence[NetworkInput], mask_id: int) -> NetworkInput:
    """All rows in one batch, as long as the longest. Segments are left out where nothing needs them."""
    length = max(part.tokens.shape[1] for part in parts)

    def filled(values: Sequence[Tensor], fill: int | bool) -> Tensor:
        return torch.cat([F.pad(x, (0, length - x.shape[1]), value=fill) for x in values])

    plain = all(part.segments is None and part.tokens.shape[1] == length for part in parts)
    segments = [torch.zeros_like(p.tokens) if p.segments is None else p.segments.to(p.tokens.dtype) for p in parts]
    stages = [part.stage for part in parts if part.stage is not None]
    times = [part.t for part in parts if part.t is not None]
    every = all(part.output_mask is None for part in parts) and len({part.tokens.shape[1] for part in parts}) == 1
    return NetworkInput(
        filled([part.tokens for part in parts], mask_id),
        torch.cat(times) if times else None,
        None if plain else filled(segments, -1),
        None if every else filled([_wanted(part) for part in parts], False),
        AnchorState(*(_stacked(each, length) for each in zip(*stages, strict=True))) if stages else None,
    )


def _wanted(part: NetworkInput) -> Tensor:
    return torch.ones_like(part.tokens, dtype=torch.bool) if part.output_mask is None else part.output_mask


def _stacked(states: Sequence[Tensor], length: int) -> Tensor:
    """[B, L, D] each -> one, zeros at padding."""
    return torch.cat([F.pad(x, (0, 0, 0, length - x.shape[1])) for x in states])


def _apart(parts: Sequence[NetworkInput], together: NetworkInput, result: Any) -> list[Any]:
    """Each part's fraction of what was computed for all."""
    found: list[Any] = []
    row = position = 0
    for part in parts:
        rows, length = part.tokens.shape
        own = slice(row, row + rows)
        count = int(_wanted(part).sum())
        span = slice(position, position + count)
        row, position = own.stop, span.stop

        def final(x: Tensor, own: slice = own, span: slice = span, part: NetworkInput = part) -> Tensor:
            chosen = x[own] if together.output_mask is None else x[span]
            return chosen.view(*part.tokens.shape, -1) if part.output_mask is None else chosen

        if isinstance(result, Features):
            anchor = None if result.anchor is None else result.anchor[own, :length]
            found.append(Features(final(result.final), anchor))
        elif isinstance(result, AnchorState):
            found.append(AnchorState(*(state[own, :length] for state in result)))
        else:
            found.append(final(result))
    return found
