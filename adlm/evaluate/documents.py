"""Held-out text as rows to score, in memory, each with the characters and bytes of the text that it holds.

There are two ways: rows packed as in training (`packed_rows`), or every document on rows of its own, in windows if it
is longer than a row (`document_rows`). Every character belongs to one token: the first whose end lies behind it, so
white space that a tokenizer drops counts with the token after it. Begin, end and padding tokens hold no text. The
counts go through the same packing as the tokens, and so stay exact wherever rows are cut.
"""

import glob
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlm.data.catalog import CATALOG, open_source
from adlm.data.documents import NoCut
from adlm.data.files import TextFiles
from adlm.data.packing import NOTHING, Encoded, Ids, Packing
from adlm.data.prepare import grouped
from adlm.data.ragged_rows import RaggedRows
from adlm.data.source import Piece, Source
from adlm.data.table import document_numbers
from adlm.data.tokenizer import Roles, Tokenizer
from adlm.errors import DataError, OutOfRange, UnknownName
from adlm.resumable import checksum

_GROUP_CHARACTERS = 1 << 20  # enough for tokenizers to share out
_EMPTY = Roles(0, 0, 0, 0, 0)  # what begins, ends and pads a row holds no text


def open_held_out(
    data: str | Path | Source,
    split: str | None = None,
    *,
    folder: str | Path | None = None,
    field: str | None = None,
    detokenizer: str | None = None,
) -> tuple[Source, str]:
    """The text that an evaluation reads, and its split.

    Files are test data as a whole unless their names tell splits. A single file is, whatever its name.

    Args:
        split: by default test, or the last that there is. If it is given, files without splits are cut as for training.
        folder: where the files of a catalog name are.
        field: the field or column of the text; several as in title,description.
    """
    if isinstance(data, Source):
        source = data
    else:
        columns = tuple(field.split(",")) if field and "," in field else field
        source = open_source(data, folder=folder, field=columns, detokenizer=detokenizer)
        if split is None and isinstance(source, TextFiles) and str(data).partition(":")[0] not in CATALOG:
            path = Path(source.path).expanduser()
            if path.is_file():
                return replace(source, path=str(path.parent), files={"test": glob.escape(path.name)}), "test"
            source = replace(source, cut=NoCut())
    chosen = split or ("test" if "test" in source.splits else source.splits[-1])
    if chosen not in source.splits:
        raise UnknownName("split", chosen, source.splits)
    return source, chosen


class EncodedText(NamedTuple):
    """The tokens of a text [n], and how many of its characters and UTF-8 bytes belong to each."""

    ids: Ids
    characters: Ids
    bytes: Ids


def spelled(texts: Sequence[str], tokenizer: Tokenizer) -> list[EncodedText]:
    """Texts as tokens with the characters and bytes of each, which add up to the whole text."""
    ids = tokenizer.encode_batch(texts)
    # As many tokens as characters of a byte each: one for each, and nothing to look up.
    single = [text.isascii() and len(row) == len(text) for text, row in zip(texts, ids, strict=True)]
    others = [text for text, plain in zip(texts, single, strict=True) if not plain]
    encodings = iter(tokenizer.backend.encode_batch(others, add_special_tokens=False) if others else ())
    found = []
    for text, row, plain in zip(texts, ids, single, strict=True):
        if plain:
            found.append(EncodedText(row, np.ones_like(row), np.ones_like(row)))
            continue
        ends = np.array([end for _, end in next(encodings).offsets], np.int64)
        ends = np.maximum.accumulate(ends)
        ends[-1:] = len(text)
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        sizes = 1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF)
        positions = np.concatenate([[0], sizes.cumsum()])
        found.append(EncodedText(row, np.diff(ends, prepend=0), np.diff(positions[ends], prepend=0)))
    return found


