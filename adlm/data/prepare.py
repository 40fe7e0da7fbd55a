"""Tokenize and pack a source into shards: in parallel, in flat memory, resumable, and the same bytes every time.

Text is read in chunks of a fixed size, encoded by worker processes, and packed in order by one process. A
shard is closed only at the end of a chunk, and what is needed to resume there is written next to it; so
neither the number of workers nor an interruption changes a byte. The folder's name carries a key over source,
split, tokenizer, packing and format: whatever shapes the bytes changes the folder.
"""

import hashlib
import json
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from adlm.data.packing import NOTHING, Encoded, Ids, Packing
from adlm.data.shards import FORMAT, MANIFEST, Shards
from adlm.data.source import Piece, Source
from adlm.data.table import PreparationCallback
from adlm.data.tokenizer import Tokenizer, characters, load_tokenizer, train_bpe, train_words
from adlm.errors import ConfigError, DataError, OutOfRange
from adlm.files import file_checksum, write_atomically

CHUNK_CHARACTERS = 1 << 19
SHARD_TOKENS = 1 << 24
_PROGRESS = "progress.json"
_TOKENIZER = "tokenizer"
_TRAINING = 1  # raised when the same text gives another tokenizer


@dataclass
class _State:
    """Where a preparation stands after its last closed shard."""

    chunks: int = 0
    documents: int = 0
    characters: int = 0
    rows: int = 0
    tokens: int = 0
    rest: Ids = field(default_factory=lambda: NOTHING)
    shards: list[str] = field(default_factory=list)


def default_cache() -> Path:
    """The folder for prepared data: $ADLM_CACHE, or the user's cache folder."""
    return Path(os.environ.get("ADLM_CACHE", "~/.cache/adlm")).expanduser() / "data"


def data_key(source: Source, split: str, tokenizer: Tokenizer, packing: Packing) -> dict[str, Any]:
    """Everything that shapes the bytes of the shards."""
    return {
        "format": FORMAT,
        **_text_key(source, split),
        "tokenizer": tokenizer.fingerprint,
        "packing": {"class": type(packing).__name__, **asdict(packing)},
        "shard_tokens": SHARD_TOKENS,
        "chunk_characters": CHUNK_CHARACTERS,
    }


def _text_key(source: Source, split: str) -> dict[str, Any]:
    return {
        "source": {"class": type(source).__name__, "name": source.name, **source.fingerprint(split)},
        "split": split,
    }


def tokenizer_for(
    name: str,
    source: Source | None = None,
    split: str | None = None,
    *,
    cache: Path | None = None,
    force: bool = False,
) -> Tokenizer:
    """A tokenizer by name: bpe:SIZE, words, characters, or what `load_tokenizer` takes.

    The first two are trained on the beginning of a split and kept, so that a run that is started again, and every
    process of it, gets the same one without waiting.

    Args:
        split: the first of the source by default.
        cache: the folder that holds one folder per trained tokenizer, beside those of prepared splits.
        force: train it again.
    """
    train = _training(name)
    if train is None:
        return characters() if name == "characters" else load_tokenizer(name)
    if source is None:
        raise ConfigError(
            f"the tokenizer {name!r} has to be trained on a corpus, and there is none here",
            fix="name the tokenizer of the model to begin with: its folder or its Hub name",
            subject=name,
        )
    split = split or source.splits[0]
    folder, _ = _folder(
        source, _TOKENIZER, {"training": _TRAINING, **_text_key(source, split), "tokenizer": name}, cache
    )
    kept, new = folder / _TOKENIZER, folder / f"{_TOKENIZER}.tmp"
    with FileLock(folder.with_name(folder.name + ".lock")):
        if kept.exists() and not force:
            with suppress(DataError):  # damaged: the text says what it has to be
                return load_tokenizer(kept)
        for old in (kept, new):
            shutil.rmtree(old, ignore_errors=True)
        train(source.beginning(split)).save(new)
        new.replace(kept)
        return load_tokenizer(kept)


