"""Texts with holes, as people write them: `[MASK]` is one token, `[MASK:4]` four, `[MASK:2-6]` two to six.

A space before a hole stays. Most tokenizers make a word and the space before it one token, so there the
space is part of the hole, whose first token must then begin with one.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from adlm.data.tokenizer import MASK, Tokenizer
from adlm.errors import ConfigError
from adlm.samplers.constraints import Language, Spot, Wording, any_text, begins_with_space

MOST_COMBINATIONS = 64
_HOLE = re.compile(r"\[MASK(?:\]|:([^\]\n]*)\]?)")
_LENGTHS = re.compile(r"([1-9]\d{0,3})(?:-([1-9]\d{0,3}))?")


class Hole(NamedTuple):
    """A hole as written: its number of tokens, and whether that was given."""

    written: str
    least: int = 1
    most: int = 1
    said: bool = False


@dataclass(frozen=True)
class Template:
    """The ids before, between and after the holes; what may stand in each hole, and the token counts it may have."""

    parts: tuple[tuple[int, ...], ...]
    languages: tuple[Language, ...]
    lengths: tuple[Sequence[int], ...]

    @classmethod
    def read(cls, text: str, tokenizer: Tokenizer, constraints: Sequence[Wording | None] | None = None) -> "Template":
        """Read a text with holes.

        Args:
            constraints: one per hole, None if anything may stand there.
        """
        texts, holes = read_holes(text)
        wordings = _one_each(constraints, holes)
        parts: list[tuple[int, ...]] = []
        languages: list[Language] = []
        lengths: list[Sequence[int]] = []
        for left, hole, wording in zip(texts, holes, wordings, strict=False):
            spot = spot_after(tokenizer, left, first_hole=not parts)
            language = any_text(spot._replace(left="")) if wording is None else wording.language(spot)
            parts.append(tuple(tokenizer.encode_known(spot.left, first=spot.begins).tolist()))
            languages.append(language)
            lengths.append(_lengths(hole, language, wording))
        parts.append(tuple(tokenizer.encode_known(texts[-1], first=False).tolist()))
        return cls(tuple(parts), tuple(languages), tuple(lengths))

    def combinations(self) -> list[tuple[int, ...]]:
        """All ways to give each hole a length."""
        if math.prod(map(len, self.lengths)) > MOST_COMBINATIONS:
            raise ConfigError(
                f"the lengths of {len(self.lengths)} holes have more than {MOST_COMBINATIONS} combinations to score",
                fix="narrow the ranges, or fill the holes one after another",
                subject="hole lengths",
            )
        return list(product(*self.lengths))

    def ids(self, lengths: Sequence[int], mask_id: int) -> list[int]:
        """The text with so many masks in each hole."""
        out = list(self.parts[0])
        for length, part in zip(lengths, self.parts[1:], strict=True):
            out += [mask_id] * length + list(part)
        return out

    def spans(self, lengths: Sequence[int], *, offset: int) -> list[tuple[int, int, Language]]:
        """Start, end and language of each hole in a row whose text begins at position `offset`."""
        spans, start = [], offset
        for part, length, language in zip(self.parts, lengths, self.languages, strict=False):
            start += len(part)
            spans.append((start, start + length, language))
            start += length
        return spans


def read_holes(text: str) -> tuple[list[str], list[Hole]]:
    """The texts around the holes, one more than there are holes."""
    texts, holes, after = [], [], 0
    for match in _HOLE.finditer(text):
        texts.append(text[after : match.start()])
        holes.append(_hole(match[0]))
        after = match.end()
    if not holes:
        raise ConfigError(f"the text has no hole: write {MASK} for each missing token", subject="text")
    return [*texts, text[after:]], holes


def spot_after(tokenizer: Tokenizer, left: str, *, first_hole: bool) -> Spot:
    """Of a hole after `left`, the space before it taken into it if tokens begin with their space."""

    def first(text: str) -> bool:
        return first_hole and not len(tokenizer.encode(text))

    bare = left.removesuffix(" ")
    # Of several spaces the last may be in one token with the others.
    if bare != left and not bare.endswith(" ") and begins_with_space(tokenizer, first(bare)):
        return Spot(tokenizer, bare, space=True, first=first(bare), begins=first_hole)
    return Spot(tokenizer, left, first=first(left), begins=first_hole)


def _hole(written: str) -> Hole:
    if written == MASK:
        return Hole(written)
    lengths = _LENGTHS.fullmatch(written.removeprefix("[MASK:").removesuffix("]"))
    if lengths is None or not written.endswith("]"):
        raise ConfigError(
            f"the hole {written!r} needs a token count after the colon",
            fix="write [MASK:4] or [MASK:2-6], with numbers from 1 to 9999",
            subject=written,
        )
    least, most = int(lengths[1]), int(lengths[2] or lengths[1])
    if least > most:
        raise ConfigError(
            f"the hole {written!r} has its lengths in the wrong order",
            fix=f"write [MASK:{most}-{least}]",
            subject=written,
        )
    return Hole(written, least, most, said=True)


def _one_each(constraints: Sequence[Wording | None] | None, holes: Sequence[Hole]) -> Sequence[Wording | None]:
    if constraints is None:
        return [None] * len(holes)
    if isinstance(constraints, Wording) or len(constraints) != len(holes):
        found = "one that is not in a list" if isinstance(constraints, Wording) else f"{len(constraints)}"
        raise ConfigError(
            f"constraints must be a list with one per hole ({len(holes)}), got {found}", subject="constraints"
        )
    for each in constraints:
        if each is not None and not isinstance(each, Wording):
            raise ConfigError(f"a constraint is a Choice, Digits, Pattern or None, got {each!r}", subject=repr(each))
    return constraints


def _lengths(hole: Hole, language: Language, wording: Wording | None) -> Sequence[int]:
    """The token counts with which a hole can be filled. Where none was written, a choice has those of its options."""
    possible = language.among(range(hole.least, hole.most + 1))
    if language.lengths and not hole.said:
        possible = language.lengths
    if not possible:
        known = f"; its options have {', '.join(map(str, language.lengths))}" if language.lengths else ""
        lengths = "1 token" if hole.most == 1 else f"{hole.least} to {hole.most} tokens"
        if 1 < hole.least == hole.most:
            lengths = f"{hole.most} tokens"
        raise ConfigError(
            f"cannot fill {hole.written} by {wording or 'text'}",
            f"no text of {lengths} meets it{known}",
            "change the token counts or the constraint; write spaces before the hole, not into the constraint",
            subject=hole.written,
        )
    return possible
