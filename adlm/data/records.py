"""Records of files: JSON, CSV and Parquet, gzip and zstd, in bounded steps; and the text of a record."""

import codecs
import csv
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, cast

from adlm.data import documents
from adlm.errors import DataError, NotUtf8

FORMATS = ("text", "json", "csv", "parquet")
ENDINGS = {
    **dict.fromkeys((".txt", ".tokens", ".raw", ""), "text"),
    **dict.fromkeys((".jsonl", ".json"), "json"),
    ".csv": "csv",
    ".parquet": "parquet",
}
FIELD_FIX = "name a field that has text"
HEADER_FIX = f"{FIELD_FIX}; columns of a CSV without a header line have numbers, 1 for the first"
_READ_BYTES = 1 << 17
_LARGEST_RECORD = 1 << 26
Records = Iterator[tuple[str, object]]  # where each stands in its file, and what it is


def ending(path: Path) -> tuple[str | None, str]:
    """The format and the compression that a name tells."""
    packed = path.suffix.lower() if path.suffix.lower() in (".gz", ".zst") else ""
    return ENDINGS.get((path.with_suffix("") if packed else path).suffix.lower()), packed


def as_names(field: str | tuple[str, ...]) -> tuple[str, ...]:
    """Field names as a tuple, from one name or several."""
    return (field,) if isinstance(field, str) else field


def record_text(record: object, field: str | tuple[str, ...], joiner: str, where: str, *, fix: str = FIELD_FIX) -> str:
    """The text of a record: its fields joined by a space, a list of strings by `joiner`."""
    if isinstance(record, str):
        return record
    fields = record if isinstance(record, Mapping) else {}
    texts = []
    for name in as_names(field):
        value = fields.get(name, 0)
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = joiner.join(value)
        if value is not None and not isinstance(value, str):
            found = f"{str(value)[:60]} in it" if name in fields else f"the fields {', '.join(fields) or '(none)'}"
            raise DataError(f"cannot read text from the field {name!r} of {where}", found, fix, subject=name)
        texts.append(value)
    return " ".join(filter(None, texts))


def _opened(path: Path) -> BinaryIO:
    packed = ending(path)[1]
    if packed == ".zst":
        import pyarrow

        return cast("BinaryIO", pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd"))
    return cast("BinaryIO", gzip.open(path, "rb")) if packed else path.open("rb")


def decoded(path: Path, errors: str) -> Iterator[str]:
    """The text of a file, unpacked, with Unix line breaks and without a byte order mark."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    lines = io.IncrementalNewlineDecoder(decoder, translate=True)
    position, data = 0, b"-"
    try:
        with _opened(path) as stream:
            while data:
                data = stream.read(_READ_BYTES)
                waiting = len(decoder.getstate()[0])
                text = lines.decode(data, final=not data)
                yield text if position else text.removeprefix("\ufeff")
                position += len(data)
    except UnicodeDecodeError as error:
        offset = position - waiting + error.start
        raise NotUtf8(str(path), f"byte 0x{error.object[error.start]:02x} at offset {offset}") from error
    except (EOFError, OSError, zlib.error) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"cannot read {path}: {error}; check that the file is whole, or fetch it again", subject=str(path))


def _whole_lines(path: Path, errors: str) -> Generator[str, None, None]:
    parts: list[str] = []
    for part in documents.as_lines(decoded(path, errors)):
        parts.append(part)
        if part.endswith("\n"):
            yield "".join(parts)
            parts = []
    yield "".join(parts)


def json_records(path: Path, errors: str = "strict") -> Records:
    """The records of a JSON file, or of a file with one JSON object per line."""
    chunks = filter(None, decoded(path, errors))
    text = next((chunk.lstrip() for chunk in chunks if not chunk.isspace()), "")
    if text.startswith("["):
        yield from _json_list(path, text, chunks)
        return
    del chunks  # with its open file
    with closing(_whole_lines(path, errors)) as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path}, line {number}"
            if line.strip():
                try:
                    yield where, json.loads(line)
                except json.JSONDecodeError as error:
                    raise _not_json(where, line, error) from error


def _json_list(path: Path, text: str, chunks: Iterator[str]) -> Records:
    """The elements of a list, one at a time: a list of any length is read in flat memory."""
    decoder, between = json.JSONDecoder(), re.compile(r"[\s,]*")
    position, number = 1, 1
    while True:
        position = cast("re.Match[str]", between.match(text, position)).end()
        if text.startswith("]", position):
            return
        where = f"{path}, element {number}"
        try:
            record, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            more = next(chunks, "") if len(text) - position < _LARGEST_RECORD else ""
            if not more:
                raise _not_json(where, text[position:], error) from error
            text, position = text[position:] + more, 0
            continue
        number += 1
        yield where, record


def _not_json(where: str, text: str, error: json.JSONDecodeError) -> DataError:
    found = f"{error.msg}: {text[:60]!r}"
    fix = "give one object per line, or a list of objects"
    return DataError(f"cannot read {where} as JSON: {found}; {fix}", subject=where)


def csv_records(
    path: Path, field: str | tuple[str, ...], header: tuple[str, ...] = (), errors: str = "strict"
) -> Records:
    """The rows of a CSV file.

    Args:
        field: the columns that are read. Numbers, "1" the first, if the file has no header line.
        header: the columns of a file that does not name them in its first line.
    """
    csv.field_size_limit(_LARGEST_RECORD)  # the default, 128 KiB, is less than a long article
    rows = csv.reader(_whole_lines(path, errors), skipinitialspace=True)
    fields = {name.lower(): name for name in as_names(field)}
    numbered = all(name.isdecimal() for name in fields)
    names: Iterable[str] = ()
    try:
        for row in filter(None, rows):
            if numbered:
                names = map(str, itertools.count(1))
            elif not names:
                # A first line with the fields' names is a header, whatever the case of its letters.
                names = titles = [fields.get(cell.lower(), cell) for cell in row]
                if set(titles) >= set(fields.values()) or not header:
                    continue
                names = header
            yield f"{path}, line {rows.line_num}", dict(zip(names, row, strict=False))
    except csv.Error as error:
        raise _damaged(path, error) from error


def parquet_records(path: Path, field: str | tuple[str, ...]) -> Records:
    """The rows of a Parquet file, with these columns."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    number = itertools.count(1)
    try:
        with ParquetFile(path) as file:
            record_text(dict.fromkeys(file.schema_arrow.names), field, "", str(path))  # names what is missing
            for batch in file.iter_batches(batch_size=256, columns=list(as_names(field))):
                for row in batch.to_pylist():
                    yield f"{path}, row {next(number)}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