def _training(name: str) -> Callable[[Iterable[str]], Tokenizer] | None:
    """What trains a tokenizer of that name, if one has to be trained."""
    kind, colon, size = name.partition(":")
    if kind != "bpe" or not colon:
        return train_words if name == "words" else None
    if not size.isdecimal():
        raise ConfigError(f"the tokenizer {name!r} needs a size after the colon, as in bpe:8192", subject=name)
    return partial(train_bpe, vocab_size=int(size))


def _folder(source: Source, what: str, made_of: dict[str, Any], cache: Path | None) -> tuple[Path, str]:
    """Where what is made of a source is kept, and the key over all that it is made of."""
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in source.name)
    folder = (cache or default_cache()) / f"{name}-{what}-{key[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot prepare data in {folder}: {error}", subject=str(folder)) from error
    return folder, key


def prepare(
    source: Source,
    split: str,
    tokenizer: Tokenizer,
    packing: Packing,
    *,
    cache: Path | None = None,
    workers: int = 1,
    force: bool = False,
    verify: bool = True,
    watch: PreparationCallback | None = None,
) -> Shards:
    """The shards of a split: opened if they exist, finished if they were begun, made otherwise.

    Args:
        cache: the folder that holds one folder per prepared split.
        workers: processes that encode; 1 encodes in this process, on all its threads.
        force: throw away what is there, damaged or not.
        verify: compare every checksum; of several processes, one is enough.
        watch: told after every chunk.
    """
    if workers < 1:
        raise OutOfRange("workers", workers, "at least 1")
    description = data_key(source, split, tokenizer, packing)
    folder, key = _folder(source, split, description, cache)
    with FileLock(folder.with_name(folder.name + ".lock")):
        if force:
            shutil.rmtree(folder)
            folder.mkdir()
        if not (folder / MANIFEST).exists():
            _write(source, split, tokenizer, packing, folder, workers, watch, {"key": key, "made_of": description})
        return Shards.open(folder, verify=verify)


def _write(
    source: Source,
    split: str,
    tokenizer: Tokenizer,
    packing: Packing,
    folder: Path,
    workers: int,
    watch: PreparationCallback | None,
    head: dict[str, Any],
) -> None:
    tokenizer.save(folder / _TOKENIZER)
    state = _resume(folder)
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    tables: list[tuple[Ids, Ids]] = []
    # The grouping is part of the format: resuming counts chunks.
    chunks = islice(grouped(source.pieces(split), CHUNK_CHARACTERS), state.chunks, None)
    rest, waiting = state.rest, 0
    for chunk, encoded in _encode(chunks, tokenizer, workers):
        rows, lengths, rest = packing.pack(rest, encoded, tokenizer.roles)
        state.chunks += 1
        state.documents += sum(piece.ends for piece in chunk)
        state.characters += sum(len(piece.text) for piece in chunk)
        state.tokens += sum(len(ids) for ids, _ in encoded)
        state.rows += len(rows)
        waiting += rows.size
        tables.append((rows.astype(dtype), lengths))
        if waiting >= SHARD_TOKENS:
            _close_shard(folder, tables, state, rest, padded=packing.pads)
            tables, waiting = [], 0
        if watch is not None:
            watch(state.documents, state.characters, state.rows)
    if not state.rows:
        raise DataError(
            f"{source.name} ({split}) has no full row of {packing.length} tokens: {state.documents} documents with "
            f"{state.tokens} tokens",
            subject=split,
        )
    if waiting:
        _close_shard(folder, tables, state, rest, padded=packing.pads)
    files = sorted(path for path in folder.glob("shard-*.npy"))
    manifest = {
        **head,
        "format": FORMAT,
        "source": source.name,
        "split": split,
        "licence": source.licence,
        "documents": state.documents,
        "characters": state.characters,
        "tokens": state.tokens,
        "rows": state.rows,
        "length": packing.length,
        "padded": packing.pads,
        "padding_counts": packing.padding_counts,
        "apart": packing.keeps_apart,
        "vocab_size": tokenizer.vocab_size,
        "shards": state.shards,
        "files": [{"name": f.name, "bytes": f.stat().st_size, "sha256": file_checksum(f)} for f in files],
    }
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    (folder / _PROGRESS).unlink(missing_ok=True)


