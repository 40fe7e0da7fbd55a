"""What is answered, for the description of the API."""

from typing import Any

from pydantic import BaseModel
from typing_extensions import TypedDict


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
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
    status: str


class ModelEntry(TypedDict):
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
    object: str
    data: list[ModelEntry]


class SamplerEntry(TypedDict):
    name: str
    about: str
    options: dict[str, dict[str, float]]


class Filled(TypedDict):
    texts: list[str]


class ScoreResponse(TypedDict):
    nats: float | None
    error: float | None
    tokens: list[str]
    surprise: list[float | None]


class Decided(TypedDict):
    model: str
    decisions: list[dict[str, Any]]


class Tokenized(TypedDict):
    tokens: list[int]
    pieces: list[str]
    count: int
    unknown: list[str]


class Detokenized(TypedDict):
    text: str


class CompletionChoice(TypedDict):
    text: str
    index: int
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completed(TypedDict):
    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatMessage(TypedDict):
    role: str
    content: str
    refusal: None


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class ChatCompleted(TypedDict):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
