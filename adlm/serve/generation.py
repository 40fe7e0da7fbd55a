"""A text while it is written, as events: the canvas first, then what each step changed and predicted."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from adlm.errors import ConfigError, OutOfRange
from adlm.pieces import Pieces, anchor_rule, anchors_in
from adlm.samplers.blocks import block_layout
from adlm.samplers.canvas import Canvas
from adlm.samplers.filters import Sites
from adlm.samplers.patterns import pattern_time
from adlm.samplers.recording import BlankPredictions, RecordingNetwork
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import Prediction, StepEvent
from adlm.serve.constraint_requests import wordings
from adlm.serve.limits import ServerLimits, check_given, most_tokens
from adlm.serve.requests import GenerateRequest
from adlm.serve.ticket import Ticket
from adlm.text_model import TextModel
from adlm.text_rows import TextRow

_NOTICEABLE = 0.02  # a smaller change of the likeliest token's probability is not worth an event
Ranking = list[tuple[str, float]]


class GenerationJob:
    """The work of one `/v1/generate` request, which tells its events as it proceeds."""

    def __init__(
        self, ask: GenerateRequest, sampler: Sampler, limits: ServerLimits, tell: Callable[[dict[str, Any]], None]
    ) -> None:
        self.ask, self.sampler, self.limits, self.tell = ask, sampler, limits, tell

    def __call__(self, model: TextModel, ticket: Ticket) -> None:
        ask, self.began = self.ask, time.perf_counter()
        self.model, sampler = self._reading(model)
        model, self.mask_id = self.model, model.tokenizer.mask_id
        self.pieces, self.rule = Pieces(model.tokenizer), anchor_rule(model.config)
        roles = model.tokenizer.roles
        self.special = frozenset({roles.eos_id, roles.bos_id, roles.pad_id})
        self.typed: list[int] = []  # how many tokens each text in a canvas has
        self.drawn: dict[int, tuple[int, float]] = {}  # by position: the token drawn last, and its probability
        self.predictions = _Predictions(ask.predictions, self.text) if ask.predictions else None
        check_given(model, self.limits, ask.prompt, ask.suffix, ask.text or "")
        row = self._row()
        canvas = model.rows.canvas([(row, 0)])
        self._begin(canvas, sampler)
        network = None
        if self.predictions is not None:
            network = RecordingNetwork(model.network, canvas, self.predictions.hear)
        sample = model.fill(
            canvas, sampler=sampler, seed=ask.seed, network=network, on_step=self._step, on_draw=self._draw,
            stop=roles.eos_id,
        )  # fmt: skip
        text = model.rows.text(row, sample.tokens[0].tolist())
        length, open_ = self._length_in_the_end(), canvas.open[0].tolist()
        written = sum(open_[i] and self.before[i] != self.mask_id for i in range(length))
        done = {"text": text, "seconds": self._seconds(), "calls": ticket.calls, "tokens": written, "length": length}
        self.tell({"type": "done", **done})

    def _reading(self, model: TextModel) -> tuple[TextModel, Sampler]:
        """The model as the sampler reads it; where something stands behind a blank, as it fills holes."""
        given = self.ask.canvas or ()
        blank = given.index(None) if None in given else len(given)
        if self.ask.text is not None or any(place is not None for place in given[blank:]):
            return model.read_for_holes(self.sampler)
        return model.read_by(self.sampler), self.sampler

    def _seconds(self) -> float:
        return round(time.perf_counter() - self.began, 3)

    def _row(self) -> TextRow:
        """The row to fill: of a canvas, a text with holes, or a prompt."""
        ask, model = self.ask, self.model
        if ask.canvas is not None:
            return model.rows.resuming(self._ids_of(ask.canvas))
        if ask.text is not None:
            with pattern_time(self.limits.pattern_seconds):
                return model.infill_row(ask.text, seed=ask.seed, constraints=wordings(ask.constraints, self.limits))
        limit = ask.max_tokens or most_tokens(model, self.limits, ask.prompt, ask.suffix)
        return model.prompt_row(ask.prompt, suffix=ask.suffix, max_new_tokens=limit, sampler=self.sampler)

    def text(self, token: int) -> str:
        return "·" if token in self.special else self.pieces[token]

    def _length_in_the_end(self) -> int:
        """Positions up to an end token behind which nothing was said; blanks that it left open are no part of the
        text."""
        row, roles = self.before[: self.length], self.model.tokenizer.roles
        begin, _ = self.model.config.packing.frame(roles)
        start = len(begin) if row[: len(begin)] == list(begin) else 0
        silent = self.special | {self.mask_id}
        for i, token in enumerate(row):
            if token == self.mask_id:
                break
            if i >= start and token == roles.eos_id and silent.issuperset(row[i:]):
                return i + 1
        return self.length

    def _ids_of(self, canvas: Sequence[int | str | None]) -> list[int]:
        """The tokens of a canvas, the mask at blanks; a text among them is as many as it has."""
        row: list[int] = []
        size, most = self.model.config.vocabulary.size, max(self.model.config.packing.length, self.limits.tokens)
        for given in canvas:
            if isinstance(given, str):
                found = self.model.tokenizer.encode_known(given, first=not row).tolist()
                if not found:
                    raise ConfigError(f"the text {given!r} in the canvas has no token", subject="canvas")
                self.typed.append(len(found))
                row += found
            elif given is not None and (given >= size or given == self.mask_id):
                raise OutOfRange("canvas", given, f"a token id below {size}, or null")
            else:
                row.append(self.mask_id if given is None else given)
        if len(row) > most:
            raise OutOfRange("canvas", len(row), f"at most {most} tokens")
        return row

    def _begin(self, canvas: Canvas, sampler: Sampler) -> None:
        row, open_ = canvas.tokens[0].tolist(), canvas.open[0].tolist()
        # Behind the last position that is given or to be written, nothing will happen.
        self.length = max((i + 1 for i, t in enumerate(row) if open_[i] or t != self.mask_id), default=0)
        self.limits.check("tokens", sum(open_), param="max_tokens")
        self.before = row
        tokens = [
            [None, "", "blank" if open_[i] else "given"] if t == self.mask_id else [t, self.text(t), "given"]
            for i, t in enumerate(row[: self.length])
        ]
        steps, anchored = getattr(self.sampler, "steps", None), self.model.network.stages > 1
        layout = block_layout(sampler, self.model.network)
        first = open_.index(True) if True in open_ else 0
        blocks = None if layout is None else {"size": layout.size, "first": layout.first(first)}
        begun = {"type": "canvas", "tokens": tokens, "steps": steps, "anchored": anchored, "blocks": blocks}
        self.tell({**begun, "typed": self.typed} if self.typed else begun)

    def _step(self, event: StepEvent) -> None:
        now = event.tokens[0].tolist()
        moved = [i for i, before in enumerate(self.before[: self.length]) if now[i] != before]
        changes = [[i, None, ""] if now[i] == self.mask_id else [i, now[i], self.text(now[i])] for i in moved]
        predictions = [] if self.predictions is None else self.predictions.since()
        self.before = now
        if changes or predictions:
            told = {"type": "step", "step": event.step, "seconds": self._seconds(), "changes": changes}
            sure = [[i, round(self.drawn[i][1], 4)] for i in moved if i in self.drawn and self.drawn[i][0] == now[i]]
            self.tell({**told, "probabilities": sure, "predictions": predictions, "anchors": self._anchors(now)})

    def _draw(self, sites: Sites, prediction: Prediction) -> None:
        found = zip(sites.position.tolist(), prediction.drawn.tolist(), prediction.own_confidence.tolist(), strict=True)
        self.drawn.update({position: (token, p) for position, token, p in found})

    def _anchors(self, row: Sequence[int]) -> list[int]:
        """Of a model with an anchor stage: by its rule, those that it foresaw. In a short row that rule has nearly
        every token."""
        if self.model.network.stages < 2:
            return []
        found = [i for i in anchors_in(self.rule, row, self.special | {self.mask_id}) if i < self.length]
        if self.predictions is None:
            return found
        return [i for i in found if self.predictions.foreseen(i) == self.text(row[i])]


class _Predictions:
    """What the model expected at the blanks, as the passes of the sampler found it: no pass is made for it."""

    def __init__(self, count: int, text: Callable[[int], str]) -> None:
        self.count, self.text = count, text
        self.said: dict[int, tuple[Ranking, Ranking]] = {}
        self.fresh: list[tuple[int, Ranking, Ranking]] = []

    def hear(self, found: BlankPredictions) -> None:
        """Take what a pass predicted."""
        finals = self._rankings(found.logits)
        anchors = [[] for _ in finals] if found.anchor is None else self._rankings(found.anchor)
        for position, *now in zip(found.positions, anchors, finals, strict=True):
            rankings = (now[0], now[1])
            if position not in self.said or _differ(self.said[position], rankings):
                self.said[position] = rankings
                self.fresh.append((position, *rankings))

    def foreseen(self, position: int) -> str | None:
        """The anchor stage's first candidate, as it was last asked for this position."""
        anchor, _ = self.said.get(position, ([], []))
        return anchor[0][0] if anchor else None

    def since(self) -> list[tuple[int, Ranking, Ranking]]:
        """What has changed noticeably since the last call: position, the anchor stage's ranking, the final one's."""
        found, self.fresh = self.fresh, []
        return found

    def _rankings(self, logits: Tensor) -> list[Ranking]:
        top = logits.softmax(-1).topk(min(self.count, logits.shape[-1] - 1))
        return [
            [(self.text(i), round(p, 3)) for i, p in zip(ids, values, strict=True)]
            for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]


def _differ(before: tuple[Ranking, Ranking], now: tuple[Ranking, Ranking]) -> bool:
    """Noticeably: in the likeliest token of a stage, or in its probability."""
    pairs = [(a[0], b[0]) for a, b in zip(before, now, strict=True) if a and b]
    return any(a[0] != b[0] or abs(a[1] - b[1]) > _NOTICEABLE for a, b in pairs)
