"""A text while it appears, as events for a page: the canvas first, then what each step changed and expected."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.pieces import Pieces, anchor_rule, anchors_by
from adlm.randomness import Noise
from adlm.samplers.canvas import Canvas
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import SLICE, SamplerState, StepEvent
from adlm.serve.batcher import Ticket
from adlm.serve.limits import ServerLimits, check_given, most_tokens
from adlm.serve.requests import GenerateRequest
from adlm.serve.watched import shown
from adlm.text_model import TextModel

_NOTICEABLE = 0.02  # a smaller change of the likeliest token's probability is not worth an event
Ranking = list[tuple[str, float]]


class Appearance:
    """The work of one request, that tells its events while it goes on."""

    def __init__(self, ask: GenerateRequest, limits: ServerLimits, tell: Callable[[dict[str, Any]], None]) -> None:
        self.ask, self.limits, self.tell = ask, limits, tell

    def __call__(self, model: TextModel, ticket: Ticket) -> None:
        ask, began = self.ask, time.perf_counter()
        self.model, self.mask_id = model, model.tokenizer.mask_id
        self.pieces, self.rule = Pieces(model.tokenizer), anchor_rule(model.config)
        roles = model.tokenizer.roles
        self.special = frozenset({roles.eos_id, roles.bos_id, roles.pad_id})
        self.typed: list[int] = []  # how many tokens each text in a canvas has
        self.guesses = _Guesses(model, ask.guesses, self.text) if ask.guesses else None
        check_given(model, self.limits, ask.prompt, ask.suffix, ask.text or "")
        named = model.sampler(ask.sampler, **ask.options)
        self.steps = getattr(named, "steps", None)
        sampler = shown(named, self._begin)
        if ask.canvas is not None:
            text = self._go_on(ask.canvas, sampler)
        elif ask.text is not None:
            (text,) = model.infill(ask.text, seed=ask.seed, sampler=sampler, watch=self._step)
        else:
            (text,) = model.generate(
                ask.prompt,
                suffix=ask.suffix,
                seed=ask.seed,
                max_new_tokens=ask.max_tokens or most_tokens(model, self.limits, ask.prompt, ask.suffix),
                sampler=sampler,
                watch=self._step,
            )
        seconds, length = round(time.perf_counter() - began, 3), self._length_in_the_end()
        self.tell({"type": "done", "text": text, "seconds": seconds, "calls": ticket.calls, "length": length})

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

    def _row_of(self, positions: Sequence[int | str | None]) -> list[int]:
        """The tokens of a canvas, texts among them as so many as they have."""
        row: list[int] = []
        asked, most = "asked to go on from a canvas", self.model.config.vocabulary.size
        for position in positions:
            if isinstance(position, str):
                found = self.model.tokenizer.encode(position).tolist()
                if not found:
                    raise ConfigError(asked, "a text that has no token", "write something else there")
                self.typed.append(len(found))
                row += found
            elif position is not None and (position >= most or position == self.mask_id):
                raise ConfigError(asked, "an id that no token has", f"give ids below {most}, or null")
            else:
                row.append(self.mask_id if position is None else position)
        return row

    def _go_on(self, positions: Sequence[int | str | None], sampler: Sampler) -> str:
        model, rows = self.model, self.model.config.packing
        row = self._row_of(positions)
        given = len(row)
        if given > max(rows.length, self.limits.tokens):
            raise ConfigError(f"asked to go on from {given} tokens", f"rows have {rows.length}", "shorten it")
        # As `TextModel.generate` has it: where rows were always full, the rest is shown and stays blank.
        if not model.network.causal and (rows.padding_counts or not rows.pads):
            row += [self.mask_id] * (rows.length - len(row))
        tokens = torch.tensor([row])
        frozen = (tokens != self.mask_id) | (torch.arange(len(row)) >= given)
        device = next(model.network.parameters()).device
        canvas = Canvas(tokens, frozen, torch.zeros(1, dtype=torch.long)).to(device)
        end = model.tokenizer.roles.eos_id
        noise = Noise(self.ask.seed).fork("sample")
        filled = sampler.sample(model.network, canvas, noise=noise, watch=self._step, stop=end).tokens[0].tolist()
        begin, _ = rows.frame(model.tokenizer.roles)
        written = filled[:given]
        start = len(begin) if written[: len(begin)] == list(begin) else 0
        ends = [i for i, token in enumerate(written) if i >= start and token == end]
        return model.tokenizer.decode([t for t in written[start : ends[0] if ends else None] if t != self.mask_id])

    def _begin(self, board: SamplerState) -> None:
        row, open_ = board.tokens[0].tolist(), board.open[0].tolist()
        # Behind the last place that is given or to be written, nothing will happen.
        self.length = max((i + 1 for i, t in enumerate(row) if open_[i] or t != self.mask_id), default=0)
        self.limits.check("tokens", sum(open_), param="max_tokens")
        self.before = row
        if self.guesses is not None:
            self.guesses.watch(board)
        tokens = [
            [None, "", "blank" if open_[i] else "given"] if t == self.mask_id else [t, self.text(t), "given"]
            for i, t in enumerate(row[: self.length])
        ]
        anchored = self.model.network.stages == 2
        begun = {"type": "canvas", "tokens": tokens, "steps": self.steps, "anchored": anchored}
        self.tell({**begun, "typed": self.typed} if self.typed else begun)

    def _step(self, view: StepEvent) -> None:
        now = view.tokens[0].tolist()
        changes = [
            [i, None, ""] if token == self.mask_id else [i, token, self.text(token)]
            for i, (token, before) in enumerate(zip(now[: self.length], self.before, strict=False))
            if token != before
        ]
        guesses = [] if self.guesses is None else self.guesses.since()
        self.before = now
        if changes or guesses:
            event = {"type": "step", "step": view.step, "changes": changes, "guesses": guesses}
            self.tell({**event, "anchors": self._anchors(now)})

    def _anchors(self, row: Sequence[int]) -> list[int]:
        """By the model's rule; of a model with an anchor stage, those that it foresaw. In a short row that rule has
        nearly every token."""
        valid = torch.tensor([[token != self.mask_id and token not in self.special for token in row]])
        found: list[int] = anchors_by(self.rule, torch.tensor([row]), valid)[0, : self.length].nonzero()[:, 0].tolist()
        if self.guesses is None or self.model.network.stages < 2:
            return found
        return [i for i in found if self.guesses.foreseen(i) == self.text(row[i])]


class _Guesses:
    """What the model expected at the blanks, as the passes of the sampler found them: no pass is made for it.

    The network is asked for features at all blanks of the one row instead of those alone where something is written.
    """

    def __init__(self, model: TextModel, count: int, text: Callable[[int], str]) -> None:
        self.network, self.count, self.text = model.network, count, text
        self.mask_id = model.tokenizer.mask_id
        self.said: dict[int, tuple[Ranking, Ranking]] = {}
        self.fresh: list[tuple[int, Ranking, Ranking]] = []

    def watch(self, board: SamplerState) -> None:
        """Listen to the passes of this board: samplers ask the network through these three."""
        network, open_, length = self.network, board.open[:1].clone(), board.tokens.shape[1]
        features, denoise, extend = network.features, getattr(network, "denoise", None), network.extend

        def all_blanks(tokens: Tensor, output_mask: Tensor) -> Tensor:
            return output_mask | ((tokens == self.mask_id) & open_)

        def heard_features(tokens: Tensor, t: Tensor | None = None, *, output_mask: Tensor, **more: Any) -> Any:
            if tokens.shape[1] != length:  # a window, at a place that is not known here
                return features(tokens, t, output_mask=output_mask, **more)
            wider = all_blanks(tokens, output_mask)
            found = features(tokens, t, output_mask=wider, **more)
            anchor = None if found.anchor is None else found.anchor[wider]
            self._hear(tokens, wider, found.final, anchor)
            return found._replace(final=found.final[output_mask[wider]])

        def heard_denoise(
            stage: Any, tokens: Tensor, t: Tensor | None = None, *, output_mask: Tensor, **more: Any
        ) -> Any:
            assert denoise is not None
            if tokens.shape[1] != length:
                return denoise(stage, tokens, t, output_mask=output_mask, **more)
            wider = all_blanks(tokens, output_mask)
            final = denoise(stage, tokens, t, output_mask=wider, **more)
            self._hear(tokens, wider, final, stage.anchor[wider])
            return final[output_mask[wider]]

        def heard_extend(tokens: Tensor, cache: Any, **more: Any) -> Any:
            found = extend(tokens, cache, **more)
            anchor = None if found.anchor is None else found.anchor[:, -1]
            self._compare([cache.length - 1], found.final, anchor)
            return found

        vars(board.model).update(features=heard_features, denoise=heard_denoise, extend=heard_extend)

    def foreseen(self, position: int) -> str | None:
        """The anchor stage's first candidate, as it was last asked for this place."""
        anchor, _ = self.said.get(position, ([], []))
        return anchor[0][0] if anchor else None

    def since(self) -> list[tuple[int, Ranking, Ranking]]:
        """What has changed noticeably since it was asked for last: place, the anchor stage's, the final one's."""
        found, self.fresh = self.fresh, []
        return found

    def _hear(self, tokens: Tensor, where: Tensor, final: Tensor, anchor: Tensor | None) -> None:
        blank = (tokens == self.mask_id)[where]
        positions = where[0].nonzero()[:, 0][blank].tolist()
        self._compare(positions, final[blank], None if anchor is None else anchor[blank])

    def _compare(self, positions: list[int], final: Tensor, anchor: Tensor | None) -> None:
        finals = self._rankings(self.network.logits, final)
        anchors: list[Ranking] = [[] for _ in positions]
        if anchor is not None:
            anchors = self._rankings(lambda part: _without(self.network, part, self.mask_id), anchor)
        for position, *now in zip(positions, anchors, finals, strict=True):
            rankings = (now[0], now[1])
            if position not in self.said or _differ(self.said[position], rankings):
                self.said[position] = rankings
                self.fresh.append((position, *rankings))

    def _rankings(self, logits: Callable[[Tensor], Tensor], features: Tensor) -> list[Ranking]:
        size = self.network.vocabulary.size
        found: list[Ranking] = []
        for part in features.split(max(1, SLICE // size)):
            top = logits(part).softmax(-1).topk(min(self.count, size - 1))
            for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True):
                found.append([(self.text(i), round(p, 3)) for i, p in zip(ids, values, strict=True)])
        return found


def _without(network: LanguageModel, anchor: Tensor, mask_id: int) -> Tensor:
    """The anchor stage's logits without the mask's own."""
    return network.anchor_logits(anchor).index_fill(-1, torch.tensor([mask_id], device=anchor.device), -torch.inf)


def _differ(before: tuple[Ranking, Ranking], now: tuple[Ranking, Ranking]) -> bool:
    """Noticeably: in the likeliest token of a stage, or in its probability."""
    pairs = [(a[0], b[0]) for a, b in zip(before, now, strict=True) if a and b]
    return any(a[0] != b[0] or abs(a[1] - b[1]) > _NOTICEABLE for a, b in pairs)
