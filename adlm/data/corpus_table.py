"""How often each token occurs in a prepared split, and in how many documents: what corpus anchor rules read.

The table is one safetensors file beside the shards, made by `adlm prepare --anchor-table`. It counts what a batch
calls valid: padding only where padding is to be predicted. It is a function of the shards alone, the same bytes
every time, and its checksum is over its content, so that a rule can say which table it means.

What a document is: where one stream of documents was cut into rows, the text up to and with an end token, over rows
and shards; where rows are padded, or no end token was set, a row. The tokens that frame a row are in every document.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from adlm.data.shards import Shards
from adlm.errors import DamagedData, DataError
from adlm.files import write_atomically

TABLE = "anchors.safetensors"
FORMAT = 1
BLOCK_TOKENS = 1 << 20
_AGAIN = "make it again with `adlm prepare --anchor-table`"
_HEAD = "adlm"
_FIELDS: dict[str, type] = {"corpus": str, "key": str, "tokens": int, "documents": int, "mask_id": int}

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CorpusTable:
    """Counts over a prepared split. V is the size of the vocabulary, the mask token among it.

    Args:
        counts: [V] occurrences of each token.
        document_counts: [V] documents that hold each token.
        tokens: the sum of `counts`.
        documents: how many there are.
        key: of the prepared data.
        corpus: its name and split, for messages.
        mask_id: the token that is in no text.
    """

    counts: Counts
    document_counts: Counts
    tokens: int
    documents: int
    key: str
    corpus: str
    mask_id: int

    @property
    def vocab_size(self) -> int:
        return len(self.counts)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over everything the table says, whatever file it stands in."""
        digest = hashlib.sha256(json.dumps(self._head(), sort_keys=True).encode())
        for array in (self.counts, self.document_counts):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    def _head(self) -> dict[str, Any]:
        return {"format": FORMAT, **{name: getattr(self, name) for name in _FIELDS}}

    def write(self, path: Path) -> None:
        """Replace `path` in one step: a table is whole or not there."""
        # One entry holds all that is not an array: safetensors writes several in no fixed order.
        head = json.dumps({**self._head(), "checksum": self.checksum}, sort_keys=True)
        arrays = {"counts": self.counts, "document_counts": self.document_counts}
        try:
            write_atomically(path, save(arrays, {_HEAD: head}))
        except OSError as error:
            fix = "make room, or prepare in a folder you can write to (--cache)"
            raise DataError(f"cannot write {path}", str(error), fix, subject=str(path)) from error

    @classmethod
    def read(
        cls, path: str | Path, *, checksum: str | None = None, vocab_size: int | None = None, key: str | None = None
    ) -> "CorpusTable":
        """Read a table and check that it is whole.

        Args:
            path: of the table, or of the prepared folder that holds it.
            checksum: which table it has to be.
            vocab_size: of the tokenizer it has to be for.
            key: of the prepared data it has to be of.
        """
        path = table_path(path)
        asked = f"cannot read the anchor table {path}"
        if not path.exists():
            fix = "name the table where it is now, or make it with `adlm prepare --anchor-table`"
            raise DataError(asked, "no such file", fix, subject=str(path))
        try:
            table, stored = _parse(path, asked)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise _no_table(asked, str(error), path.name) from error
        if stored != table.checksum:
            raise DamagedData(f"{asked}: it does not match its own checksum; {_AGAIN}", subject="checksum")
        if checksum not in (None, table.checksum):
            found = f"another table, of {table.corpus}, {table.vocab_size} tokens, checksum {table.checksum[:12]}"
            fix = f"name the table with the checksum {str(checksum)[:12]}, or build the rule anew from this one"
            raise DamagedData(asked, found, fix, subject=str(checksum))
        if vocab_size not in (None, table.vocab_size):
            found = f"a table of {table.corpus} for {table.vocab_size} tokens, where the vocabulary has {vocab_size}"
            fix = "use a table of data that was prepared with the same tokenizer"
            raise DataError(f"{asked}: {found}", subject="vocab_size")
        if key not in (None, table.key):
            found = f"a table of other data: {table.corpus}, key {table.key[:16]}"
            raise DataError(f"{asked}: {found}; {_AGAIN}", subject="key")
        return table

    @classmethod
    def count(cls, shards: Shards, *, watch: Callable[[int], None] | None = None) -> "CorpusTable":
        """Count a prepared split in blocks of rows, so that memory does not grow with the data.

        Args:
            watch: told after every block how many rows are done.
        """
        roles = shards.tokenizer.roles
        made_of = shards.manifest.get("made_of", {}).get("packing", {})
        ends_count = not shards.manifest["padded"] and made_of.get("separated", True)
        framed = ends_count and made_of.get("framed", False)
        counts = np.zeros(roles.vocab_size, np.int64)
        seen = _Seen(roles.vocab_size)
        ended = 0  # documents before the block
        documents = len(shards)
        step = max(1, BLOCK_TOKENS // shards.length)
        for start in range(0, len(shards), step):
            rows = np.arange(start, min(start + step, len(shards)))
            tokens, valid = shards.tokens(rows), shards.valid(rows)
            text = tokens[valid]
            _check_ids(shards, text, roles.vocab_size)
            counts += np.bincount(text, minlength=roles.vocab_size)
            if ends_count:
                text = (tokens[:, 1:-1] if framed else tokens).ravel()
                ends = text == roles.eos_id
                numbers = ended + np.cumsum(ends) - ends  # an end token is the last of its document
                ended += int(ends.sum())
                documents = int(numbers[-1]) + 1
            else:
                numbers = np.repeat(rows, valid.sum(1))
            seen.add(text, numbers)
            if watch is not None:
                watch(int(rows[-1]) + 1)
        if framed:
            seen.documents[[roles.bos_id, roles.eos_id]] = documents
        corpus = f"{shards.manifest.get('source', shards.folder.name)} ({shards.manifest.get('split', 'all')})"
        return cls(counts, seen.documents, int(counts.sum()), documents, shards.key, corpus, roles.mask_id)


def table_path(path: str | Path) -> Path:
    """The table at `path`, or in the prepared folder `path`."""
    path = Path(path)
    return path / TABLE if path.is_dir() else path


def make_table(shards: Shards, *, watch: Callable[[int], None] | None = None) -> Path:
    """The path of a prepared split's table, which is made if it is not there whole."""
    path = shards.folder / TABLE
    with FileLock(shards.folder.with_name(shards.folder.name + ".lock")):
        try:
            CorpusTable.read(path, key=shards.key)
        except DataError:  # absent, damaged or of other data: the shards say what it has to be
            CorpusTable.count(shards, watch=watch).write(path)
    return path


class _Seen:
    """Counts the documents that hold each token, from tokens that come in the order of their documents."""

    def __init__(self, vocab_size: int) -> None:
        self.documents = np.zeros(vocab_size, np.int64)
        self.last = np.full(vocab_size, -1, np.int64)  # the document in which each token was seen last

    def add(self, tokens: Counts, numbers: Counts) -> None:
        """Count tokens [N] of the documents with these numbers [N], which never fall."""
        if not len(tokens):
            return
        # Sorted stably by token, a token's documents still rise, so equal neighbors are repetitions. NumPy sorts
        # 16 bits by counting, a few times faster than 64 bits by comparing.
        narrow = tokens.astype(np.uint16 if len(self.last) <= 1 << 16 else np.uint32)
        order = np.argsort(narrow, kind="stable")
        tokens, numbers = tokens[order], numbers[order]
        first = np.append(True, tokens[1:] != tokens[:-1])
        new = np.append(True, numbers[1:] != numbers[:-1])
        new[first] = numbers[first] != self.last[tokens[first]]
        self.documents += np.bincount(tokens[new], minlength=len(self.last))
        final = np.append(first[1:], True)
        self.last[tokens[final]] = numbers[final]


def _check_ids(shards: Shards, tokens: Counts, vocab_size: int) -> None:
    if len(tokens) and (highest := int(tokens.max())) >= vocab_size:
        raise DamagedData(
            f"{shards.folder} has the token {highest}, but its tokenizer has only {vocab_size}",
            fix="run `adlm prepare` with --force",
            subject="vocab_size",
        )


def _no_table(asked: str, found: str, subject: str) -> DamagedData:
    return DamagedData(f"{asked}: not an anchor table of format {FORMAT}: {found}; {_AGAIN}", subject=subject)


def _parse(path: Path, asked: str) -> tuple[CorpusTable, str]:
    """A table and the checksum it came with. Whatever is not as `write` leaves it raises."""
    with safe_open(path, framework="np") as file:
        head = json.loads((file.metadata() or {})[_HEAD])
        arrays = {name: file.get_tensor(name) for name in ("counts", "document_counts")}
    if head["format"] != FORMAT:
        raise _no_table(asked, f"its format is {head['format']}", "format")
    for name, kind in _FIELDS.items():
        if type(head[name]) is not kind:
            raise _no_table(asked, f"{name} is {head[name]!r}", name)
    for name, array in arrays.items():
        if array.dtype != np.int64 or array.ndim != 1 or array.shape != arrays["counts"].shape or not len(array):
            raise _no_table(asked, f"{name} is {array.dtype} {array.shape}", name)
    return CorpusTable(**arrays, **{name: head[name] for name in _FIELDS}), str(head["checksum"])
