"""Constraints on holes, as the samplers take them, within the limits of a server."""

from collections.abc import Sequence

from adlm.samplers.constraints import Wording
from adlm.samplers.holes import read_holes
from adlm.serve.limits import RequestRefused, ServerLimits
from adlm.serve.requests import HoleConstraint


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
