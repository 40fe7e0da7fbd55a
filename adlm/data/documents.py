"""From raw records to documents: where they begin and end, and how a corpus without splits is cut into them.

Text comes as segments: strings, and None where a record ends. A document rule moves those marks; a detokenizer
then undoes the published spacing of each segment; a cut selects a split.
"""

import hashlib
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

from adlm.data.detokenize import find_detokenizer
from adlm.data.source import PIECE_CHARACTERS, SAFE_CUT, Piece, cut_safely
from adlm.errors import ConfigError

Segments = Iterator[str | None]
SPLITS = ("train", "valid", "test")
_HASHED_CHARACTERS = 1000


@dataclass(frozen=True, kw_only=True)
class DocumentRule(ABC):
    """A rule for where documents begin and end. Blank documents are dropped unless `keep_empty`."""

    keep_empty: bool = False
    by_line: ClassVar[bool] = True
    trims: ClassVar[bool] = True

    @abstractmethod
    def divide(self, segments: Segments) -> Segments:
        """The same text with None at the end of each document; segments are lines if `by_line`."""


@dataclass(frozen=True)
class Whole(DocumentRule):
    """A record is a document: a whole text file, one JSON object, one row."""

    by_line: ClassVar[bool] = False
    trims: ClassVar[bool] = False

    def divide(self, segments: Segments) -> Segments:
        return segments


WHOLE = Whole()


@dataclass(frozen=True)
class Lines(DocumentRule):
    """A line is a document. With `strip=False` and `keep_empty=True`: the rows of the Hub's WikiText."""

    strip: bool = True
    trims: ClassVar[bool] = False

    def divide(self, segments: Segments) -> Segments:
        complete = True
        for segment in segments:
            if segment is None:
                if not complete:
                    yield None
                complete = True
                continue
            # What is longer is a part of a line, which may begin or end with a space that counts.
            if len(segment) < PIECE_CHARACTERS and (self.strip or segment.isspace()):
                yield segment.strip()
            else:
                yield segment
            complete = segment.endswith("\n")
            if complete:
                yield None


@dataclass(frozen=True)
class Paragraphs(DocumentRule):
    """Blank lines part documents."""

    def divide(self, segments: Segments) -> Segments:
        return (segment if segment and not segment.isspace() else None for segment in segments)


@dataclass(frozen=True)
class Separator(DocumentRule):
    """A string parts documents, wherever it stands."""

    text: str = "<|endoftext|>"

    def __post_init__(self) -> None:
        if not self.text or "\n" in self.text:
            raise ConfigError(
                f"documents cannot be separated by {self.text!r}, which is empty or has a line break",
                fix="name a string within a line, or use Paragraphs() for blank lines",
                subject="text",
            )

    def divide(self, segments: Segments) -> Segments:
        rest = ""
        for segment in segments:
            if segment is None:
                yield from (rest, None)
                rest = ""
                continue
            *parts, rest = (rest + segment).split(self.text)
            for part in parts:
                yield from (part, None)
            if rest.endswith("\n"):
                yield rest
                rest = ""
            elif len(rest) > PIECE_CHARACTERS:
                # The beginning of a separator may be at the end of what has been read of a long line.
                cut = len(rest) - len(self.text)
                yield rest[:cut]
                rest = rest[cut:]
        if rest:
            yield rest


@dataclass(frozen=True)
class WikiTextArticles(DocumentRule):
    """` = Title = ` between blank lines begins a document; without them such a line belongs to a table."""

    _TITLE: ClassVar[re.Pattern[str]] = re.compile(r" = [^=](.*[^=])? = \n?")

    def divide(self, segments: Segments) -> Segments:
        before, line = "\n", ""
        for following in itertools.chain(self._lines(segments), ["\n"]):
            if before.isspace() and following.isspace() and self._TITLE.fullmatch(line):
                yield None
            # Each line is published with a space in front, which the detokenizer does not take away.
            yield line.removeprefix(" ")
            before, line = line or "\n", following

    @staticmethod
    def _lines(segments: Segments) -> Iterator[str]:
        """Rows of the Hub are lines too: the blank ones come without their line break."""
        complete = True
        for segment in segments:
            if segment is None:
                if not complete:
                    yield "\n"
                complete = True
                continue
            if segment:
                yield segment
            complete = segment.endswith("\n")


def as_segments(records: Iterable[str], rule: DocumentRule) -> Segments:
    """Records as a rule wants them: whole, or line by line."""
    for record in records:
        yield from as_lines([record]) if rule.by_line else (record,)
        yield None


def as_lines(chunks: Iterable[str]) -> Iterator[str]:
    """Lines with their breaks; one that is too long comes in parts, and of nothing comes an empty one."""
    rest, empty = "", True
    for chunk in chunks:
        *lines, rest = (rest + chunk).split("\n")
        for line in lines:
            yield line + "\n"
        if long := len(rest) >= PIECE_CHARACTERS:
            yield rest
            rest = ""
        empty = empty and not lines and not long
    if rest or empty:
        yield rest


