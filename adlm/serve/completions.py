"""Completions as OpenAI's clients ask for them, from a model that may write in any order.

A stream brings the text up to the first blank. A sampler that may mask tokens again has no final text before its end,
and then all comes at once.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from adlm.samplers.sampler import Sampler
from adlm.samplers.state import StepEvent
from adlm.samplers.stopping import StopRule, added_text, cut_at
from adlm.serve.chat import ChatPrompt, Message
from adlm.serve.constraint_requests import ConstrainedPrompt
from adlm.serve.limits import ServerLimits, check_given, most_tokens
from adlm.serve.logprobs import Logprobs, from_token
from adlm.serve.requests import CompletionRequest
from adlm.serve.ticket import Ticket
from adlm.text_model import TextModel
from adlm.text_rows import TextRow

# The number of a text among those of its prompt, what comes next in it, and the logprobs of its tokens.
Tell = Callable[[int, str, dict[str, Any] | None], None]
Prompt = str | list[Message]


class CompletedText(NamedTuple):
    """A finished text, with its number of tokens."""

    text: str
    finish: str  # "stop" or "length"
    tokens: int
    logprobs: dict[str, Any] | None = None


class Completion:
    """The work for one prompt: `n` choices.

    Args:
        prompt: a text, or the messages of a chat.
        tell: called with each further piece of a text that will not change.
    """

    def __init__(
        self,
        ask: CompletionRequest,
        prompt: Prompt,
        sampler: Sampler,
        seed: int,
        limits: ServerLimits,
        tell: Tell | None = None,
    ) -> None:
        self.ask, self.prompt, self.sampler, self.seed = ask, prompt, sampler, seed
        self.limits, self.tell = limits, tell
        self.prompt_tokens = 0
        self._sent = [""] * (ask.n or 1)
        self._shown = [0] * (ask.n or 1)  # tokens whose logprobs were sent
        self._logprobs = Logprobs(ask.logprobs) if ask.logprobs is not None else None
        self._space = False  # the first token brings the space at the end of the prompt

    def __call__(self, model: TextModel, ticket: Ticket) -> list[CompletedText]:
        if self.ask.suffix:
            model, self.sampler = model.read_for_holes(self.sampler)
        else:
            model = model.read_by(self.sampler)
        self.model, self._ends = model, {model.tokenizer.roles.eos_id}
        row, stop = self._row()
        self.given = list(row.before)
        self.prompt_tokens = len(self.given)
        canvas = model.rows.canvas([(row, k) for k in range(self.ask.n or 1)])
        self.open = canvas.open
        sample = model.fill(
            canvas,
            sampler=self.sampler,
            seed=self.seed,
            on_step=self._pass_on if self.tell is not None and not self.sampler.remasks else None,
            on_draw=self._logprobs,
            stop=stop,
        )
        choices = [self._choice(k, tokens) for k, tokens in enumerate(sample.tokens.cpu())]
        if self.tell is not None:
            for k, choice in enumerate(choices):
                self.tell(k, choice.text[len(self._sent[k]) :], from_token(choice.logprobs, self._shown[k]))
        return choices

    def _row(self) -> tuple[TextRow, StopRule | None]:
        """The row to be filled, and what ends it."""
        model, ask, suffix = self.model, self.ask, self.ask.suffix or ""
        if not isinstance(self.prompt, str):
            chat = ChatPrompt.of(model, self.prompt)
            self._ends |= chat.specials.keys()
            check_given(model, self.limits, chat.ids)
            limit = ask.max_tokens or most_tokens(model, self.limits, chat.ids)
            row = model.prompt_row(chat.ids, max_new_tokens=limit, sampler=self.sampler)
            return row, chat.stop_rule(model.tokenizer, ask.stops)
        check_given(model, self.limits, self.prompt, suffix)
        limit, stop = ask.max_tokens or most_tokens(model, self.limits, self.prompt, suffix), model.stop_rule(ask.stops)
        if ask.constraint is None:
            return model.prompt_row(self.prompt, suffix=suffix, max_new_tokens=limit, sampler=self.sampler), stop
        held = ConstrainedPrompt.of(model, self.prompt, ask.constraint, limit, self.limits)
        self._space = held.space
        row = model.prompt_row(held.ids, max_new_tokens=held.length, sampler=self.sampler)
        return row._replace(holes=[(row.start, row.end, held.language)]), stop

    def _written(self, k: int, tokens: Tensor) -> tuple[list[int], bool]:
        """The ids of a text up to its first blank or its end, and whether it has ended."""
        ids = tokens[self.open[k]].tolist()
        for i, token in enumerate(ids):
            if token == self.model.tokenizer.mask_id or token in self._ends:
                return ids[:i], token in self._ends
        return ids, False

    def _text(self, ids: Sequence[int]) -> str:
        """What these add to the prompt."""
        text = added_text(self.model.tokenizer.decode, self.given, ids)
        return text.removeprefix(" ") if self._space else text

    def _choice(self, k: int, tokens: Tensor) -> CompletedText:
        ids, ended = self._written(k, tokens)
        text, stopped = cut_at(self._text(ids), self.ask.stops)
        logprobs = None
        if self._logprobs is not None:
            offsets = [len(self._text(ids[:i])) for i in range(len(ids))]
            kept = [offset for offset in offsets if not stopped or offset < len(text)]
            logprobs = self._logprobs_of(k, ids, 0, kept)
        chosen = self.ask.constraint is not None and self.ask.constraint.choice is not None
        return CompletedText(text, "stop" if ended or stopped or chosen else "length", len(ids), logprobs)

    def _logprobs_of(self, k: int, ids: Sequence[int], first: int, offsets: Sequence[int]) -> dict[str, Any]:
        """Of the tokens from number `first` on that begin at these offsets of the text."""
        assert self._logprobs is not None
        positions = self.open[k].nonzero()[first : first + len(offsets), 0].tolist()
        name = self.model.tokenizer.token
        return {
            "tokens": [name(token) for token in ids[first : first + len(offsets)]],
            **self._logprobs.of(k, positions, name),
            "text_offset": list(offsets),
        }

    def _pass_on(self, event: StepEvent) -> None:
        assert self.tell is not None
        if not event.fresh.any():
            return  # the prompt is being read
        held = max(map(len, self.ask.stops), default=1) - 1  # a stop sequence may have begun
        tokens = event.tokens.cpu()
        for k, sent in enumerate(self._sent):
            ids = self._written(k, tokens[k])[0]
            text, stopped = cut_at(self._text(ids), self.ask.stops)
            if not stopped:
                text = text[: max(0, len(text) - held)].rstrip("\ufffd")  # half a character
            if text.startswith(sent) and text != sent:
                self._sent[k] = text
                self.tell(k, text[len(sent) :], self._logprobs_within(k, ids, text))

    def _logprobs_within(self, k: int, ids: Sequence[int], text: str) -> dict[str, Any] | None:
        """Of the tokens that end within the text and were not sent yet."""
        if self._logprobs is None:
            return None
        first, offsets = self._shown[k], []
        begin = len(self._text(ids[:first]))
        for i in range(first, len(ids)):
            end = len(self._text(ids[: i + 1]))
            if end > len(text):
                break
            offsets.append(begin)
            begin = end
        self._shown[k] += len(offsets)
        return self._logprobs_of(k, ids, first, offsets) if offsets else None


class TextWire:
    """Completions on the wire.

    Args:
        head: fields of the answer and of every event of a stream.
        echoed: the prompts, if they are part of the texts.
    """

    def __init__(self, head: dict[str, Any], echoed: Sequence[str] | None) -> None:
        self.head, self.echoed = head, echoed

    def opening(self, prompt: int, index: int) -> dict[str, Any] | None:
        """The first event of a text: what stands before everything else."""
        return None if self.echoed is None else self.piece(index, self.echoed[prompt])

    def piece(self, index: int, text: str, logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
        """One event of a stream."""
        return {**self.head, "choices": [{"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish}]}

    def answer(self, found: Sequence[Sequence[CompletedText]]) -> dict[str, Any]:
        """The whole of it at once."""
        texts = [
            ("" if self.echoed is None else self.echoed[i], choice) for i, each in enumerate(found) for choice in each
        ]
        choices = [
            {"text": before + own.text, "index": index, "logprobs": own.logprobs, "finish_reason": own.finish}
            for index, (before, own) in enumerate(texts)
        ]
        return {**self.head, "choices": choices}


def usage(parts: Sequence[tuple[Completion, Sequence[CompletedText]]]) -> dict[str, int]:
    """The numbers of tokens read and written, over all choices."""
    read = sum(part.prompt_tokens for part, _ in parts)
    written = sum(choice.tokens for _, found in parts for choice in found)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
