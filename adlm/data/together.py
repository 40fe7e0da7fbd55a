"""Several kinds of data as one: the rows of the first, then those of the second, and so on."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.data.table import DataConfig, PreparationCallback, Prepared, Table
from adlm.errors import ConfigError

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Together(DataConfig):
    """Parts with the same tokenizer and rows of the same length. Packing is that of the first part."""

    parts: tuple[DataConfig, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ConfigError("Together needs at least one part", subject="data.parts")

    def prepare(
        self, *, cache: Path | None = None, verify: bool = True, watch: PreparationCallback | None = None
    ) -> Prepared:
        found = [part.prepare(cache=cache, verify=verify, watch=watch) for part in self.parts]
        first = found[0]
        for each in found:
            same_tokens = each.tokenizer.fingerprint == first.tokenizer.fingerprint
            if not same_tokens or each.train.length != first.train.length or each.packing.keeps_apart:
                raise ConfigError(
                    f"cannot train on {first.train.name} and {each.train.name} together",
                    f"rows of {first.train.length} and {each.train.length} tokens, "
                    f"{'the same tokenizer' if same_tokens else 'different tokenizers'}",
                    "use one tokenizer and one length, and no packing that keeps documents apart",
                    subject="data.parts",
                )
        valid = [each.valid for each in found if each.valid is not None]
        together = ConcatenatedRows(valid) if valid else None
        return Prepared(ConcatenatedRows([each.train for each in found]), together, first.tokenizer, first.packing)


class ConcatenatedRows(Table):
    """The rows of several tables of one length."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tuple(tables)
        self._ends = np.cumsum([len(table) for table in tables])

    @property
    def name(self) -> str:
        return " and ".join(table.name for table in self.tables)

    @property
    def key(self) -> str:
        return hashlib.sha256(" ".join(table.key for table in self.tables).encode()).hexdigest()

    @property
    def length(self) -> int:
        return self.tables[0].length

    def __len__(self) -> int:
        return int(self._ends[-1])

    def tokens(self, rows: Rows) -> Rows:
        return self._gathered(rows, lambda table, own: table.tokens(own), np.zeros((len(rows), self.length), np.int64))

    def lengths(self, rows: Rows) -> Rows:
        return self._gathered(rows, lambda table, own: table.lengths(own), np.zeros(len(rows), np.int64))

    def valid(self, rows: Rows) -> NDArray[np.bool_]:
        return self._gathered(rows, lambda table, own: table.valid(own), np.zeros((len(rows), self.length), np.bool_))

    def frozen(self, rows: Rows) -> NDArray[np.bool_]:
        return self._gathered(rows, lambda table, own: table.frozen(own), np.zeros((len(rows), self.length), np.bool_))

    def _gathered(self, rows: Rows, read: Callable[[Table, Rows], Any], out: NDArray[Any]) -> NDArray[Any]:
        """`out` [N, ...] with what each table has for its rows; None leaves it as it is."""
        owner = np.searchsorted(self._ends, rows, side="right")
        for number, table in enumerate(self.tables):
            mine = owner == number
            if mine.any() and (values := read(table, rows[mine] - (self._ends[number] - len(table)))) is not None:
                out[mine] = values
        return out
