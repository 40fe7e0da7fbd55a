"""Figures of generated texts: how likely, how varied, how repetitive and how much copied they are.

All are over the judge's tokens of each text, cut at its length, so that texts of any system, and real ones, are
measured alike. No figure is enough alone: repetitive text is likely, and noise is varied.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlm.errors import DataError, OutOfRange
from adlm.evaluate.judge import Ids, Judged
from adlm.evaluate.result import Figure
from adlm.evaluate.statistics import ratio

COPY = 8  # tokens in a row that are no coincidence
_REPEAT = 4

Array = NDArray[np.float64]


def figures(judged: Judged) -> dict[str, Figure]:
    """The figures of texts by themselves."""
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
    """exp of nats per token over all texts together, every token with the same weight.

    The error is over texts: that of a ratio of two sums, through the exponential (both by the delta method).
    """
    if not tokens.sum():
        raise DataError(f"no token to score in {len(tokens):,} texts", fix="give longer texts", subject="texts")
    mean, error = ratio(nats, tokens.astype(np.float64))
    value = math.exp(mean) if mean < 700 else math.inf
    return Figure(value, value * error, unit="per token of the judge")


def token_entropy(row: Ids) -> float:
    """The entropy of the tokens of one text in nats: -sum p log p, p the fraction of each type. At most log(length)."""
    _, counts = np.unique(row, return_counts=True)
    fractions = counts / len(row)
    return float(-(fractions * np.log(fractions)).sum())


def repetition(row: Ids, n: int = _REPEAT) -> float:
    """The fraction of a text's n-grams that occurred in it before."""
    grams = hashed_ngrams(row, n)
    return 1 - len(np.unique(grams)) / len(grams)


def distinct(rows: Sequence[Ids], n: int) -> float:
    """Different n-grams per n-gram of all texts together. It falls with the number of texts."""
    grams = np.concatenate([hashed_ngrams(row, n) for row in rows])
    return len(np.unique(grams)) / len(grams) if len(grams) else math.nan


class Copies(NamedTuple):
    """How much each of n texts shares with a training text.

    fraction: [n] of its n-grams that occur there (nan if it has none). longest: [n] the longest stretch in tokens of
    which all n-grams occur there, an upper bound of the longest copy.
    """

    fraction: Array
    longest: NDArray[np.int64]


def copies(rows: Sequence[Ids], training: Iterable[Sequence[Ids]], *, n: int = COPY) -> Copies:
    """Look up the n-grams of texts in a training text, which is read once in lists of documents.

    Memory holds 8 bytes per different n-gram of the texts; the training text may have any size.
    """
    grams = [hashed_ngrams(row, n) for row in rows]
    known = np.unique(np.concatenate(grams))
    found = np.zeros(len(known), np.bool_)
    for documents in training:
        seen = np.unique(_ngrams_of_each(documents, n))
        found |= np.isin(known, seen, assume_unique=True)
    fraction, longest = np.full(len(rows), np.nan), np.zeros(len(rows), np.int64)
    for i, each in enumerate(grams):
        if len(each):
            hits = found[np.searchsorted(known, each)]
            fraction[i], run = hits.mean(), _longest_run(hits)
            longest[i] = run + n - 1 if run else 0
    return Copies(fraction, longest)


def copy_figures(found: Copies) -> dict[str, Figure]:
    """The figures of copies, over texts."""
    return {
        f"copied_{COPY}": mean_figure(found.fraction[~np.isnan(found.fraction)], f"fraction of {COPY}-grams"),
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
    """A 64-bit hash of each n-gram: [len - n + 1]."""
    if n < 1:
        raise OutOfRange("n", n, "at least 1")
    if len(row) < n:
        return np.zeros(0, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(row, n).T.astype(np.uint64)
    found = np.full(windows.shape[1], n, np.uint64)
    for tokens in windows:
        found = _mixed(found ^ _mixed(tokens + np.uint64(0x9E3779B97F4A7C15)))
    return found


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finisher of splitmix64: every bit of the result depends on all bits of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _ngrams_of_each(documents: Sequence[Ids], n: int) -> NDArray[np.uint64]:
    """The hashed n-grams of all documents; none reaches from one document into the next."""
    documents = [document for document in documents if len(document) >= n]
    if not documents:
        return np.zeros(0, np.uint64)
    whose = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    return hashed_ngrams(np.concatenate(documents), n)[whose[: len(whose) - n + 1] == whose[n - 1 :]]


def _longest_run(hits: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], hits, [False]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))
