"""Local files as a source of text: plain text, JSON, CSV and Parquet; folders and globs; gzip and zstd.

A text file is one record that comes line by line; a JSON object, a CSV row or a Parquet row is a record that
comes whole. The names of the files tell the splits; where they do not, a cut makes them. Everything is read in
bounded steps: only a single record has to fit in memory.
"""

import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from adlm.data import documents
from adlm.data.detokenize import find_detokenizer
from adlm.data.documents import SPLITS, WHOLE, CorpusSize, Cut, DocumentRule, FractionSplit, Segments
from adlm.data.records import (
    ENDINGS,
    FIELD_FIX,
    FORMATS,
    HEADER_FIX,
    Records,
    csv_records,
    decoded,
    ending,
    json_records,
    parquet_records,
    record_text,
)
from adlm.data.source import Piece, Source
from adlm.errors import DataError, NotUtf8, UnknownName
from adlm.files import file_checksum

_SPLIT_WORDS = {"train": "train", "test": "test", **dict.fromkeys(("valid", "validation", "val", "dev"), "valid")}
_READER_VERSION = 1


@dataclass(frozen=True)
class TextFiles(Source):
    """A file, a folder (read recursively, in order) or a glob.

    Args:
        field: the field or column that holds the text; several are joined by a space. Numbers are columns of CSV files
            without a header line, "1" the first.
        files: a glob under the folder for each split, where the names of the files do not tell.
        cut: how splits are made if no name speaks of a held-out one; by default `FractionSplit()`, unless the names
            speak of training.
        format: text, json, csv or parquet, where the ending of the name does not tell.
        header: the columns of CSV files that do not name them in the first line.
        joiner: what is put between the strings of a list.
        encoding_errors: strict, replace or ignore: what to do with bytes that are not UTF-8.
    """

    path: str
    name: str = ""
    licence: str = "that of the files"
    field: str | tuple[str, ...] = "text"
    rule: DocumentRule = WHOLE
    detokenizer: str = "none"
    files: Mapping[str, str] | None = dataclasses.field(default=None, hash=False)
    cut: Cut | None = None
    format: str | None = None
    header: tuple[str, ...] = ()
    joiner: str = " "
    encoding_errors: str = "strict"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        if not self.name:
            object.__setattr__(self, "name", Path(self.path).name or self.path)
        find_detokenizer(self.detokenizer)
        if self.format not in (None, *FORMATS):
            raise UnknownName("format", str(self.format), FORMATS)
        if self.encoding_errors not in (known := ("strict", "replace", "ignore")):
            raise UnknownName("way with encoding errors", self.encoding_errors, known)

    @property
    def splits(self) -> tuple[str, ...]:
        _, plan, cut = self._plan()
        return SPLITS if cut else tuple(sorted(plan, key=lambda split: (*SPLITS, split).index(split)))

    def pieces(self, split: str) -> Iterator[Piece]:
        _, files, cut = self._files(split)
        pieces = self._read(files)
        if cut is not None:
            pieces = cut.select(split, pieces, _measured(self, tuple(map(_stamp, files))))
        return not_empty(pieces, self, split, "check the files, the document rule and the field")

    def fingerprint(self, split: str) -> dict[str, Any]:
        root, files, cut = self._files(split)
        stamps = {path.relative_to(root).as_posix(): _stamp(path) for path in files}
        options = ("rule", "detokenizer", "field", "format", "header", "joiner", "encoding_errors")
        return {
            "reader": _READER_VERSION,
            "files": [[name, stamp[1], _sha256(*stamp)] for name, stamp in stamps.items()],
            "cut": [repr(cut), split] if cut else None,
            **{option: repr(getattr(self, option)) for option in options},
        }

    def peek(self) -> None:
        """Read the beginning, so that a wrong path, a wrong field or a damaged file shows at once."""
        _, plan, _ = self._plan()
        next(self._read(next(iter(plan.values()))), None)

    def _plan(self) -> tuple[Path, dict[str, list[Path]], Cut | None]:
        """The folder, the files of each split, and the cut; with a cut, all files are under an empty name."""
        if self.files is not None:
            root = Path(self.path).expanduser()
            given = {split: sorted(filter(Path.is_file, root.glob(glob))) for split, glob in self.files.items()}
            if not any(given.values()):
                raise _unreadable(", ".join(self.files.values()), root) if root.is_dir() else _missing(root)
            return root, {split: paths for split, paths in given.items() if paths}, None
        root, found = find_files(self.path)
        named: dict[str, list[Path]] = {}
        for path in found:
            if split := split_of(path.relative_to(root).as_posix()):
                named.setdefault(split, []).append(path)
        if named.keys() - {"train"} or (named and self.cut is None):
            return root, named, None
        return root, {"": found}, self.cut or FractionSplit()

    def _files(self, split: str) -> tuple[Path, list[Path], Cut | None]:
        root, plan, cut = self._plan()
        if split not in (known := SPLITS if cut else tuple(plan)):
            raise UnknownName("split", split, known)
        return root, plan["" if cut else split], cut

    def _read(self, files: Iterable[Path]) -> Iterator[Piece]:
        segments = itertools.chain.from_iterable(map(self._segments, files))
        return documents.as_pieces(segments, self.rule, self.detokenizer)

    def _segments(self, path: Path) -> Segments:
        format = self.format or ending(path)[0] or "text"
        if format == "text":
            return itertools.chain(documents.as_lines(decoded(path, self.encoding_errors)), (None,))
        fix = HEADER_FIX if format == "csv" and not self.header else FIELD_FIX
        texts = (self._text(where, record, fix) for where, record in self._records(path, format))
        return documents.as_segments(texts, self.rule)

    def _records(self, path: Path, format: str) -> Records:
        if format == "json":
            return json_records(path, self.encoding_errors)
        if format == "csv":
            return csv_records(path, self.field, self.header, self.encoding_errors)
        return parquet_records(path, self.field)

    def _text(self, where: str, record: object, fix: str) -> str:
        text = record_text(record, self.field, self.joiner, where, fix=fix)
        try:
            # JSON can spell half a character (a lone surrogate), which no tokenizer takes.
            return text if text.isascii() else text.encode(errors=self.encoding_errors).decode()
        except UnicodeEncodeError as error:
            raise NotUtf8(where, f"half a character, {text[error.start]!r}") from error


