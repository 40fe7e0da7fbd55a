"""The fields of requests. Any other field is refused."""

from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from adlm.samplers.constraints import Choice, Digits, Pattern, Wording

Text = Annotated[str, Field(max_length=100_000)]
Name = Annotated[str, Field(max_length=200)]
Typed = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Option = Annotated[str, Field(min_length=1, max_length=500)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


def _texts(most: int, what: str) -> BeforeValidator:
    """A text or a list of at most so many: said in words, since a union of the two names neither."""

    def check(value: Any) -> Any:
        if isinstance(value, list) and len(value) > most:
            raise PydanticCustomError(
                "too_long", "{count} texts; {most} are taken", {"count": len(value), "most": most}
            )
        listed = value if isinstance(value, list) else [value]
        if value is not None and not all(isinstance(each, str) for each in listed):
            raise PydanticCustomError("texts", "{what}", {"what": what})
        return value

    return BeforeValidator(check)


Stop = Annotated[Text | list[Text] | None, _texts(4, "give a text, or a list of up to 4 texts")]


class StrictModel(BaseModel):
    """A request, or a part of one: no other fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True)


class HoleConstraint(StrictModel):
    """What may stand in a hole: exactly one of these fields."""

    choice: Annotated[list[Option], Field(min_length=1, max_length=1000)] | None = None
    digits: bool | None = None
    pattern: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        None, description="a regular expression without lookaround and backreferences"
    )

    @model_validator(mode="after")
    def _one(self) -> "HoleConstraint":
        if sum((self.choice is not None, bool(self.digits), self.pattern is not None)) != 1:
            raise ValueError("give exactly one of choice, digits and pattern")
        return self

    @property
    def wording(self) -> Wording:
        """As `TextModel.infill` takes it."""
        if self.choice is not None:
            return Choice(tuple(self.choice))
        return Digits() if self.pattern is None else Pattern(self.pattern)


class Sampling(StrictModel):
    """How texts are written; what is left out is as the model has it."""

    model: Name | None = None
    sampler: Name | None = Field(None, description="by its name in /v1/samplers")
    steps: Count | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    block_size: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="tokens per block, written from left to right; 1 is token by token, 0 the whole row at once"
    )

    @property
    def options(self) -> dict[str, Any]:
        """As `TextModel.sampler` takes them."""
        return {name: getattr(self, name) for name in ("steps", "temperature", "top_p", "block_size")}


class GenerateRequest(Sampling):
    """A text streamed while it is written: after a prompt, in holes, or on a canvas."""

    prompt: Text = ""
    suffix: Text = ""
    text: Text | None = Field(None, description="with holes as in [MASK:3], instead of prompt and suffix")
    canvas: Annotated[list[TokenId | Typed | None], Field(min_length=1, max_length=100_000, fail_fast=True)] | None = (
        Field(
            None,
            description="ids of tokens or texts that stay, null where something is to be written, instead of a text",
        )
    )
    constraints: Annotated[list[HoleConstraint | None], Field(max_length=1000)] | None = Field(
        None, description="one per hole, null if anything may stand there"
    )
    max_tokens: Count | None = None
    seed: Seed = 0
    predictions: Annotated[int, Field(ge=0, le=1000)] = Field(
        3,
        validation_alias=AliasChoices("predictions", "guesses"),
        description="most likely tokens shown for each blank; `guesses` is its old name",
    )


class InfillRequest(Sampling):
    """A text with holes to be filled."""

    text: Text = Field(description="with holes: [MASK], [MASK:4] or [MASK:2-6]")
    n: Count = 1
    constraints: Annotated[list[HoleConstraint | None], Field(max_length=1000)] | None = Field(
        None, description="one per hole, null if anything may stand there"
    )
    seed: Seed = 0


class ScoreRequest(StrictModel):
    """A text to score."""

    text: Text
    model: Name | None = None
    seed: Seed = 0


class TokenizeRequest(StrictModel):
    """A text whose tokens are wanted."""

    text: Text
    model: Name | None = None


class DetokenizeRequest(StrictModel):
    """Token ids whose text is wanted."""

    tokens: Annotated[list[TokenId], Field(max_length=100_000, fail_fast=True)]
    model: Name | None = None


class StreamOptions(StrictModel):
    """OpenAI's options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = False


class CompletionRequest(Sampling):
    """As OpenAI's clients ask. `sampler` and `steps` are further fields of this server."""

    prompt: Annotated[
        Text | Annotated[list[Text], Field(min_length=1, fail_fast=True)],
        _texts(1000, "give a text, or a list of texts; token ids are not taken"),
    ] = ""
    suffix: Text | None = None
    max_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="by default up to the model's length"
    )
    n: Count | None = None
    seed: Seed | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    constraint: HoleConstraint | None = Field(None, description="what the text of each choice has to be")
    user: Name | None = Field(None, description="accepted; it changes nothing and is not kept")
    best_of: Any = Field(None, description="not supported")
    logit_bias: Any = Field(None, description="not supported")
    presence_penalty: Any = Field(None, description="not supported")
    frequency_penalty: Any = Field(None, description="not supported")

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def stops(self) -> list[str]:
        found = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [each for each in found if each]

    def unsupported(self) -> tuple[str, str] | None:
        """A field that means nothing here and why, where one is not at its neutral value."""
        neutral: dict[str, tuple[Any, ...]] = {
            "best_of": (None, 1),
            "logit_bias": (None, {}),
            "presence_penalty": (None, 0),
            "frequency_penalty": (None, 0),
        }
        for name, values in neutral.items():
            value = getattr(self, name)
            if isinstance(value, bool) or value not in values:
                return name, f"{name} is not supported; leave it out"
        if self.max_tokens == 0:
            return "max_tokens", "max_tokens=0 writes nothing; to score a text use /v1/score"
        if self.logprobs is not None and self.echo:
            return "logprobs", "logprobs together with echo are not supported; to score a text use /v1/score"
        if self.constraint is not None and self.suffix:
            return "constraint", "a constraint together with a suffix is not supported; use /v1/infill"
        if self.stream_options is not None and not self.stream:
            return "stream_options", "stream_options need stream=true"
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            return "stream_options.include_obfuscation", "obfuscation is not supported; leave it out"
        return None


_REQUESTS = (GenerateRequest, InfillRequest, ScoreRequest, TokenizeRequest, DetokenizeRequest, CompletionRequest)
FIELDS = frozenset(name for request in _REQUESTS for name in request.model_fields)  # that an error can be about
