"""The answers of the API, for its OpenAPI description."""

from typing import Any

from pydantic import BaseModel
from typing_extensions import TypedDict


class ErrorDetail(BaseModel):
    """What went wrong, in the fields that OpenAI's clients read."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of an answer with an error."""

    error: ErrorDetail


_SAID = {
    400: "the request is invalid",
    401: "the key is missing or wrong",
    403: "the request comes from a page of another site, or names another host",
    404: "unknown model",
    408: "the time limit was reached",
    413: "the body is too large",
    429: "too many requests; see Retry-After",
    503: "the server is shutting down or full, or a worker died",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": said} for status, said in _SAID.items()
}


class Health(TypedDict):
    """The state of the server."""

    status: str


class ModelEntry(TypedDict):
    """A served model, and what it can do."""

    id: str
    object: str
    created: int
    owned_by: str
    sampling: dict[str, Any]
    parameters: int
    length: int
    stages: int
    attention: str
    block_sizes: list[int]
    fills_holes: bool
    knows_all_words: bool


class ModelList(TypedDict):
    """All served models."""

    object: str
    data: list[ModelEntry]


class SamplerEntry(TypedDict):
    """A sampler, and its options with their defaults and bounds."""

    name: str
    about: str
    options: dict[str, dict[str, float]]


class Filled(TypedDict):
    """Texts with their holes filled."""

    texts: list[str]


class ScoreResponse(TypedDict):
    """-log p of a text in nats, with its standard error, and the surprise of each token."""

    nats: float | None
    error: float | None
    tokens: list[str]
    surprise: list[float | None]


class Decided(TypedDict):
    """A decision for each slot of a text, with probabilities."""

    model: str
    decisions: list[dict[str, Any]]


class Tokenized(TypedDict):
    """The tokens of a text, and the words that the model does not know."""

    tokens: list[int]
    pieces: list[str]
    count: int
    unknown: list[str]


class Detokenized(TypedDict):
    """The text of token ids."""

    text: str


class CompletionChoice(TypedDict):
    """One of the texts of a completion."""

    text: str
    index: int
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class Usage(TypedDict):
    """Numbers of tokens read and written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completed(TypedDict):
    """A completion, as OpenAI's clients expect."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatMessage(TypedDict):
    """A message of the model in a chat."""

    role: str
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One of the answers in a chat."""

    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class ChatCompleted(TypedDict):
    """The answer to a chat, as OpenAI's clients expect."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