def as_pieces(segments: Segments, rule: DocumentRule, detokenizer: str) -> Iterator[Piece]:
    """Documents by a rule, detokenized segment by segment, in pieces."""
    detokenize = find_detokenizer(detokenizer)
    for ends, group in itertools.groupby(rule.divide(segments), key=lambda segment: segment is None):
        if ends:
            continue
        # Trimmed last: the replacements look for the space before a line break.
        texts: Iterator[str] = map(detokenize, cast("Iterator[str]", group))
        if rule.trims:
            texts = _trimmed(texts)
        held = []
        for text in texts:
            held.append(text)
            if text and not text.isspace():
                break
        else:
            if not rule.keep_empty:
                continue
        yield from cut_safely(portion for text in itertools.chain(held, texts) for portion in _portions(text))


def _trimmed(texts: Iterator[str]) -> Iterator[str]:
    """Without blank lines before and after."""
    held: list[str] = []
    for text in itertools.dropwhile(lambda text: not text.strip(), texts):
        if text.strip():
            yield from held
            held = []
        held.append(text)
    if held:
        yield held[0].rstrip()


def _portions(text: str) -> Iterator[str]:
    """A long record in portions: what joins them copies each character once, not once per piece."""
    return (text[begin : begin + PIECE_CHARACTERS] for begin in range(0, len(text), PIECE_CHARACTERS))


class CorpusSize(NamedTuple):
    """The number of documents and characters of a corpus."""

    documents: int
    characters: int


class Cut(ABC):
    """A rule that cuts files without splits into train, valid and test."""

    @abstractmethod
    def select(self, split: str, pieces: Iterator[Piece], size: CorpusSize) -> Iterator[Piece]:
        """The pieces of a split, out of all of them."""


@dataclass(frozen=True)
class NoCut(Cut):
    """A cut in which every split is the whole text: all of it is test data in an evaluation."""

    def select(self, split: str, pieces: Iterator[Piece], size: CorpusSize) -> Iterator[Piece]:
        return pieces


@dataclass(frozen=True)
class FractionSplit(Cut):
    """The last fraction of the documents is test, the one before it valid; of one or two, fractions of characters."""

    fraction: float = 0.05

    def select(self, split: str, pieces: Iterator[Piece], size: CorpusSize) -> Iterator[Piece]:
        total, between = (
            (size.documents, _documents) if size.documents >= len(SPLITS) else (size.characters, _characters)
        )
        held = max(1, round(total * self.fraction))
        first, second = total - 2 * held, total - held
        return between(pieces, *{"train": (0, first), "valid": (first, second), "test": (second, total)}[split])


@dataclass(frozen=True)
class LastDocuments(Cut):
    """OpenWebText's way: the last documents are held out, and serve as both valid and test.

    A small part of such a corpus (fewer than ten times `count`) is cut by `FractionSplit` instead.
    """

    count: int = 100_000

    def select(self, split: str, pieces: Iterator[Piece], size: CorpusSize) -> Iterator[Piece]:
        if size.documents < 10 * self.count:
            return FractionSplit().select(split, pieces, size)
        held = size.documents - self.count
        return _documents(pieces, 0, held) if split == "train" else _documents(pieces, held, size.documents)


@dataclass(frozen=True)
class HashedDocuments(Cut):
    """Whole documents by a hash of how each begins: which split one is in depends on nothing else in the corpus.

    Args:
        fraction: of the documents, in expectation, for valid and as many for test.
    """

    fraction: float = 0.05

    def select(self, split: str, pieces: Iterator[Piece], size: CorpusSize) -> Iterator[Piece]:
        chosen, begins = False, True
        for piece in pieces:
            if begins:
                chosen = self._split(piece.text) == split
            if chosen:
                yield piece
            begins = piece.ends

    def _split(self, text: str) -> str:
        digest = hashlib.blake2b(text[:_HASHED_CHARACTERS].encode(), digest_size=8).digest()
        u = int.from_bytes(digest, "big") / 2**64
        return "test" if u < self.fraction else "valid" if u < 2 * self.fraction else "train"


@dataclass(frozen=True)
class FirstCharacters(Cut):
    """text8's way: 90M characters train, 5M valid, 5M test, to the character. Less text is cut by `FractionSplit`."""

    train: int = 90_000_000
    valid: int = 5_000_000
    test: int = 5_000_000

    def select(self, split: str, pieces: Iterator[Piece], size: CorpusSize) -> Iterator[Piece]:
        ends = list(itertools.accumulate((self.train, self.valid, self.test)))
        if size.characters < ends[-1]:
            return FractionSplit().select(split, pieces, size)
        position = SPLITS.index(split)
        return _characters(pieces, ends[position - 1] if position else 0, ends[position], anywhere=True)


def _documents(pieces: Iterator[Piece], begin: int, end: int) -> Iterator[Piece]:
    number = 0
    for piece in pieces:
        if number >= end:
            return
        if number >= begin:
            yield piece
        number += piece.ends


def _characters(pieces: Iterator[Piece], begin: int, end: int, anywhere: bool = False) -> Iterator[Piece]:
    def cut(text: str, position: int) -> int:
        if position <= 0 or position >= len(text) or anywhere:
            return min(max(position, 0), len(text))
        safe = SAFE_CUT.search(text, position)
        return safe.start() if safe else len(text)

    for text, ends in pieces:
        part = text[cut(text, begin) : cut(text, end)]
        begin, end = begin - len(text), end - len(text)
        if part:
            yield Piece(part, ends or end <= 0)
        if end <= 0:
            return
