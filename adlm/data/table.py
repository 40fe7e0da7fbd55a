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
        """What to call it in messages."""

    @property
    @abstractmethod
    def key(self) -> str:
        """A checksum that changes when any row does: a run resumes only with the data it began with."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens per row."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def tokens(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """[N, length] ids of the rows with these indices."""

    @abstractmethod
    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """[N] tokens of text in each row, given ones among them, padding left out."""

    @abstractmethod
    def valid(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[N, length]: False at padding, unless padding is to be predicted."""

    def frozen(self, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """[N, length]: True where text is given (a prompt): seen, never masked, never scored. Never at padding."""
        return None

    def documents(self, tokens: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """[N, length]: which document of its row each token belongs to, where they are not to see each other."""
        return None

    def targets(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """[N, length]: what the state at each position is to predict beside its token; -1 where nothing."""
        return None

    def anchors(self, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """[N, length]: the anchors, where the data knows them (`adlm.anchors.rules.Given`)."""
        return None

    def scored_lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """[N] tokens of text that a model has to write: what nats are divided by to give a perplexity.

        Neither what is given nor padding is among them, even where predicted padding costs nats: a perplexity is
        that of a text, whatever the length of the row it stands in.
        """
        fixed = self.frozen(rows)
        return self.lengths(rows) if fixed is None else self.lengths(rows) - fixed.sum(-1)


class Prepared(NamedTuple):
    """Data that is ready to train on. `valid` is None where nothing is held out; `packing` says how a text becomes
    a row for the model later."""

    train: Table
    valid: Table | None
    tokenizer: Tokenizer
    packing: Packing


class PreparationCallback(Protocol):
    """Told from time to time: documents and characters read so far, and the rows they gave."""

    def __call__(self, documents: int, characters: int, rows: int) -> None: ...


@dataclass(frozen=True)
class DataConfig(ABC):
    """What a run reads, as a value. All kinds are in `adlm.data.config`."""

    @abstractmethod
    def prepare(
        self, *, cache: Path | None = None, verify: bool = True, watch: PreparationCallback | None = None
    ) -> Prepared:
        """Made, or found made. Several processes may call it at once.

        Args:
            cache: where prepared data is kept, if not in the user's cache.
            verify: compare checksums of what is found; one process of a machine is enough.
        """
