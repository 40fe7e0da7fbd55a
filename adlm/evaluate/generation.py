"""Figures of generated texts: how likely, how varied, how repetitive, how much copied, how far from real ones.

All are over the judge's tokens of each text, cut at its length, so that texts of any system, and real ones, are
measured alike. None says enough alone: dull repetition is likely, and noise is varied.
"""

import hashlib
import heapq
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlm.distributed import DistributedContext
from adlm.errors import ConfigError, DataError
from adlm.evaluate.judge import Ids, Judged
from adlm.evaluate.perplexity import ratio
from adlm.evaluate.result import Figure
from adlm.evaluate.work import Watch, checksum

CHUNK = 64  # texts that are written, and stored, at a time
COPY = 8  # tokens that are no coincidence
_REPEAT = 4
_CHUNKS = 1 << 20  # that a seed has for itself

Array = NDArray[np.float64]


class Samples(NamedTuple):
    """Texts, and the seconds it took to write them, all processes together."""

    texts: list[str]
    seconds: float


def write_samples(
    write: Callable[[int, int], list[str]],
    count: int,
    *,
    path: Path,
    seed: int = 0,
    made_of: Mapping[str, Any] | None = None,
    prepare: Callable[[], object] | None = None,
    world: DistributedContext | None = None,
    watch: Watch | None = None,
) -> Samples:
    """`count` texts from `write(n, seed)`, kept in `path` a chunk at a time, so that an interruption costs one chunk.

    Text i of the chunk c is text i of seed * 2^20 + c, so texts do not depend on how many are asked for.

    Args:
        path: JSON lines with `text`, `seed`, `index`. One that was made of other things is replaced.
        made_of: model and sampler.
        prepare: called once before the clock runs, if anything is left to write.
    """
    world = world or DistributedContext()
    key = checksum({"made_of": made_of or {}, "seed": seed})[:16]
    done = world.on_first(lambda: _kept(path, key, seed, count))
    chunks = range(len(done) // CHUNK, -(-count // CHUNK)) if len(done) < count else range(0)
    if chunks and prepare is not None:
        prepare()
    for start in range(0, len(chunks), world.size):
        turn = chunks[start : start + world.size]
        mine = turn[min(world.rank, len(turn) - 1)]
        number, began = seed * _CHUNKS + mine, time.perf_counter()
        texts = write(min(CHUNK, count - mine * CHUNK), number)
        each = (time.perf_counter() - began) / len(texts)
        records = [
            {"text": text, "seed": number, "index": i, "seconds": each, "key": key} for i, text in enumerate(texts)
        ]
        new = [record for part in world.all(records)[: len(turn)] for record in part]
        done += new
        if world.first:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record) + "\n" for record in new)
        if watch is not None:
            watch(len(done), count)
    return Samples([record["text"] for record in done], sum(record["seconds"] for record in done))


def _kept(path: Path, key: str, seed: int, count: int) -> list[dict[str, Any]]:
    """The whole chunks that a file begins with; what follows them is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:count]):
        try:
            record = json.loads(line) if line.endswith(b"\n") else {}
        except ValueError:
            record = {}
        position = (seed * _CHUNKS + number // CHUNK, number % CHUNK)
        if not isinstance(record, dict) or record.get("key") != key or (record["seed"], record["index"]) != position:
            break
        records.append(record)
    if len(records) < count:
        del records[len(records) // CHUNK * CHUNK :]
    path.write_bytes(b"".join(lines[: len(records)]))
    return records


def read_texts(path: Path, count: int | None = None, *, field: str = "text") -> list[str]:
    """The first `count` texts of a file: .jsonl with a `text`, or another field, in each object, else one a line."""
    asked = f"asked for the {field}s in {path}"
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()][:count]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(asked, str(error), "name a text file in UTF-8") from error
    if not lines:
        raise DataError(asked, "nothing in it", "write one a line")
    if path.suffix != ".jsonl":
        return [line.removesuffix("\r") for line in lines]
    texts = []
    for number, line in enumerate(lines, 1):
        try:
            text = json.loads(line)[field]
        except (ValueError, TypeError, KeyError):
            text = None
        if not isinstance(text, str):
            fix = f'write an object a line, as in {{"{field}": "Once"}}'
            raise DataError(asked, f'no string named "{field}" in the object of line {number}', fix)
        texts.append(text)
    return texts


def draw_references(documents: Iterable[str], count: int, *, seed: int = 0) -> list[str]:
    """`count` documents by lot, without replacement; empty ones have none. Memory holds only those drawn.

    Each document's lot is a function of the seed and its number; the lowest win, so fewer are the first of more.
    """
    drawn: list[tuple[int, int, str]] = []
    found = 0
    for number, text in enumerate(documents):
        if not text.strip():
            continue
        found += 1
        lot = int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest(), "big")
        if len(drawn) < count:
            heapq.heappush(drawn, (-lot, number, text))
        elif -lot > drawn[0][0]:
            heapq.heapreplace(drawn, (-lot, number, text))
    if found < count:
        asked = f"asked for {count:,} references, none of them twice"
        raise DataError(
            asked, f"{found:,} documents that are not empty", f"ask for at most {found:,}, or name more text"
        )
    return [text for _, _, text in sorted(drawn, reverse=True)]


def figures(judged: Judged) -> dict[str, Figure]:
    """What can be said of texts by themselves."""
    entropy = np.array([token_entropy(row) for row in judged.rows if len(row)])
    repeated = np.array([repetition(row) for row in judged.rows if len(row) >= _REPEAT])
    lengths = np.array([len(row) for row in judged.rows], np.float64)
    return {
        "perplexity": generative_perplexity(judged.nats, judged.tokens),
        "entropy": mean_figure(entropy, "nats"),
        **{f"distinct_{n}": Figure(distinct(judged.rows, n), kind="exact") for n in (1, 2, 3)},
        f"repetition_{_REPEAT}": mean_figure(repeated),
        "tokens": mean_figure(lengths, "tokens of the judge"),
        "cut": Figure(judged.cut, kind="exact", unit="texts"),
        "empty": Figure(float((lengths == 0).sum()), kind="exact", unit="texts"),
    }


def generative_perplexity(nats: Array, tokens: NDArray[np.int64]) -> Figure:
    """exp of nats per token over all texts together, each token weighing the same.

    The error is over texts: that of a ratio of two sums, through the exponential (both by the delta method).
    """
    if not tokens.sum():
        raise DataError(f"asked for the perplexity of {len(tokens):,} texts", "no token to score", "give longer texts")
    mean, error = ratio(nats, tokens.astype(np.float64))
    value = math.exp(mean) if mean < 700 else math.inf
    return Figure(value, value * error, unit="a token of the judge")


def token_entropy(row: Ids) -> float:
    """Of the tokens of one text, in nats: -sum p log p with p the fraction of each type. At most log(length)."""
    _, counts = np.unique(row, return_counts=True)
    fractions = counts / len(row)
    return float(-(fractions * np.log(fractions)).sum())


def repetition(row: Ids, n: int = _REPEAT) -> float:
    """The fraction of a text's n-grams that it has had before."""
    grams = hashed_ngrams(row, n)
    return 1 - len(np.unique(grams)) / len(grams)


