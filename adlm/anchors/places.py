"""Anchors by their places in a row: for data whose important places are known before it is read."""

from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.anchors.rules import AnchorRule
from adlm.errors import ConfigError, DataError
from adlm.types import Batch


@dataclass(frozen=True)
class AtPlaces(AnchorRule):
    """The tokens at these places of a row, counted from 0, whatever they are."""

    places: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.places, default=0) < 0:
            raise ConfigError(f"asked for anchors at {self.places}", "places below 0", "count them from 0")

    def mark(self, batch: Batch) -> Tensor:
        length = batch.tokens.shape[1]
        if max(self.places, default=-1) >= length:
            raise DataError(
                f"asked for anchors at {self.places}", f"rows of {length} tokens", "name places that rows have"
            )
        marks = torch.zeros_like(batch.valid)
        marks[:, list(self.places)] = True
        return marks & batch.valid
