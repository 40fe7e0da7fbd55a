"""Constraints on holes, as requests write them: a choice, digits or a pattern."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, model_validator

from adlm.samplers.constraints import Choice, Digits, Pattern, Wording
from adlm.samplers.holes import read_holes
from adlm.serve.limits import RequestRefused, ServerLimits
from adlm.serve.requests import Count, Sampling, Seed, StrictModel, Text

Option = Annotated[str, Field(min_length=1, max_length=500)]


class HoleConstraint(StrictModel):
    """What may stand in a hole: exactly one of these fields."""

    choice: Annotated[list[Option], Field(min_length=1, max_length=1000)] | None = None
    digits: bool | None = None
    pattern: Annotated[str, Field(min_length=1, max_length=500)] | None = Field(
        None, description="a regular expression without look-around and back-references"
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


class InfillRequest(Sampling):
    """A text with holes to be filled."""

    text: Text = Field(description="with holes: [MASK], [MASK:4] or [MASK:2-6]")
    n: Count = 1
    constraints: Annotated[list[HoleConstraint | None], Field(max_length=1000)] | None = Field(
        None, description="one per hole, null if anything may stand there"
    )
    seed: Seed = 0


def wordings(
    constraints: Sequence[HoleConstraint | None] | None, limits: ServerLimits
) -> Sequence[Wording | None] | None:
    """The constraints of a request, none of them larger than the limits."""
    if constraints is None:
        return None
    limits.check("options", sum(len(each.choice or ()) for each in constraints if each), param="constraints")
    return [None if each is None else each.wording for each in constraints]


def check_holes(text: str, limits: ServerLimits) -> None:
    """Refuse holes that could have more tokens than the limit, before any length is tried."""
    _, holes = read_holes(text)
    most = sum(hole.most for hole in holes)
    if most > limits.tokens:
        message = f"the holes of the text may have {most} tokens; this server allows {limits.tokens}"
        raise RequestRefused(400, message, param="text", code="limit_exceeded")
