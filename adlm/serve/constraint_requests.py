"""Requests to fill holes under constraints, and what is checked before."""

from collections.abc import Sequence

from pydantic import Field

from adlm.samplers.constraints import Wording
from adlm.samplers.holes import read_holes
from adlm.serve.limits import RequestRefused, ServerLimits
from adlm.serve.requests import Constraints, Count, HoleConstraint, Sampling, Seed, Text


class InfillRequest(Sampling):
    """A text with holes to be filled."""

    text: Text = Field(description="with holes: [MASK], [MASK:4] or [MASK:2-6]")
    n: Count = 1
    constraints: Constraints = None
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
