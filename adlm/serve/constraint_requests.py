"""Constraints on holes and on completions, as the samplers take them, within the limits of a server."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adlm.data.tokenizer import Tokenizer
from adlm.samplers.constraints import Automaton, Language, Wording
from adlm.samplers.holes import read_holes, spot_after
from adlm.samplers.patterns import pattern_time
from adlm.serve.limits import RequestRefused, ServerLimits
from adlm.serve.requests import HoleConstraint
from adlm.text_model import TextModel


class ConstrainedPrompt(NamedTuple):
    """A prompt, and what may follow it.

    ids: of the prompt, without a space at its end that belongs to the token after it (then `space` is true).
    length: tokens that follow, end tokens among them.
    """

    ids: list[int]
    language: Language
    length: int
    space: bool

    @classmethod
    def of(
        cls, model: TextModel, prompt: str, constraint: HoleConstraint, limit: int | None, limits: ServerLimits
    ) -> "ConstrainedPrompt":
        """The prompt of a completion that meets a constraint with at most `limit` tokens, or as many as fit."""
        tokenizer = model.tokenizer
        spot = spot_after(tokenizer, prompt, first_hole=True)
        ids = tokenizer.encode_known(spot.left).tolist()
        most = limit or max(1, model.rows.room(ids))
        with pattern_time(limits.pattern_seconds):
            language = constraint.wording.language(spot)
        lengths = language.among(range(1, most + 1))
        if not lengths:
            message = f"no text of at most {most} tokens meets the constraint"
            raise RequestRefused(400, message, param="constraint", code="invalid_value")
        return cls(ids, _then_end(language, tokenizer), max(lengths), spot.space)


def _then_end(language: Language, tokenizer: Tokenizer) -> Language:
    """What a language allows, and after it any number of end tokens."""
    assert isinstance(language, Automaton)
    last = len(language.accepts)
    sources = np.append(np.flatnonzero(language.accepts), last)
    ends = np.stack([sources, np.full_like(sources, tokenizer.roles.eos_id), np.full_like(sources, last)])
    own = np.stack([language.source, language.token, language.target])
    return Automaton(np.concatenate([own, ends], 1).astype(np.int32), np.append(language.accepts, True), tokenizer)


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