def distinct(rows: Sequence[Ids], n: int) -> float:
    """Different n-grams for each n-gram of all texts together. It falls with the number of texts."""
    grams = np.concatenate([hashed_ngrams(row, n) for row in rows])
    return len(np.unique(grams)) / len(grams) if len(grams) else math.nan


class Copies(NamedTuple):
    """Of each text [n]: the fraction of its n-grams that occur in the training text (nan where it has none), and the
    longest stretch in tokens of which all n-grams do: no copy is longer."""

    fraction: Array
    longest: NDArray[np.int64]


def copies(rows: Sequence[Ids], training: Iterable[Sequence[Ids]], *, n: int = COPY) -> Copies:
    """Look the n-grams of texts up in training text, which streams by in lists of documents.

    Memory holds 8 bytes for each different n-gram of the texts; the training text may have any size.
    """
    grams = [hashed_ngrams(row, n) for row in rows]
    output_mask = np.unique(np.concatenate(grams))
    found = np.zeros(len(output_mask), np.bool_)
    for documents in training:
        seen = np.unique(_ngrams_of_each(documents, n))
        found |= np.isin(output_mask, seen, assume_unique=True)
    fraction, longest = np.full(len(rows), np.nan), np.zeros(len(rows), np.int64)
    for i, each in enumerate(grams):
        if len(each):
            hits = found[np.searchsorted(output_mask, each)]
            fraction[i], run = hits.mean(), _longest_run(hits)
            longest[i] = run + n - 1 if run else 0
    return Copies(fraction, longest)


def copy_figures(found: Copies, n: int = COPY) -> dict[str, Figure]:
    return {
        f"copied_{n}": mean_figure(found.fraction[~np.isnan(found.fraction)], f"fraction of {n}-grams"),
        "longest_copy": mean_figure(found.longest.astype(np.float64), "tokens"),
        "longest_copy_of_all": Figure(float(found.longest.max()), kind="exact", unit="tokens"),
    }


def mean_figure(values: Array, unit: str = "") -> Figure:
    """The mean and its standard error over texts."""
    if not len(values):
        return Figure(math.nan, unit=unit)
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    return Figure(float(values.mean()), error, unit=unit)


def hashed_ngrams(row: Ids, n: int) -> NDArray[np.uint64]:
    """[len - n + 1]: 64 bits for each n-gram, equal where tokens are; two different ones meet once in 2^64 or so."""
    if n < 1:
        raise ConfigError(f"asked for {n}-grams", "fewer than 1 token", "give 1 or more")
    if len(row) < n:
        return np.zeros(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(row, n).T.astype(np.uint64)
    found = np.full(windows.shape[1], n, np.uint64)
    for tokens in windows:
        found = _mixed(found ^ _mixed(tokens + np.uint64(0x9E3779B97F4A7C15)))
    return found


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finisher: every bit of the outcome hangs on all of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _ngrams_of_each(documents: Sequence[Ids], n: int) -> NDArray[np.uint64]:
    """Those of all documents; none reaches from one into the next."""
    documents = [document for document in documents if len(document) >= n]
    if not documents:
        return np.zeros(0, np.uint64)
    whose = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    return hashed_ngrams(np.concatenate(documents), n)[whose[: len(whose) - n + 1] == whose[n - 1 :]]


def _longest_run(hits: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], hits, [False]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))
