"""Sequences whose tokens depend on a few anchors alone, with exactly known likelihood: theory can be held against them.

Anchors are drawn first, each for itself; every other token is drawn from a random table's row for the anchors' values.
Given the anchors, tokens are independent, so entropies and marginals are finite sums. A row is a function of the seed,
the split and its number, as in `synthetic.py`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlm.data.packing import Packing, Padded
from adlm.data.synthetic import SPLITS, Synthetic, uniform_rows
from adlm.data.table import DataConfig, PreparationCallback, Prepared, Table
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, OutOfRange

FIRST = 2  # id of the first value; the end and unknown tokens of the tokenizer are before it, the mask after the last
_DRAWING = 1  # raised when the same seeds give other tables or rows
_MOST = 1 << 27  # numbers in the table: a gigabyte

Array = NDArray[np.float64]
Ids = NDArray[np.int64]


def spread(count: int, length: int) -> tuple[int, ...]:
    """Evenly spaced positions, with as much room before the first as after the last."""
    return tuple((2 * i + 1) * length // (2 * count) for i in range(count))


def at_the_front(count: int, length: int) -> tuple[int, ...]:
    """The first positions: read from the left, a token comes after all that it depends on."""
    return tuple(range(count))


def at_the_back(count: int, length: int) -> tuple[int, ...]:
    """The last positions: read from the left, a token comes before all that it depends on."""
    return tuple(range(length - count, length))


Placing = Callable[[int, int], tuple[int, ...]]


@dataclass(frozen=True)
class AnchoredProcess(DataConfig):
    """Rows of a process with a known anchor set.

    Args:
        values: that a token can have.
        length: tokens per row.
        anchors: their positions in a row.
        concentration: of the Dirichlet distribution that the tables' rows come from; small ones are nearly certain
            of a token, large ones of none.
        zipf: the k-th value of an anchor has a probability proportional to k ** -zipf; 0 is uniform.
        law: seed of the tables.
        count: rows to train on.
        held_out: rows to validate on, and as many others to test on.
        seed: of the rows.
    """

    values: int = 4
    length: int = 12
    anchors: tuple[int, ...] = (3, 9)
    concentration: float = 0.3
    zipf: float = 0.0
    law: int = 0
    count: int = 1000
    held_out: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        self._packing()  # refuses rows that are too short
        least = {"values": 2, "concentration": 0.05, "zipf": 0, "law": 0, "count": 1, "held_out": 1, "seed": 0}
        for name, small in least.items():
            if (value := getattr(self, name)) < small:
                raise OutOfRange(name, value, f"at least {small}")
        positions = sorted(set(self.anchors))
        if not positions or len(positions) != len(self.anchors) or positions[0] < 0 or positions[-1] >= self.length:
            raise OutOfRange("anchors", self.anchors, f"different positions from 0 to {self.length - 1}")
        if (size := self.length * self.values ** (len(positions) + 1)) > _MOST:
            raise ConfigError(
                f"{len(positions)} anchors of {self.values} values need tables of {size:,} numbers, more than "
                f"{_MOST:,}",
                subject="values",
            )

    @property
    def vocabulary(self) -> int:
        """Ids of the tokenizer: the values and the end, unknown and mask tokens."""
        return self.values + FIRST + 1

    def prepare(
        self, *, cache: Path | None = None, verify: bool = True, watch: PreparationCallback | None = None
    ) -> Prepared:
        tokenizer: Tokenizer = Synthetic(self.vocabulary, self.length).tokenizer()
        return Prepared(self.rows("train"), self.rows("valid"), tokenizer, self._packing())

    def rows(self, split: str) -> "AnchoredRows":
        """The rows of train, valid or test."""
        return AnchoredRows(self, split)

    def exact(self) -> "RowDistribution":
        """The distribution of rows."""
        return _distribution(self.values, self.length, self.anchors, self.concentration, self.zipf, self.law)

    def _packing(self) -> Packing:
        return Padded(self.length, begin=False, end=False, crop=True)  # a row is one text, and its positions count


class RowDistribution(NamedTuple):
    """The distribution p(x) = sum over contexts c of chances[c] * product over positions l of table[l, c, x_l].

    A context is a choice of values for all anchors, the first the most significant digit; at an anchor's own place
    the table says its digit for certain.

    Args:
        probabilities: [C], C = values ** anchors.
        table: [L, C, values].
    """

    probabilities: Array
    table: Array

    @property
    def entropy(self) -> float:
        """Nats per row: that of the anchors, and of every other token given them."""
        return float(_entropies(self.probabilities) + self.probabilities @ _entropies(self.table).sum(0))

    @property
    def apart(self) -> float:
        """Nats per row of a model that knows the frequencies at each position and no dependence: sum of H(x_l)."""
        return float(_entropies(np.einsum("c,lcv->lv", self.probabilities, self.table)).sum())

    def nats(self, values: Ids) -> Array:
        """-log p [N] of rows of values [N, L], counted from 0."""
        each = np.ones((len(values), len(self.probabilities)))
        for place, table in enumerate(self.table):
            each *= table[:, values[:, place]].T
        with np.errstate(divide="ignore"):
            return -np.log(each @ self.probabilities)


@lru_cache(maxsize=8)
def _distribution(
    values: int, length: int, anchors: tuple[int, ...], concentration: float, zipf: float, seed: int
) -> RowDistribution:
    alone = np.arange(1, values + 1) ** -float(zipf)
    alone /= alone.sum()
    digits = np.indices((values,) * len(anchors)).reshape(len(anchors), -1)  # [d, C]
    random = np.random.Generator(np.random.Philox(key=np.array([seed, len(SPLITS)], np.uint64)))
    others = [place for place in range(length) if place not in anchors]
    drawn = random.standard_gamma(concentration, (len(others), digits.shape[1], values))
    table = np.empty((length, digits.shape[1], values))
    table[others] = drawn / drawn.sum(-1, keepdims=True)
    table[list(anchors)] = np.eye(values)[digits]
    table.flags.writeable = False  # shared by all who ask
    return RowDistribution(alone[digits].prod(0), table)


def _entropies(probabilities: Array) -> Array:
    """Nats of the distributions along the last axis."""
    logs = np.log(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    return -(probabilities * logs).sum(-1)


class AnchoredRows(Table):
    """A split of `AnchoredProcess`, computed as it is read."""

    def __init__(self, config: AnchoredProcess, split: str) -> None:
        self.config, self.split = config, split
        exact = config.exact()
        self._contexts, self._values = exact.probabilities.cumsum(), exact.table.cumsum(-1)

    @property
    def name(self) -> str:
        return f"anchored-process-{self.split}"

    @property
    def key(self) -> str:
        table = hashlib.sha256(self.config.exact().table.round(9).tobytes()).hexdigest()
        return hashlib.sha256(repr((_DRAWING, astuple(self.config), table, self.split)).encode()).hexdigest()

    @property
    def length(self) -> int:
        return self.config.length

    def __len__(self) -> int:
        return self.config.count if self.split == "train" else self.config.held_out

    def values(self, rows: Ids) -> Ids:
        """The values [N, length] of these rows, counted from 0: ids without `FIRST`."""
        uniform = uniform_rows(self.config.seed, self.split, rows, self.length + 1)
        # Sums may end a little below one.
        contexts = np.searchsorted(self._contexts[:-1], uniform[:, 0], side="right")
        sums = self._values[:, contexts, :-1]  # [L, N, values - 1]
        return (sums <= uniform[:, 1:].T[..., None]).sum(-1).T

    def tokens(self, rows: Ids) -> Ids:
        return self.values(rows) + FIRST
