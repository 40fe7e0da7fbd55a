"""Anchor rules that depend on how rare a token is in a corpus.

They read a table that `adlm prepare CORPUS --anchor-table` writes beside the shards. A rule holds the path of the table
and its checksum, so that it is a value and never uses another table than the one it was made with.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adlm.anchors.rules import AnchorRule, TypeRule, check_fraction, check_types, counts_in_row, look_up
from adlm.data.corpus_table import CorpusTable, table_path
from adlm.errors import ConfigError, OutOfRange
from adlm.types import Batch


@dataclass(frozen=True)
class RareInCorpus(TypeRule):
    """Token types that are rare in a corpus; the ones that never occur in it are among them, the mask is not.

    `RareInCorpus.from_table(path, fraction=1e-4)` takes types that make up less than that fraction of all tokens,
    `RareInCorpus.from_table(path, rank=1000)` all but the 1000 most frequent (of equals, lower ids come first).
    """

    table: str
    checksum: str
    fraction: float | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        _check_one_of("RareInCorpus", fraction=self.fraction, rank=self.rank)
        if self.rank is not None and self.rank < 0:
            raise OutOfRange("rank", self.rank, "at least 0")

    @classmethod
    def from_table(cls, path: str | Path, *, fraction: float | None = None, rank: int | None = None) -> "RareInCorpus":
        """The rule with the table at `path`, or in the prepared folder `path`."""
        return cls(*_name_and_checksum(path), fraction=fraction, rank=rank)

    def types(self) -> Tensor:
        corpus = _load(self.table, self.checksum)
        if self.fraction is not None:
            rare = corpus.counts / max(corpus.tokens, 1) < self.fraction
        else:
            rare = np.ones(corpus.vocab_size, bool)
            rare[np.argsort(-corpus.counts, kind="stable")[: self.rank]] = False
        rare[corpus.mask_id] = False
        return torch.from_numpy(rare)


@dataclass(frozen=True)
class TfIdf(AnchorRule):
    """Tokens that are frequent in their row and rare among the documents of a corpus.

    score = (count in the row / length of the row) * log(documents / documents with the token), where padding has no
    length and a token of no document counts as one of a single document. A token of every document has the score 0
    and is no anchor.

    `TfIdf.from_table(path, fraction=0.2)` marks the ceil(0.2 * length) positions of highest score in each row, and with
    them all of the same score: equal tokens of a row are anchors together. `TfIdf.from_table(path, above=0.05)` marks
    every score above.
    """

    table: str
    checksum: str
    fraction: float | None = None
    above: float | None = None

    def __post_init__(self) -> None:
        _check_one_of("TfIdf", fraction=self.fraction, above=self.above)

    @classmethod
    def from_table(cls, path: str | Path, *, fraction: float | None = None, above: float | None = None) -> "TfIdf":
        """The rule with the table at `path`, or in the prepared folder `path`."""
        return cls(*_name_and_checksum(path), fraction=fraction, above=above)

    def check_vocabulary(self, size: int) -> None:
        check_types(len(_inverse_document_frequency(self.table, self.checksum, torch.device("cpu"))), size)

    def scores(self, batch: Batch) -> Tensor:
        """TF-IDF of every token [B, L], 0 at padding."""
        rarity = look_up(_inverse_document_frequency(self.table, self.checksum, batch.tokens.device), batch, "TfIdf")
        length = batch.valid.sum(1, keepdim=True).clamp(min=1)
        return (counts_in_row(batch).to(rarity.dtype) / length * rarity).masked_fill(~batch.valid, 0)

    def mark(self, batch: Batch) -> Tensor:
        scores = self.scores(batch)
        marks = (scores > 0) & batch.valid
        if self.above is not None:
            return marks & (scores > self.above)
        assert self.fraction is not None
        if self.fraction == 0 or not scores.numel():
            return torch.zeros_like(marks)
        # The subtraction keeps 0.07 * 100 = 7.000000000000001 from being 8 positions.
        length = batch.valid.sum(1, keepdim=True).to(scores.dtype)
        count = (length * self.fraction - 1e-6).ceil().long().clamp(min=1)
        ranked = scores.sort(-1, descending=True).values
        return marks & (scores >= ranked.gather(1, count - 1))


@lru_cache(maxsize=8)
def _load(table: str, checksum: str) -> CorpusTable:
    return CorpusTable.read(table, checksum=checksum)


@lru_cache(maxsize=8)
def _inverse_document_frequency(table: str, checksum: str, device: torch.device) -> Tensor:
    """[V] log(documents / documents with the token), float64 where the device has it."""
    corpus = _load(table, checksum)
    rarity = np.log(max(corpus.documents, 1) / np.maximum(corpus.document_counts, 1))
    return torch.from_numpy(rarity).to(device, torch.float32 if device.type == "mps" else torch.float64)


def _name_and_checksum(path: str | Path) -> tuple[str, str]:
    # A rule is stored with the model, and may be read from another working folder.
    path = table_path(path).resolve()
    return str(path), CorpusTable.read(path).checksum


def _check_one_of(rule: str, **thresholds: float | None) -> None:
    given = {name: value for name, value in thresholds.items() if value is not None}
    if len(given) != 1:
        names = " or ".join(thresholds)
        raise ConfigError(f"{rule} needs one of {names}, got {len(given)}", subject=rule)
    if "fraction" in given:
        check_fraction(given["fraction"])
