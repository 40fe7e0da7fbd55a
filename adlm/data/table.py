"""What a run reads: numbered rows of tokens, wherever they come from, and the value that says which."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adlm.data.packing import Packing
from adlm.data.tokenizer import Tokenizer


class Table(ABC):
    """Rows of one length. Any rows can be read in any order, the same in every call."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the table in messages."""

    @property
    @abstractmethod
    def key(self) -> str:
        """A checksum that changes when any row does: a run resumes only with the data it began with."""

    @property
    @abstractmethod
    def length(self) -> int:
        """The number of tokens per row."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def tokens(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The token ids [N, length] of the rows with these indices."""

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of text tokens [N] in each row, including given ones and without padding; by default all."""
        return np.full(len(rows), self.length)

    def valid(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The positions [N, length] that count: False at padding, unless padding is predicted."""
        return np.arange(self.length) < self.lengths(rows)[:, None]

    def frozen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """The given positions [N, length], such as a prompt: seen, never masked, never scored, never padding."""
        return None

    def documents(self, tokens: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The document [N, length] of its row that each token belongs to, if documents must not see each other."""
        return None

    def targets(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The extra target [N, length] of the state at each position, besides its token; -1 means none."""
        return None

    def anchors(self, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """The anchors [N, length], if the data marks them (`adlm.anchors.rules.Given`)."""
        return None

    def scored_lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of tokens [N] that a model has to write, by which nats are divided for a perplexity.

        Neither what is given nor padding is among them, even where predicted padding costs nats: a perplexity is
        that of a text, whatever the length of the row it stands in.
        """
        fixed = self.frozen(rows)
        return self.lengths(rows) if fixed is None else self.lengths(rows) - fixed.sum(-1)


def document_numbers(tokens: NDArray[np.int64], end_id: int) -> NDArray[np.int64]:
    """The document [N, length] of its row that each token belongs to: one ends with its end token."""
    ends = tokens == end_id
    # At the very beginning of a row it separates nothing: in framed rows it may be the begin token too.
    ends[:, 0] = False
    return ends.cumsum(-1) - ends


class Prepared(NamedTuple):
    """Data that is ready to train on. `valid` is None where nothing is held out; `packing` says how a text becomes
    a row for the model later."""

    train: Table
    valid: Table | None
    tokenizer: Tokenizer
    packing: Packing


class PreparationCallback(Protocol):
    """A callback that receives the documents and characters read so far, and the number of rows."""

    def __call__(self, documents: int, characters: int, rows: int) -> None: ...


@dataclass(frozen=True)
class DataConfig(ABC):
    """The data of a run, as a value. All kinds are in `adlm.data.config`."""

    @abstractmethod
    def prepare(
        self, *, cache: Path | None = None, verify: bool = True, watch: PreparationCallback | None = None
    ) -> Prepared:
        """Prepare the data, or load it from the cache. Several processes may call it at once.

        Args:
            cache: where prepared data is kept, if not in the user's cache.
            verify: compare checksums of what is found; one process of a machine is enough.
        """
