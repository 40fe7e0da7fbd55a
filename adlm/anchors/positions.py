"""Anchors by their positions in a row: for data whose important positions are known before it is read."""

from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.anchors.rules import AnchorRule
from adlm.errors import DataError, OutOfRange
from adlm.types import Batch


@dataclass(frozen=True)
class AtPositions(AnchorRule):
    """The tokens at these positions of a row, counted from 0, whatever they are."""

    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.positions, default=0) < 0:
            raise OutOfRange("positions", self.positions, "at least 0")

    def mark(self, batch: Batch) -> Tensor:
        length = batch.tokens.shape[1]
        if max(self.positions, default=-1) >= length:
            raise DataError(
                f"anchors at {self.positions} do not exist in rows of {length} tokens",
                subject="positions",
            )
        marks = torch.zeros_like(batch.valid)
        marks[:, list(self.positions)] = True
        return marks & batch.valid
