"""Limits of requests, and the answer to a request that exceeds them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from adlm.errors import OutOfRange
from adlm.text_model import ROWS, TextModel

_LEAST = {"waiting": 0, "predictions": 0, "head_seconds": 0.1, "pattern_seconds": 0.1}  # others: 1


@dataclass(frozen=True)
class ServerLimits:
    """Limits of one request, and of the number of requests.

    Args:
        running: requests that are worked on at once.
        waiting: further requests that may wait; beyond that the answer is 429.
        tokens: tokens written per text.
        steps: sampler steps per text.
        n: texts per request, over all its prompts.
        body: bytes of a request.
        seconds: time from a request's arrival to its end, waiting included.
        predictions: candidates shown for each blank.
        connections: connections open at once; fewer if the system allows fewer open files.
        per_address: connections from one address.
        head_seconds: time for the head of a request to arrive, on a new connection or after the last answer.
        per_client: requests of one client that run or wait; beyond that the answer is 429. A client is a key of
            --key-file, otherwise an address.
        options: options of the choices or slots of one request.
        pattern_seconds: CPU time to build the automata of a request's patterns.
    """

    running: int = 32
    waiting: int = 256
    tokens: int = 2048
    steps: int = 4096
    n: int = 16
    body: int = 1 << 18
    seconds: float = 120.0
    predictions: int = 10
    connections: int = 1024
    per_address: int = 512
    head_seconds: float = 10.0
    per_client: int = 144
    options: int = 256
    pattern_seconds: float = 2.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), _LEAST.get(each.name, 1)
            if value < least:
                raise OutOfRange(f"limits.{each.name}", value, f"at least {least}")
        if self.n > ROWS:
            raise OutOfRange("limits.n", self.n, f"at most {ROWS}")

    def check(self, name: str, value: int | None, *, param: str | None = None) -> None:
        """Refuse more than the limit of this name."""
        most = getattr(self, name)
        if value is not None and value > most:
            param = param or name
            raise RequestRefused(
                400, f"{param} is {value}; this server allows {most}", param=param, code="limit_exceeded"
            )


class RequestRefused(Exception):
    """A refusal or an error, in the shape that OpenAI's clients read."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry = status, message, param, code, retry

    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        # OpenAI's clients ask again after 408 unless they are told: it would be as much the second time.
        more = {401: {"WWW-Authenticate": "Bearer"}, 408: {"x-should-retry": "false"}}.get(self.status, {})
        return more | ({} if self.retry is None else {"Retry-After": str(self.retry)})


def check_given(model: TextModel, limits: ServerLimits, *texts: str | Sequence[int]) -> None:
    """Refuse more tokens to read than rows hold or may be written: causal models have no other limit."""
    given, most = sum(len(_ids(model, text)) for text in texts), max(model.config.packing.length, limits.tokens)
    if given > most:
        message = f"the prompt has {given} tokens; this server reads {most}"
        raise RequestRefused(400, message, param="prompt", code="limit_exceeded")


def most_tokens(
    model: TextModel, limits: ServerLimits, prompt: str | Sequence[int], suffix: str | Sequence[int] = ()
) -> int | None:
    """How many to write by default: the limit, if the model's rows have room for more."""
    room = model.rows.room(_ids(model, prompt), _ids(model, suffix))
    return limits.tokens if room > limits.tokens else None


def _ids(model: TextModel, text: str | Sequence[int]) -> Sequence[int]:
    found: Sequence[int] = model.tokenizer.encode(text).tolist() if isinstance(text, str) else text
    return found