def find_files(pattern: str) -> tuple[Path, list[Path]]:
    """The folder and the files, in order, of a file, a folder or a glob."""
    path = Path(pattern).expanduser()
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        root, found = path, (each for each in path.rglob("*") if _is_readable(each.relative_to(path)))
    else:
        plain = list(itertools.takewhile(lambda part: not set(part) & set("*?["), path.parts))
        root = Path(*plain)
        if len(plain) == len(path.parts) or not root.is_dir():
            raise _missing(root)
        found = (each for each in root.glob(str(Path(*path.parts[len(plain) :]))))
    files = sorted(each for each in found if each.is_file())
    if not files:
        raise _unreadable(pattern, root)
    return root, files


def _unreadable(pattern: str, root: Path) -> DataError:
    found = f"no file to read in {root}, among {sum(1 for _ in root.iterdir())} names there"
    endings = " ".join(filter(None, ENDINGS))
    return DataError(
        f"cannot read text from {pattern}",
        found,
        f"name files or a glob; folders give {endings}, also .gz and .zst",
        subject=pattern,
    )


def _missing(path: Path) -> DataError:
    asked, folder = path, path.parent
    while not folder.is_dir():
        path, folder = folder, folder.parent
    near = difflib.get_close_matches(path.name, [each.name for each in folder.iterdir()], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "check the path"
    found = f"no {path.name!r} in {folder.absolute()}"
    return DataError(f"cannot read text from {asked}: {found}; {hint}", subject=str(asked))


def _is_readable(path: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return not hidden and ending(path)[0] is not None and path.stem.lower() not in ("readme", "license", "licence")


def split_of(name: str) -> str | None:
    """The split that a name speaks of: `wiki.valid.tokens`, `train/part-0.jsonl`, `validation`."""
    words = [_SPLIT_WORDS[word] for word in re.findall("[a-z]+", name.lower()) if word in _SPLIT_WORDS]
    return words[-1] if words else None


def not_empty(pieces: Iterator[Piece], source: Source, split: str, fix: str) -> Iterator[Piece]:
    """The pieces; an error if there are none."""
    first = next(pieces, None)
    if first is None:
        asked = f"cannot read the split {split!r} of {source.name!r}"
        raise DataError(asked, "not one document in it", fix, subject=split)
    yield first
    yield from pieces


def _stamp(path: Path) -> tuple[Path, int, int]:
    """What tells, without reading it, that a file is still the same."""
    status = path.stat()
    return path, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=4096)
def _sha256(path: Path, size: int, modified: int) -> str:
    return file_checksum(path)


@lru_cache(maxsize=16)
def _measured(source: TextFiles, stamps: tuple[tuple[Path, int, int], ...]) -> CorpusSize:
    documents = characters = 0
    for piece in source._read(path for path, _, _ in stamps):
        documents += piece.ends
        characters += len(piece.text)
    return CorpusSize(documents, characters)
