"""Which tokens are important: anchor rules mark positions of a batch, vectorised on its device."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from adlm.errors import DataError
from adlm.types import Batch


@dataclass(frozen=True)
class AnchorRule(ABC):
    @abstractmethod
    def mark(self, batch: Batch) -> Tensor:
        """[B, L] bool, False at padding."""


@dataclass(frozen=True)
class RareInSequence(AnchorRule):
    """The paper's: a token is an anchor where it occurs at most `most` times in its own row."""

    most: int = 5

    def mark(self, batch: Batch) -> Tensor:
        # In a sorted row a token occurs more than `most` times iff some run of most + 1 places holds only it.
        tokens = batch.tokens.masked_fill(~batch.valid, -1)
        ordered, place = tokens.sort(-1)
        frequent = ordered.new_zeros(ordered.shape, dtype=bool)  # type: ignore[call-overload]
        length = ordered.shape[1]
        if length > self.most:
            run = ordered[:, self.most :] == ordered[:, : length - self.most]
            for shift in range(self.most + 1):
                frequent[:, shift : shift + run.shape[1]] |= run
        marks = frequent.new_zeros(frequent.shape).scatter(1, place, ~frequent)
        return marks & batch.valid


@dataclass(frozen=True)
class Given(AnchorRule):
    """The anchors that the data brings."""

    def mark(self, batch: Batch) -> Tensor:
        if batch.anchors is None:
            raise DataError(
                "asked for the anchors given by the data", "the batch brings none", "use a rule such as RareInSequence"
            )
        return batch.anchors & batch.valid


@dataclass(frozen=True)
class EveryToken(AnchorRule):
    def mark(self, batch: Batch) -> Tensor:
        return batch.valid
