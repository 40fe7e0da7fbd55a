"""What a source of text is: pieces of documents, in a fixed order, with a fingerprint.

A document reaches the tokenizer in pieces so that a file of any size can be read in flat memory. A piece
ends a document or is followed by more of it; cuts are made only where no tokenizer of the field merges
across (`cut_safely`), so the token ids do not depend on them.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

PIECE_CHARACTERS = 1 << 18
# One whitespace character between two others: GPT-2's pre-tokenizer starts a token there in every context.
SAFE_CUT = re.compile(r"(?<=\S)\s(?=\S)")


class Piece(NamedTuple):
    """A piece of text, and whether its document ends with it."""

    text: str
    ends: bool = True


class Source(ABC):
    """Text from somewhere. Finished sources are frozen dataclasses, and so are their own configuration."""

    name: str
    licence: str

    @property
    @abstractmethod
    def splits(self) -> tuple[str, ...]:
        """The names of the splits, training first."""

    @abstractmethod
    def pieces(self, split: str) -> Iterator[Piece]:
        """The text of a split, the same in every call."""

    @abstractmethod
    def fingerprint(self, split: str) -> dict[str, Any]:
        """JSON that changes when the text of the split does: prepared shards are keyed by it."""

    def documents(self, split: str) -> Iterator[str]:
        """Whole documents, for those that fit in memory."""
        parts: list[str] = []
        for text, ends in self.pieces(split):
            parts.append(text)
            if ends:
                yield "".join(parts)
                parts = []

    def beginning(self, split: str, characters: int = 1 << 26) -> Iterator[str]:
        """Pieces from the start of a split, about this many characters: what a tokenizer is trained on."""
        for text, _ in self.pieces(split):
            if characters <= 0:
                return
            yield text
            characters -= len(text)


def cut_safely(chunks: Iterable[str], size: int = PIECE_CHARACTERS) -> Iterator[Piece]:
    """The pieces of about `size` characters of one document, given as chunks of any size."""
    rest = ""
    for chunk in chunks:
        rest += chunk
        start = 0
        while len(rest) - start > 2 * size:
            cut = SAFE_CUT.search(rest, start + size, start + 2 * size)
            # So long a stretch without a space is no prose; cutting it anywhere keeps memory flat.
            position = cut.start() if cut else start + 2 * size
            yield Piece(rest[start:position], ends=False)
            start = position
        rest = rest[start:]
    yield Piece(rest)
