"""Completions as OpenAI's clients ask for them, from a model that may write in any order.

A stream brings the text up to the first blank. A sampler that may mask tokens again has no final text before its end,
and then all comes at once.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from adlm.samplers.filters import Sites
from adlm.samplers.sampler import Sampler
from adlm.samplers.state import Prediction, StepEvent
from adlm.samplers.stopping import added_text, cut_at
from adlm.serve.batcher import Ticket
from adlm.serve.limits import ServerLimits, check_given, most_tokens
from adlm.serve.requests import CompletionRequest
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
        tell: called with each further piece of a text that will not change.
    """

    def __init__(
        self,
        ask: CompletionRequest,
        prompt: str,
        sampler: Sampler,
        seed: int,
        limits: ServerLimits,
        tell: Tell | None = None,
    ) -> None:
        self.ask, self.prompt, self.sampler, self.seed = ask, prompt, sampler, seed
        self.limits, self.tell = limits, tell
        self.prompt_tokens = 0
        self._sent = [""] * (ask.n or 1)
        self._logprobs = _Logprobs(ask.logprobs) if ask.logprobs is not None else None

    def __call__(self, model: TextModel, ticket: Ticket) -> list[CompletedText]:
        ask, suffix, n = self.ask, self.ask.suffix or "", self.ask.n or 1
        check_given(model, self.limits, self.prompt, suffix)
        if suffix:
            model, self.sampler = model.read_for_holes(self.sampler)
        else:
            model = model.read_by(self.sampler)
        self.model = model
        limit = ask.max_tokens or most_tokens(model, self.limits, self.prompt, suffix)
        row = model.prompt_row(self.prompt, suffix=suffix, max_new_tokens=limit, sampler=self.sampler)
        self.given = list(row.before)
        self.prompt_tokens = len(self.given)
        canvas = model.rows.canvas([(row, k) for k in range(n)])
        self.open = canvas.open
        sample = model.fill(
            canvas,
            sampler=self.sampler,
            seed=self.seed,
            on_step=self._pass_on if self.tell is not None and not self.sampler.remasks else None,
            on_draw=self._logprobs,
            stop=model.stop_rule(ask.stops),
        )
        choices = [self._choice(k, tokens) for k, tokens in enumerate(sample.tokens.cpu())]
        if self.tell is not None:
            for k, choice in enumerate(choices):
                self.tell(k, choice.text[len(self._sent[k]) :])
        return choices

    def _written(self, k: int, tokens: Tensor) -> tuple[list[int], bool]:
        """The ids of a text up to its first blank or its end, and whether it has ended."""
        ids = tokens[self.open[k]].tolist()
        roles = self.model.tokenizer.roles
        for i, token in enumerate(ids):
            if token in (roles.mask_id, roles.eos_id):
                return ids[:i], token == roles.eos_id
        return ids, False

    def _text(self, ids: Sequence[int]) -> str:
        """What these add to the prompt."""
        return added_text(self.model.tokenizer.decode, self.given, ids)

    def _choice(self, k: int, tokens: Tensor) -> CompletedText:
        ids, ended = self._written(k, tokens)
        text, stopped = cut_at(self._text(ids), self.ask.stops)
        logprobs = None
        if self._logprobs is not None:
            offsets = [len(self._text(ids[:i])) for i in range(len(ids))]
            kept = [i for i, offset in enumerate(offsets) if not stopped or offset < len(text)]
            positions = self.open[k].nonzero()[:, 0].tolist()
            name = self.model.tokenizer.token
            logprobs = {
                "tokens": [name(ids[i]) for i in kept],
                **self._logprobs.of(k, [positions[i] for i in kept], name),
                "text_offset": [offsets[i] for i in kept],
            }
        return CompletedText(text, "stop" if ended or stopped else "length", len(ids), logprobs)

    def _pass_on(self, event: StepEvent) -> None:
        assert self.tell is not None
        if not event.fresh.any():
            return  # the prompt is being read
        held = max(map(len, self.ask.stops), default=1) - 1  # a stop sequence may have begun
        tokens = event.tokens.cpu()
        for k, sent in enumerate(self._sent):
            text, stopped = cut_at(self._text(self._written(k, tokens[k])[0]), self.ask.stops)
            if not stopped:
                text = text[: max(0, len(text) - held)].rstrip("\ufffd")  # half a character
            if text.startswith(sent) and text != sent:
                self.tell(k, text[len(sent) :])
                self._sent[k] = text


class _Logprobs:
    """How likely the model found the token drawn last at each position, before any filter; and its likeliest ones."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.drawn: Tensor | None = None  # [B, L]
        self.top: Tensor  # [B, L, k]
        self.ids: Tensor

    def __call__(self, sites: Sites, prediction: Prediction) -> None:
        logs = prediction.raw.log_softmax(-1)
        top = logs.topk(min(self.count, logs.shape[-1] - 1))
        if self.drawn is None:
            shape, k = sites.tokens.shape, top.values.shape[-1]
            self.drawn, self.top = logs.new_zeros(shape), logs.new_zeros(*shape, k)
            self.ids = sites.tokens.new_zeros(*shape, k)
        where = sites.row, sites.position
        self.drawn[where] = logs.gather(-1, prediction.drawn[:, None])[:, 0]
        self.top[where], self.ids[where] = top.values, top.indices

    def of(self, row: int, positions: Sequence[int], name: Callable[[int], str]) -> dict[str, Any]:
        """Of the tokens at these positions of a row, as OpenAI's clients read them."""
        if self.drawn is None or not positions:
            return {"token_logprobs": [], "top_logprobs": [] if self.count else None}
        names: list[dict[str, float]] = []
        for ids, values in zip(self.ids[row, positions].tolist(), self.top[row, positions].tolist(), strict=True):
            named: dict[str, float] = {}
            for i, value in zip(ids, values, strict=True):
                named.setdefault(name(i), round(value, 6))  # parts of characters may look the same
            names.append(named)
        drawn = [round(value, 6) for value in self.drawn[row, positions].tolist()]
        return {"token_logprobs": drawn, "top_logprobs": names if self.count else None}


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