def grouped(pieces: Iterable[Piece], characters: int) -> Iterator[list[Piece]]:
    """The pieces in groups of at least this many characters, except for the last group."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += len(piece.text)
        if size >= characters:
            yield group
            group, size = [], 0
    if group:
        yield group


def _close_shard(folder: Path, tables: list[tuple[Ids, Ids]], state: _State, rest: Ids, *, padded: bool) -> None:
    name = f"shard-{len(state.shards):05d}.npy"
    rows = np.concatenate([rows for rows, _ in tables])
    lengths = np.concatenate([lengths for _, lengths in tables])
    if padded:
        _save(folder / name.replace(".npy", ".lengths.npy"), lengths.astype(np.uint32))
    _save(folder / name, rows)
    state.shards.append(name)
    state.rest = rest
    write_atomically(folder / _PROGRESS, json.dumps({**vars(state), "rest": rest.tolist()}))


def _save(path: Path, array: Ids) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DataError(
            f"cannot write {path}",
            str(error),
            "make room and run it again: it resumes after the last whole shard",
            subject=str(path),
        ) from error
    temporary.replace(path)


def _resume(folder: Path) -> _State:
    if not (folder / _PROGRESS).exists():
        return _State()
    found = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
    return _State(**{**found, "rest": np.array(found["rest"], np.int64)})


_worker_tokenizer: Tokenizer


def _start_worker(tokenizer: Tokenizer) -> None:
    global _worker_tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_tokenizer = tokenizer


def _encode_in_worker(texts: list[str]) -> list[Ids]:
    return _worker_tokenizer.encode_batch(texts)


def _encode(
    chunks: Iterator[list[Piece]], tokenizer: Tokenizer, workers: int
) -> Iterator[tuple[list[Piece], list[Encoded]]]:
    """Chunks and their ids, in order. At most two chunks per worker are in flight, so memory stays flat."""

    def join(chunk: list[Piece], ids: list[Ids]) -> tuple[list[Piece], list[Encoded]]:
        return chunk, [Encoded(i, piece.ends) for i, piece in zip(ids, chunk, strict=True)]

    beginning = list(islice(chunks, 2))
    chunks = chain(beginning, chunks)
    if workers == 1 or len(beginning) < 2:  # starting processes takes longer than one chunk
        for chunk in chunks:
            yield join(chunk, tokenizer.encode_batch([piece.text for piece in chunk]))
        return
    waiting: deque[tuple[list[Piece], Future[list[Ids]]]] = deque()
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (tokenizer,)) as pool:
        try:
            for chunk in chunks:
                with _main_module_hidden():
                    future = pool.submit(_encode_in_worker, [piece.text for piece in chunk])
                waiting.append((chunk, future))
                if len(waiting) > 2 * workers:
                    first, future = waiting.popleft()
                    yield join(first, future.result())
            while waiting:
                first, future = waiting.popleft()
                yield join(first, future.result())
        except BrokenProcessPool as error:
            raise DataError(
                f"one of {workers} worker processes died (out of memory?)",
                fix="run again with fewer workers; finished shards are kept",
                subject="workers",
            ) from error
        finally:
            for _, future in waiting:
                future.cancel()


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Keep spawned workers from importing the caller's script: they only need this module."""
    main = sys.modules["__main__"]
    kept: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    main.__dict__.update({"__spec__": None})
    main.__dict__.pop("__file__", None)
    try:
        yield
    finally:
        main.__dict__.update(kept)
