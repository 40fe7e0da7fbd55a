"""The values that travel between the layers. Shapes: B batch, L length, D width, N chosen positions."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, and which of them count.

    Args:
        tokens: [B, L] token ids.
        valid: [B, L] bool; padding is False: never corrupted, never scored.
        index: [B] sample ids, to name a row in a message.
        sample_id: [B] running number of each row over the whole run, epochs included: it seeds the row's noise.
        frozen: [B, L] bool; given positions (a prompt): visible, never corrupted, never scored.
        anchors: [B, L] bool; anchor positions when the data brings them.
        documents: [B, L] numbers of the documents packed in a row, where they must not see each other.
        targets: [B, L] ids; what the feature of a position is to predict beside its token, -1 where nothing.
    """

    tokens: Tensor
    valid: Tensor
    index: Tensor
    sample_id: Tensor
    frozen: Tensor | None = None
    anchors: Tensor | None = None
    documents: Tensor | None = None
    targets: Tensor | None = None

    def to(self, device: torch.device | str) -> "Batch":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {k: v.to(device, non_blocking=True) if isinstance(v, Tensor) else v for k, v in values.items()}
        return Batch(**moved)

    def split(self, rows: int) -> list["Batch"]:
        """In parts of so many rows, in order; the last may have fewer."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return [
            Batch(**{k: v[start : start + rows] if isinstance(v, Tensor) else v for k, v in values.items()})
            for start in range(0, len(self.tokens), rows)
        ]

    @property
    def scored(self) -> Tensor:
        """[B, L] bool: the positions a model has to predict."""
        return self.valid if self.frozen is None else self.valid & ~self.frozen

    @property
    def segments(self) -> Tensor | None:
        """[B, L]: positions see each other where these are equal; padding has -1. None: all see all."""
        if self.documents is not None:
            return self.documents.masked_fill(~self.valid, -1)
        return None if self.valid.all() else self.valid.long() - 1


class Features(NamedTuple):
    """Hidden states before the vocabulary: [B, L, D] each; `anchor` for two-stage models."""

    final: Tensor
    anchor: Tensor | None = None


class Corrupted(NamedTuple):
    """A batch after the forward process: x_0 and x_t [B, L], t [B], masked [B, L] bool.

    `weight` [B, 1] or [B, L] is what -log p weighs at masked positions. `rates` [V] is there where tokens of
    different types vanish at different rates (`AnchoredMasking`).
    """

    x_0: Tensor
    x_t: Tensor
    t: Tensor
    masked: Tensor
    weight: Tensor
    rates: Tensor | None = None


class LossTerms(NamedTuple):
    """Sums, and the number of scored tokens by which the global sums are divided once.

    `loss_sum` is optimised; `nll_sum` is the clean bound in nats, free of any training-only term.
    """

    loss_sum: Tensor
    nll_sum: Tensor
    tokens: Tensor


class Estimate(NamedTuple):
    """A measured mean, its standard error, and how it was drawn."""

    mean: float
    error: float
    draws: int