@dataclass(frozen=True, eq=False)
class TextRows(RaggedRows):
    """Rows of held-out text, of whose tokens the given ones are context.

    Args:
        made_of: what the text comes from.
        text, starts, row_lengths, given_lengths, padding_counts: see `RaggedRows`.
        owners: [rows] the number of the item (document or row) to which each belongs.
        characters, bytes: [rows] of the text at scored positions.
        width: tokens per row, padding included.
        end_id: the end token, if documents that share a row do not see each other.
        left_out: tokens at the end of the text that did not fill a row.
        read: documents that were read.
        characters_read: of these documents.
    """

    made_of: dict[str, Any]
    text: NDArray[np.uint32]
    starts: Ids
    row_lengths: Ids
    given_lengths: Ids
    owners: Ids
    characters: Ids
    bytes: Ids
    width: int
    pad_id: int
    padding_counts: bool
    end_id: int | None
    left_out: int
    read: int
    characters_read: int

    @property
    def name(self) -> str:
        return f"{self.made_of['name']} ({self.made_of['split']})"

    @property
    def key(self) -> str:
        return checksum(self.made_of)

    @property
    def length(self) -> int:
        return self.width

    @property
    def items(self) -> int:
        """The number of documents, or of rows."""
        return int(self.owners[-1]) + 1

    def frozen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        return super().frozen(rows) if self.given_lengths.any() else None

    def documents(self, tokens: NDArray[np.int64]) -> NDArray[np.int64] | None:
        return None if self.end_id is None else document_numbers(tokens, self.end_id)

    def by_item(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The values [rows], summed over the rows of each item: [items]."""
        return np.bincount(self.owners, weights=values, minlength=self.items).astype(np.float64)


def packed_rows(
    source: Source, split: str, tokenizer: Tokenizer, packing: Packing, *, limit: int | None = None
) -> TextRows:
    """The rows of a split as `adlm prepare` makes them, or the first `limit` of them. An item is a row."""
    rests: list[Ids] = [NOTHING] * 3
    tables: list[list[Ids]] = []
    lengths: list[Ids] = []
    count = read = characters_read = 0
    for group in grouped(source.pieces(split), _GROUP_CHARACTERS):
        if limit is not None and count >= limit:
            break
        parts = spelled([piece.text for piece in group], tokenizer)
        packed = [
            packing.pack(rest, [Encoded(part[i], piece.ends) for part, piece in zip(parts, group, strict=True)], roles)
            for i, (rest, roles) in enumerate(zip(rests, (tokenizer.roles, _EMPTY, _EMPTY), strict=True))
        ]
        rests = [each.rest for each in packed]
        tables.append([packed[0].rows.astype(np.uint32), packed[1].rows.sum(-1), packed[2].rows.sum(-1)])
        lengths.append(packed[0].lengths)
        count, read = count + len(packed[0].rows), read + sum(piece.ends for piece in group)
        characters_read += sum(len(piece.text) for piece in group)
    if not count:
        raise DataError(
            f"{source.name} ({split}) has no full row of {packing.length} tokens",
            f"{read} documents with {len(rests[0])} tokens",
            "check the source and the split, or score each document by itself (documents)",
            subject=source.name,
        )
    count = min(count, limit or count)
    rows, characters, byte_counts = (np.concatenate(column)[:count] for column in zip(*tables, strict=True))
    return TextRows(
        _made_of(source, split),
        rows.flatten(),
        np.arange(count) * packing.length,
        np.concatenate(lengths)[:count],
        np.zeros(count, np.int64),
        np.arange(count),
        characters,
        byte_counts,
        packing.length,
        tokenizer.roles.pad_id,
        packing.padding_counts,
        tokenizer.roles.eos_id if packing.keeps_apart else None,
        0 if limit else len(rests[0]),
        read,
        characters_read,
    )


def document_rows(
    source: Source,
    split: str,
    tokenizer: Tokenizer,
    packing: Packing,
    *,
    limit: int | None = None,
    stride: int | None = None,
) -> TextRows:
    """Rows with one document each, all of a split or the first `limit` documents. An item is a document.

    A document gets the begin and end tokens that a text with a row to itself has in `packing`, and is never cropped:
    row k begins at its token k * stride, and scores what no row before it has scored. The tokens before those are its
    context, at least length - stride of them, so each token is scored once.

    Args:
        stride: tokens from one row of a document to the next; by default the length: no context.
    """
    length, step = packing.length, packing.length if stride is None else stride
    if not 1 <= step <= length:
        raise OutOfRange("stride", step, f"1 to {length}, the length of a row")
    begin, end = (np.array(ids, np.int64) for ids in packing.frame(tokenizer.roles))
    text: list[NDArray[np.uint32]] = []
    windows: list[Ids] = []
    size = items = read = characters_read = 0
    for group in grouped(map(Piece, source.documents(split)), _GROUP_CHARACTERS):
        for ids, characters, byte_counts in spelled([piece.text for piece in group], tokenizer):
            if limit is not None and items >= limit:
                break
            read, characters_read = read + 1, characters_read + int(characters.sum())
            ids = np.concatenate([begin, ids, end])
            if not len(ids):  # nothing that the tokenizer knows, and no end token to write
                continue
            sizes = [np.pad(each, (len(begin), len(end))) for each in (characters, byte_counts)]
            windows.append(_windows(len(ids), sizes, length, step, at=size, owner=items))
            text.append(ids.astype(np.uint32))
            size, items = size + len(ids), items + 1
        if limit is not None and items >= limit:
            break
    if not items:
        raise DataError(
            f"{source.name} ({split}) has no tokens in its {read} documents",
            fix="check the source, the split and the field",
            subject=source.name,
        )
    starts, lengths, given, owners, characters, byte_counts = np.concatenate(windows).T.copy()
    return TextRows(
        _made_of(source, split),
        np.concatenate(text),
        starts,
        lengths,
        given,
        owners,
        characters,
        byte_counts,
        length,
        tokenizer.roles.pad_id,
        packing.padding_counts,
        None,
        0,
        read,
        characters_read,
    )


def _windows(count: int, sizes: Sequence[Ids], length: int, step: int, *, at: int, owner: int) -> Ids:
    """The rows of a document of `count` tokens, [n, 6]: start, length, given, owner, characters, bytes.

    Args:
        sizes: characters and bytes of each token.
        length, step: of a row, and from one row to the next.
        at: where the document begins in the text.
    """
    starts = np.arange(1 + max(0, -(-(count - length) // step))) * step
    ends = np.minimum(starts + length, count)
    first = np.concatenate([[0], ends[:-1]])  # to be scored
    sums = [np.concatenate([[0], np.cumsum(each)]) for each in sizes]
    owners = np.full(len(starts), owner)
    columns = [at + starts, ends - starts, first - starts, owners, *(each[ends] - each[first] for each in sums)]
    return np.stack(columns, -1)


def text_facts(table: TextRows, tokenizer: Tokenizer, limit: int | None) -> dict[str, Any]:
    """What a result records about the text: its name and key, how much of it was scored, and what was not."""
    characters = int(table.characters.sum())
    return {
        "name": table.made_of["name"],
        "split": table.made_of["split"],
        "key": table.key,
        "rows": len(table),
        "documents": None if limit else table.read,
        "tokens": int(table.scored_lengths(np.arange(len(table))).sum()),
        "characters": characters,
        "bytes": int(table.bytes.sum()),
        "fraction scored": None if limit else characters / max(1, table.characters_read),
        "unknown tokens": unknown_tokens(table, tokenizer),
        "tokens left out": table.left_out,
    }


def unknown_tokens(table: TextRows, tokenizer: Tokenizer) -> int:
    """The number of tokens that stand for text unknown to the tokenizer. What they hide costs a model nothing."""
    token = json.loads(tokenizer.backend.to_str())["model"].get("unk_token")
    index = None if token is None else tokenizer.backend.token_to_id(token)
    return 0 if index is None else int((table.text == index).sum())


def _made_of(source: Source, split: str) -> dict[str, Any]:
    """What decides the text, whatever its tokens are."""
    return {"name": source.name, "split": split, "source": source.fingerprint(split)}
