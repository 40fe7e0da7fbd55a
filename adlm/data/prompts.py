"""Prompts and responses, to finetune on: JSON lines into rows in which the prompt is given and the response is not.

    row      begin  prompt separator  response end   padding
    fixed    ------------------------
    valid    -------------------------------------   (and padding, if it is to be predicted)

The loss is taken at valid positions that are not fixed. A prompt, with the separator, and its response are encoded
apart from each other: when the model is used, the prompt comes alone, and its tokens must be those of training.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlm.data.files import find_files
from adlm.data.packing import Ids, Packing, Padded
from adlm.data.prepare import tokenizer_for
from adlm.data.ragged_rows import RaggedRows
from adlm.data.records import json_records
from adlm.data.table import DataConfig, PreparationCallback, Prepared
from adlm.data.tokenizer import Tokenizer
from adlm.errors import DataError, UnknownName

_AT_A_TIME = 1024
_WAYS = ("refuse", "cut", "drop")


@dataclass(frozen=True)
class Prompts(DataConfig):
    """Files with one object per line (or a list of objects), plain or as .gz, held in memory as tokens.

    To have the trained model answer a prompt, let it continue the prompt with the separator.

    Args:
        train: the file to train on.
        tokenizer: that of the model to begin with: its folder, or a file or Hub name.
        length: tokens per row.
        valid: the file to validate on.
        prompt, response: the names of the fields.
        separator: put after every prompt, and given with it.
        begin: put the begin token first.
        end: put the end token after the response: the model learns to write it.
        padding: the model learns to write the padding too. A sampler that fills a whole row at once then knows what
            follows the end; it pays with much of its training on padding.
        too_long: what becomes of rows that do not fit: refuse says how many there are; cut keeps the beginning of
            the response, without an end token; drop leaves them out, and the name of the table says how many.
    """

    train: str
    tokenizer: str
    length: int
    valid: str | None = None
    prompt: str = "prompt"
    response: str = "response"
    separator: str = ""
    begin: bool = True
    end: bool = True
    padding: bool = False
    too_long: str = "refuse"

    def __post_init__(self) -> None:
        if self.too_long not in _WAYS:
            raise UnknownName("way with rows that are too long", self.too_long, _WAYS)
        self._packing()  # refuses rows that are too short

    def prepare(
        self, *, cache: Path | None = None, verify: bool = True, watch: PreparationCallback | None = None
    ) -> Prepared:
        tokenizer = tokenizer_for(self.tokenizer)
        train = self._read(self.train, tokenizer, watch)
        valid = self._read(self.valid, tokenizer, watch) if self.valid is not None else None
        return Prepared(train, valid, tokenizer, self._packing())

    def _packing(self) -> Packing:
        return Padded(self.length, begin=self.begin, end=self.end, predict_padding=self.padding)

    def _read(self, path: str, tokenizer: Tokenizer, watch: PreparationCallback | None) -> "PromptRows":
        asked = f"cannot make rows of {self.length} tokens from {path}"
        tokens = bytearray()  # of one row after the other, without padding
        lengths: list[int] = []
        given: list[int] = []
        documents = characters = long = 0
        longest = 0, ""
        for row in self._rows(_one_file(path), tokenizer):
            documents, characters = documents + 1, characters + row.characters
            if watch is not None and documents % _AT_A_TIME == 0:
                watch(documents, characters, len(lengths))
            if len(row.tokens) > self.length:
                long, longest = long + 1, max(longest, (len(row.tokens), row.where))
                if self.too_long != "cut":
                    continue
            if row.given >= self.length:
                found = f"{row.given} tokens before the response at {row.where}"
                raise DataError(f"{asked}: {found}; give length={len(row.tokens)}, or take it out", subject=row.where)
            kept = row.tokens[: self.length]
            tokens += kept.astype(np.uint32).tobytes()
            lengths.append(len(kept))
            given.append(row.given)
        if long and (self.too_long == "refuse" or not lengths):
            raise DataError(
                asked,
                f"{long:,} of {documents:,} are longer, the longest with {longest[0]:,} tokens at {longest[1]}",
                f"give length={longest[0]}, or too_long='cut' or 'drop'",
                subject="length",
            )
        if not lengths:
            raise DataError(f"{path} has no prompt and response in it", subject=path)
        if watch is not None:
            watch(documents, characters, len(lengths))
        dropped = documents - len(lengths)
        name = Path(path).name + (f" without {dropped:,} that are too long" if dropped else "")
        return PromptRows(name, self, tokenizer, np.frombuffer(tokens, np.uint32), np.array(lengths), np.array(given))

    def _rows(self, path: Path, tokenizer: Tokenizer) -> Iterator["_Row"]:
        """All of them, whatever their lengths."""
        begin, end = (np.array(part, np.int64) for part in self._packing().frame(tokenizer.roles))
        records = json_records(path)
        while some := list(islice(records, _AT_A_TIME)):
            prompts = [_text(record, self.prompt, where) + self.separator for where, record in some]
            responses = [_text(record, self.response, where) for where, record in some]
            before, after = tokenizer.encode_batch(prompts), tokenizer.encode_batch(responses, first=False)
            alone = [i for i, prompt in enumerate(prompts) if not prompt]  # these responses begin their texts
            for i, ids in zip(alone, tokenizer.encode_batch([responses[i] for i in alone]), strict=True):
                after[i] = ids
            for (where, _), prompt, response, first, then in zip(some, prompts, responses, before, after, strict=True):
                if not len(then):
                    raise DataError(f"the response at {where} has no tokens", subject=where)
                row = np.concatenate([begin, first, then, end])
                yield _Row(where, row, len(begin) + len(first), len(prompt) + len(response))


class _Row(NamedTuple):
    """Where it stands in the file, its tokens without padding, how many of them are given, its characters."""

    where: str
    tokens: Ids
    given: int
    characters: int


class PromptRows(RaggedRows):
    """A file of prompts and responses, as tokens in memory.

    Args:
        tokens: [sum of lengths] ids of all rows, one after the other, without padding.
        lengths: [rows] tokens of each.
        given: [rows] how many of them, from the beginning, are given.
    """

    def __init__(
        self,
        name: str,
        config: Prompts,
        tokenizer: Tokenizer,
        tokens: NDArray[np.uint32],
        lengths: NDArray[np.int64],
        given: NDArray[np.int64],
    ) -> None:
        self._name, self._length = name, config.length
        self.pad_id, self.padding_counts = tokenizer.roles.pad_id, config.padding
        self.text, self.row_lengths, self.given_lengths = tokens, lengths, given
        self.starts = np.cumsum(lengths) - lengths
        head = {"rows": len(lengths), "length": config.length, "padding": config.padding}
        digest = hashlib.sha256(json.dumps({**head, "tokenizer": tokenizer.fingerprint}, sort_keys=True).encode())
        for array in (tokens.astype("<u4"), lengths.astype("<i8"), given.astype("<i8")):
            digest.update(array.tobytes())
        self._key = digest.hexdigest()


def _one_file(path: str) -> Path:
    _, files = find_files(path)
    if len(files) > 1:
        raise DataError(f"{path} has {len(files)} files", fix="name one of them", subject=str(path))
    return files[0]


def _text(record: object, field: str, where: str) -> str:
    asked = f"cannot read the field {field!r} of {where}"
    if not isinstance(record, dict):
        raise DataError(
            f"{where} must be an object with a prompt and a response, got {str(record)[:60]!r}", subject=where
        )
    if field not in record:
        found = f"the fields {', '.join(record) or '(none)'}"
        raise DataError(f"{asked}: {found}; name them with prompt= and response=", subject=field)
    text = record[field]
    if not isinstance(text, str):
        raise DataError(f"the field {field!r} of {where} must be a string, got {str(text)[:60]}", subject=field)
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a character, which no tokenizer takes
        found = f"half a character, {text[error.start]!r}"
        raise DataError(
            f"the field {field!r} of {where} has half a character, {text[error.start]!r}", subject=field
        ) from error
    return text
