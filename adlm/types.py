"""The values that are passed between packages. Shapes: B batch, L length, D width, N chosen positions."""

from dataclasses import dataclass, field, fields
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
        anchors: [B, L] bool; anchor positions, if the data comes with them.
        documents: [B, L] numbers of the documents packed in a row, if they must not see each other.
        targets: [B, L] ids; what the feature of a position is to predict besides its token, -1 for nothing.
    """

    tokens: Tensor
    valid: Tensor
    index: Tensor
    sample_id: Tensor
    frozen: Tensor | None = None
    anchors: Tensor | None = None
    documents: Tensor | None = None
    targets: Tensor | None = None
    _padded: bool | None = field(default=None, init=False, repr=False, compare=False)

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device."""
        moved = Batch(**{k: v.to(device, non_blocking=True) for k, v in self._tensors().items()})
        # Asked on the CPU, where batches are made: later, the device would have to be waited for.
        on_cpu = self.valid.device.type == "cpu" and moved.valid.device.type != "cpu"
        object.__setattr__(moved, "_padded", self.padded if on_cpu else self._padded)
        return moved

    def split(self, rows: int) -> list["Batch"]:
        """Parts of `rows` rows, in order; the last may have fewer."""
        tensors = self._tensors()
        return [
            Batch(**{k: v[start : start + rows] for k, v in tensors.items()})
            for start in range(0, len(self.tokens), rows)
        ]

    def repeated(self, copies: int) -> "Batch":
        """The rows `copies` times over, one batch after another."""
        return self if copies == 1 else self.selected(torch.arange(len(self.tokens)).repeat(copies))

    def selected(self, rows: Tensor) -> "Batch":
        """The rows with these numbers."""
        found = Batch(**{k: v.index_select(0, rows.to(v.device)) for k, v in self._tensors().items()})
        object.__setattr__(found, "_padded", self._padded)
        return found

    def _tensors(self) -> dict[str, Tensor]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @property
    def padded(self) -> bool:
        """Whether any position is padding; found out once."""
        if self._padded is None:
            object.__setattr__(self, "_padded", not bool(self.valid.all()))
        return bool(self._padded)

    @property
    def scored(self) -> Tensor:
        """The positions [B, L] that a model has to predict."""
        return self.valid if self.frozen is None else self.valid & ~self.frozen

    @property
    def segments(self) -> Tensor | None:
        """The segments [B, L]: positions see each other if these are equal; padding has -1. None: all see all."""
        if self.documents is not None:
            return self.documents.masked_fill(~self.valid, -1)
        return self.valid.long() - 1 if self.padded else None


class Features(NamedTuple):
    """Hidden states before the vocabulary: [B, L, D] each; `anchor` for two-stage models."""

    final: Tensor
    anchor: Tensor | None = None


class Corrupted(NamedTuple):
    """A batch after the forward process: x_0 and x_t [B, L], t [B], masked [B, L] bool.

    `weight` [B, 1] or [B, L] is the weight of -log p at masked positions. `rates` [V] is given if tokens of different
    types vanish at different rates (`AnchoredMasking`). `blocks` [B, L] numbers the blocks of block diffusion, and
    `block_size` is their size if all rows have the same; `segments` [B, L] takes the place of the batch's.
    A corruption that masks every row several times returns the rows as often, one batch after another.
    """

    x_0: Tensor
    x_t: Tensor
    t: Tensor
    masked: Tensor
    weight: Tensor
    rates: Tensor | None = None
    blocks: Tensor | None = None
    block_size: int | None = None
    segments: Tensor | None = None

    def copies(self, batch: Batch) -> int:
        """How often it holds the rows of the batch."""
        return len(self.x_0) // max(1, len(batch.tokens))


class LossTerms(NamedTuple):
    """Sums of a loss, and the number of scored tokens by which the global sums are divided once.

    `loss_sum` is optimized; `nll_sum` is the clean bound in nats, free of any training-only term.
    """

    loss_sum: Tensor
    nll_sum: Tensor
    tokens: Tensor


class Estimate(NamedTuple):
    """A measured mean, its standard error, and how it was drawn."""

    mean: float
    error: float
    draws: int
