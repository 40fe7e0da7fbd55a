"""Where a text ends before its row does: at the end token, or as soon as one of some strings is complete."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StopRule:
    """A rule that ends rows, for samplers that write from left to right.

    Args:
        token: ends a row, and fills what is left of it.
        strings: the first of them that the written text contains ends it; a prompt does not count.
        decode: ids -> text.
    """

    token: int
    strings: tuple[str, ...] = ()
    decode: Callable[[Sequence[int]], str] | None = None

    def complete(self, given: Sequence[int], written: Sequence[int]) -> bool:
        """Whether the ids `written` after the ids `given` contain one of the strings."""
        if not self.strings or self.decode is None:
            return False
        return cut_at(added_text(self.decode, given, written), self.strings)[1]


def added_text(decode: Callable[[Sequence[int]], str], given: Sequence[int], written: Sequence[int]) -> str:
    """The text that ids add to that of the ids before them: many decoders drop the space of a first token."""
    before, whole = decode(given), decode([*given, *written])
    return whole[len(before) :] if whole.startswith(before) else decode(written)


def cut_at(text: str, strings: Sequence[str]) -> tuple[str, bool]:
    """The text before the first of the strings, and whether there was one."""
    first = min((position for each in strings if (position := text.find(each)) >= 0), default=-1)
    return (text, False) if first < 0 else (text[:first], True)
