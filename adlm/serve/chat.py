"""Chats as OpenAI's clients ask for them: messages become a prompt by the model's own template."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field

from adlm.data.chat_template import rendered_chat
from adlm.data.tokenizer import Tokenizer
from adlm.samplers.stopping import StopRule
from adlm.serve.limits import RequestRefused
from adlm.serve.requests import CompletionRequest, Count, Name, Sampling, Seed, Stop, StreamOptions, StrictModel, Text
from adlm.text_model import TextModel

if TYPE_CHECKING:
    from adlm.serve.completions import CompletedText

_TOKENS = {"bos_token": "bos_id", "eos_token": "eos_id", "pad_token": "pad_id"}


class TextPart(StrictModel):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class Message(StrictModel):
    """What one side said."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[TextPart], Field(min_length=1, max_length=100)]
    name: Name | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(Sampling):
    """As OpenAI's clients ask. `sampler` and `steps` are further fields of this server."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=1000)]
    max_tokens: Count | None = Field(None, description="by default up to the model's length")
    max_completion_tokens: Count | None = Field(None, description="the newer name of max_tokens")
    n: Count | None = None
    seed: Seed | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    user: Name | None = Field(None, description="accepted; it changes nothing and is not kept")

    def completion(self) -> CompletionRequest:
        """The same wishes for a completion, whose prompt is made of the messages later."""
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise RequestRefused(400, "give max_tokens or max_completion_tokens, not both", param="max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestRefused(400, "top_logprobs need logprobs=true", param="top_logprobs")
        shared = ("model", "sampler", "steps", "temperature", "top_p", "n", "seed", "stop", "stream", "stream_options")
        return CompletionRequest.model_construct(
            **{name: getattr(self, name) for name in shared},
            max_tokens=self.max_completion_tokens if self.max_tokens is None else self.max_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )


class ChatPrompt(NamedTuple):
    """A chat as token ids, and the special tokens of its format: where the model writes one, its message has ended."""

    ids: list[int]
    specials: dict[int, str]

    @classmethod
    def of(cls, model: TextModel, messages: Sequence[Message]) -> "ChatPrompt":
        """Render messages by the model's template. None of them may contain a special token."""
        tokenizer = model.tokenizer
        check_template(tokenizer)
        assert tokenizer.chat_template is not None
        specials, roles = tokenizer.special_tokens, tokenizer.roles
        for number, message in enumerate(messages):
            for token in specials.values():
                if token in message.text:
                    raise RequestRefused(
                        400, f"a message must not contain the special token {token}", param=f"messages.{number}.content"
                    )
        said = [
            {"role": each.role, "content": each.text, **({} if each.name is None else {"name": each.name})}
            for each in messages
        ]
        names = {name: tokenizer.backend.id_to_token(getattr(roles, role)) for name, role in _TOKENS.items()}
        ids = tokenizer.encode_with_specials(rendered_chat(tokenizer.chat_template, said, names))
        begin = list(model.rows.begin)
        if begin and ids[: len(begin)] == begin:  # rows begin so by themselves
            ids = ids[len(begin) :]
        return cls(ids, {index: token for index, token in specials.items() if index != roles.mask_id})

    def stop_rule(self, tokenizer: Tokenizer, stops: Sequence[str]) -> StopRule:
        """What ends a message: the end token, another special token, or a string."""
        decode = partial(tokenizer.backend.decode, skip_special_tokens=False)
        return StopRule(tokenizer.roles.eos_id, (*stops, *self.specials.values()), decode)


def check_template(tokenizer: Tokenizer) -> None:
    """Refuse a chat with a model that has no template for it."""
    if tokenizer.chat_template is None:
        message = "this model has no chat template; use /v1/completions"
        raise RequestRefused(400, message, param="messages", code="no_chat_template")


class ChatWire:
    """Chat completions on the wire.

    Args:
        head: fields of the answer and of every event of a stream.
    """

    def __init__(self, head: dict[str, Any]) -> None:
        self.head = {**head, "object": "chat.completion"}

    def opening(self, prompt: int, index: int) -> dict[str, Any] | None:
        """The first event of a text."""
        return self._event(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, text: str, logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
        """One event of a stream."""
        return self._event(index, {} if finish else {"content": text}, _chat_logprobs(logprobs), finish)

    def _event(self, index: int, delta: dict[str, str], logprobs: Any = None, finish: str | None = None) -> Any:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**self.head, "object": "chat.completion.chunk", "choices": [choice]}

    def answer(self, found: "Sequence[Sequence[CompletedText]]") -> dict[str, Any]:
        """The whole of it at once."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": own.text, "refusal": None},
                "logprobs": _chat_logprobs(own.logprobs),
                "finish_reason": own.finish,
            }
            for index, own in enumerate(each for part in found for each in part)
        ]
        return {**self.head, "choices": choices}


def _chat_logprobs(logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
    """As chats have them, from those of a completion."""
    if logprobs is None:
        return None

    def entry(token: str, value: float) -> dict[str, Any]:
        return {"token": token, "logprob": value, "bytes": list(token.encode())}

    tops = logprobs["top_logprobs"] or [{}] * len(logprobs["tokens"])
    content = [
        {**entry(token, value), "top_logprobs": [entry(*pair) for pair in top.items()]}
        for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
    ]
    return {"content": content, "refusal": None}
