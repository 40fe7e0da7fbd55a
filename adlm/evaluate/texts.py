"""Texts to measure: written by a model, resumable after an interruption; read from a file; or drawn from a corpus."""

import hashlib
import heapq
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from adlm.distributed import DistributedContext
from adlm.errors import DataError
from adlm.resumable import CountCallback, checksum

CHUNK = 64  # texts that are written and stored together
_CHUNKS = 1 << 20  # per seed


class Samples(NamedTuple):
    """Texts, and the seconds that all processes together took to write them."""

    texts: list[str]
    seconds: float


def write_samples(
    write: Callable[[int, int], list[str]],
    count: int,
    *,
    path: Path | None = None,
    seed: int = 0,
    made_of: Mapping[str, Any] | None = None,
    prepare: Callable[[], object] | None = None,
    context: DistributedContext | None = None,
    progress: CountCallback | None = None,
) -> Samples:
    """`count` texts from `write(n, seed)`, stored in chunks, so that an interruption costs one chunk.

    Text i of chunk c is text i of the seed `seed * 2^20 + c`, so texts do not depend on their number.

    Args:
        path: a file of JSON lines with `text`, `seed`, `index`, which is resumed if it was made of the same things and
            replaced if not. None: texts are kept in memory alone.
        made_of: model and sampler.
        prepare: called once before the clock starts, if anything is left to write.
    """
    context = context or DistributedContext()
    key = checksum({"made_of": made_of or {}, "seed": seed})[:16]
    done = context.on_first(lambda: [] if path is None else _kept(path, key, seed, count))
    chunks = range(len(done) // CHUNK, -(-count // CHUNK)) if len(done) < count else range(0)
    if chunks and prepare is not None:
        prepare()
    for start in range(0, len(chunks), context.size):
        turn = chunks[start : start + context.size]
        mine = turn[min(context.rank, len(turn) - 1)]
        number, began = seed * _CHUNKS + mine, time.perf_counter()
        texts = write(min(CHUNK, count - mine * CHUNK), number)
        each = (time.perf_counter() - began) / len(texts)
        records = [
            {"text": text, "seed": number, "index": i, "seconds": each, "key": key} for i, text in enumerate(texts)
        ]
        new = [record for part in context.all(records)[: len(turn)] for record in part]
        done += new
        if context.first and path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record) + "\n" for record in new)
        if progress is not None:
            progress(len(done), count)
    return Samples([record["text"] for record in done], sum(record["seconds"] for record in done))


def _kept(path: Path, key: str, seed: int, count: int) -> list[dict[str, Any]]:
    """The complete chunks at the beginning of a file; the rest of it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:count]):
        try:
            record = json.loads(line) if line.endswith(b"\n") else {}
        except ValueError:
            record = {}
        place = (seed * _CHUNKS + number // CHUNK, number % CHUNK)
        if not isinstance(record, dict) or record.get("key") != key or (record["seed"], record["index"]) != place:
            break
        records.append(record)
    if len(records) < count:
        del records[len(records) // CHUNK * CHUNK :]
    path.write_bytes(b"".join(lines[: len(records)]))
    return records


def read_texts(path: Path, count: int | None = None, *, field: str = "text") -> list[str]:
    """The first `count` texts of a file: a field of each object in .jsonl files, else one text per line."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()][:count]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read texts from {path}: {error}", subject=str(path)) from error
    if not lines:
        raise DataError(f"{path} is empty", fix="write one text per line", subject=str(path))
    if path.suffix != ".jsonl":
        return [line.removesuffix("\r") for line in lines]
    texts = []
    for number, line in enumerate(lines, 1):
        try:
            text = json.loads(line)[field]
        except (ValueError, TypeError, KeyError):
            text = None
        if not isinstance(text, str):
            asked = f'line {number} of {path} is not an object with a string "{field}"'
            raise DataError(asked, fix=f'write one object per line, as in {{"{field}": "Once"}}', subject=str(path))
        texts.append(text)
    return texts


def draw_references(documents: Iterable[str], count: int, *, seed: int = 0) -> list[str]:
    """`count` random documents, without replacement and without empty ones. Memory holds only those drawn.

    Each document's random number is a function of the seed and its position, and the lowest win: a smaller draw is
    the beginning of a larger one.
    """
    drawn: list[tuple[int, int, str]] = []
    found = 0
    for number, text in enumerate(documents):
        if not text.strip():
            continue
        found += 1
        rank = int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest(), "big")
        if len(drawn) < count:
            heapq.heappush(drawn, (-rank, number, text))
        elif -rank > drawn[0][0]:
            heapq.heapreplace(drawn, (-rank, number, text))
    if found < count:
        raise DataError(
            f"{count:,} references need as many documents, found {found:,} that are not empty",
            fix=f"ask for at most {found:,}, or name more text",
            subject="references",
        )
    return [text for _, _, text in sorted(drawn, reverse=True)]
