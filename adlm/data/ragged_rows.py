"""Rows of different lengths in memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.data.table import Table


class RaggedRows(Table):
    """Rows of different lengths: row i is `row_lengths[i]` tokens of `text` from `starts[i]`, then padding.

    Attributes:
        text: [n] the tokens of all rows, one after the other.
        starts, row_lengths: [rows].
        given_lengths: [rows] how many tokens of each, from the first, are given.
        padding_counts: whether padding is to be predicted.
    """

    text: NDArray[np.uint32]
    starts: NDArray[np.int64]
    row_lengths: NDArray[np.int64]
    given_lengths: NDArray[np.int64]
    pad_id: int
    padding_counts: bool
    _name: str
    _key: str
    _length: int

    @property
    def name(self) -> str:
        return self._name

    @property
    def key(self) -> str:
        return self._key

    @property
    def length(self) -> int:
        return self._length

    def __len__(self) -> int:
        return len(self.row_lengths)

    def tokens(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.of_text(self.text, rows, np.full((len(rows), self.length), self.pad_id, np.int64))

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.row_lengths[rows]

    def valid(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        place = self.places(rows)
        return (place >= 0) & (self.padding_counts | (place < self.row_lengths[rows][:, None]))

    def frozen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        place = self.places(rows)
        return (place >= 0) & (place < self.given_lengths[rows][:, None])

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """[N, length]: the place of each column in its own row; negative in padding before the row, if there is any."""
        return np.broadcast_to(np.arange(self.length), (len(rows), self.length))

    def of_text(self, values: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> NDArray[Any]:
        """`out` [N, length] with the `values` [n] of the rows' tokens at their columns."""
        place = self.places(rows)
        text = (place >= 0) & (place < self.row_lengths[rows][:, None])
        out[text] = values[(self.starts[rows][:, None] + place)[text]]
        return out
