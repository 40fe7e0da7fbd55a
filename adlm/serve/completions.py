"""Completions as OpenAI's clients ask for them, from a model that may write in any order.

A stream brings what stands firm: the text up to the first blank. A sampler that may take tokens back has nothing firm
before its end, and then all comes at once.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adlm.samplers.state import SLICE, SamplerState, StepEvent
from adlm.serve.batcher import Ticket
from adlm.serve.limits import ServerLimits, check_given, most_tokens
from adlm.serve.requests import CompletionRequest
from adlm.serve.watched import shown, takes_back
from adlm.text_model import TextModel

Tell = Callable[[int, str], None]  # the number of a text among those of its prompt, and what comes next in it


class CompletedText(NamedTuple):
    text: str
    finish: str  # "stop" or "length"
    tokens: int
    logprobs: dict[str, Any] | None = None


class Completion:
    """The work for one prompt: `n` choices.

    Args:
        tell: called with each further piece of a text that stands firm.
    """

    def __init__(
        self, ask: CompletionRequest, prompt: str, seed: int, limits: ServerLimits, tell: Tell | None = None
    ) -> None:
        self.ask, self.prompt, self.seed, self.limits, self.tell = ask, prompt, seed, limits, tell
        self.prompt_tokens = 0
        self._sent = [""] * (ask.n or 1)
        self._features: Tensor | None = None  # [B, L, D], what the last draw at each place was made from
        self._known: Tensor
        self._said: dict[tuple[int, int], tuple[float, dict[str, float]]] = {}

    def __call__(self, model: TextModel, ticket: Ticket) -> list[CompletedText]:
        ask = self.ask
        self.model = model
        check_given(model, self.limits, self.prompt, ask.suffix or "")
        self.given = model.tokenizer.encode(self.prompt).tolist()
        self.prompt_tokens = len(self.given)
        sampler = model.sampler(ask.sampler, **ask.options)
        firm = self.tell is not None and not takes_back(sampler)
        model.generate(
            self.prompt,
            suffix=ask.suffix or "",
            n=ask.n or 1,
            seed=self.seed,
            max_new_tokens=ask.max_tokens or most_tokens(model, self.limits, self.prompt, ask.suffix or ""),
            sampler=shown(sampler, self._begin, None if ask.logprobs is None else self._drawn),
            watch=self._pass_on if firm else None if ask.logprobs is None else self._look_up,
        )
        choices = [self._choice(row) for row in range(ask.n or 1)]
        if self.tell is not None:
            for row, choice in enumerate(choices):
                self.tell(row, choice.text[len(self._sent[row]) :])
        return choices

    def _begin(self, board: SamplerState) -> None:
        self.board, self.open = board, board.open.clone()

    def _written(self, row: int) -> tuple[list[int], bool]:
        """The ids of a text up to its first blank or its end, and whether it has ended."""
        ids = self.board.tokens[row, self.open[row]].tolist()
        roles = self.model.tokenizer.roles
        for i, token in enumerate(ids):
            if token in (roles.mask_id, roles.eos_id):
                return ids[:i], token == roles.eos_id
        return ids, False

    def _text(self, ids: Sequence[int]) -> str:
        """What these add to the prompt: many a decoder takes the first token's space away."""
        decode = self.model.tokenizer.decode
        before, whole = decode(self.given), decode([*self.given, *ids])
        return whole[len(before) :] if whole.startswith(before) else decode(ids)

    def _cut(self, text: str) -> tuple[str, bool]:
        """Up to the first of the words to stop at, and whether there was one."""
        positions = [text.find(stop) for stop in self.ask.stops]
        first = min((position for position in positions if position >= 0), default=-1)
        return (text, False) if first < 0 else (text[:first], True)

    def _choice(self, row: int) -> CompletedText:
        ids, ended = self._written(row)
        text, stopped = self._cut(self._text(ids))
        logprobs = None if self.ask.logprobs is None else self._logprobs(row, ids, len(text) if stopped else None)
        return CompletedText(text, "stop" if ended or stopped else "length", len(ids), logprobs)

    def _pass_on(self, view: StepEvent) -> None:
        assert self.tell is not None
        if not view.fresh.any():
            return  # the prompt is being read
        held = max(map(len, self.ask.stops), default=1) - 1  # a word to stop at may have begun
        for row, sent in enumerate(self._sent):
            text, stopped = self._cut(self._text(self._written(row)[0]))
            if not stopped:
                text = text[: max(0, len(text) - held)].rstrip("\ufffd")  # half a character
            if text.startswith(sent) and text != sent:
                self.tell(row, text[len(sent) :])
                self._sent[row] = text

    def _drawn(self, final: Tensor, where: Tensor) -> None:
        """Kept for each place until it is written: some samplers do that steps later."""
        if self._features is None or self._features.shape[:2] != where.shape:
            self._features = final.new_zeros(*where.shape, final.shape[-1])
            self._known = torch.zeros_like(where)
        self._features[where], self._known[where] = final, True

    def _look_up(self, view: StepEvent) -> None:
        """How likely the model found what this step has written, before any filter."""
        if self._features is None:
            return
        tokenizer, network = self.model.tokenizer, self.model.network
        size = max(1, SLICE // network.vocabulary.size)
        all_rows, all_positions = (view.fresh & self._known).nonzero(as_tuple=True)
        for rows, positions in zip(all_rows.split(size), all_positions.split(size), strict=True):
            logs = network.logits(self._features[rows, positions]).log_softmax(-1)
            own = logs.gather(-1, view.tokens[rows, positions][:, None])[:, 0].tolist()
            top = logs.topk(min(self.ask.logprobs or 0, logs.shape[-1] - 1))
            for row, position, value, best, ids in zip(
                rows.tolist(), positions.tolist(), own, top.values.tolist(), top.indices.tolist(), strict=True
            ):
                names: dict[str, float] = {}
                for i, log in zip(ids, best, strict=True):
                    names.setdefault(tokenizer.token(i), round(log, 6))  # parts of characters may look the same
                self._said[row, position] = round(value, 6), names

    def _logprobs(self, row: int, ids: Sequence[int], most: int | None) -> dict[str, Any]:
        positions = self.open[row].nonzero()[:, 0].tolist()[: len(ids)]
        offsets = [len(self._text(ids[:i])) for i in range(len(ids))]
        kept = [i for i, offset in enumerate(offsets) if most is None or offset < most]
        said = [self._said[row, positions[i]] for i in kept]
        return {
            "tokens": [self.model.tokenizer.token(ids[i]) for i in kept],
            "token_logprobs": [value for value, _ in said],
            "top_logprobs": [names for _, names in said] if self.ask.logprobs else None,
            "text_offset": [offsets[i] for i in kept],
        }


def answer(
    ask: CompletionRequest, parts: Sequence[tuple[Completion, Sequence[CompletedText]]], head: dict[str, Any]
) -> dict[str, Any]:
    """The whole of it at once."""
    choices = [
        {
            "text": part.prompt + choice.text if ask.echo else choice.text,
            "index": i * len(found) + k,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish,
        }
        for i, (part, found) in enumerate(parts)
        for k, choice in enumerate(found)
    ]
    return {**head, "choices": choices, "usage": usage(parts)}


def piece(head: dict[str, Any], index: int, text: str, finish: str | None = None) -> dict[str, Any]:
    """One event of a stream."""
    return {**head, "choices": [{"text": text, "index": index, "logprobs": None, "finish_reason": finish}]}


def usage(parts: Sequence[tuple[Completion, Sequence[CompletedText]]]) -> dict[str, int]:
    read = sum(part.prompt_tokens for part, _ in parts)
    written = sum(choice.tokens for _, found in parts for choice in found)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
