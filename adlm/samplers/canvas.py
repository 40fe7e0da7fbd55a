"""What a sampler starts from: tokens with blanks, and the positions that must not change."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from adlm.errors import ConfigError
from adlm.samplers.constraints import Constraint


@dataclass(frozen=True)
class Canvas:
    """Tokens [B, L] with the mask at blanks; frozen [B, L] bool; sample_ids [B] number the samples.

    A sample is a function of the seed and its row number, whatever else is in the batch. `constraints` bind what may
    be written in holes.
    """

    tokens: Tensor
    frozen: Tensor
    sample_ids: Tensor
    constraints: tuple[Constraint, ...] = ()

    @classmethod
    def blank(cls, samples: int, length: int, mask_id: int) -> "Canvas":
        """A canvas of blanks only."""
        return cls.continuing([[]] * samples, length, mask_id)

    @classmethod
    def continuing(cls, prompts: Sequence[Sequence[int]], length: int, mask_id: int) -> "Canvas":
        """A canvas with each prompt frozen at the start of its row."""
        return cls.infilling([[*prompt, *[mask_id] * (length - len(prompt))] for prompt in prompts], mask_id)

    @classmethod
    def infilling(cls, rows: Sequence[Sequence[int]], mask_id: int) -> "Canvas":
        """A canvas of rows of one length, blank where they hold the mask token."""
        if len({len(row) for row in rows}) > 1:
            lengths = sorted({len(row) for row in rows})
            raise ConfigError(f"the rows of a canvas must be equally long, got {lengths} tokens", subject="rows")
        tokens = torch.tensor([list(row) for row in rows])
        return cls(tokens, tokens != mask_id, torch.arange(len(rows)))

    @property
    def open(self) -> Tensor:
        """The positions [B, L] that may be written."""
        return ~self.frozen

    def to(self, device: torch.device | str) -> "Canvas":
        """A copy on another device."""
        return replace(
            self, tokens=self.tokens.to(device), frozen=self.frozen.to(device), sample_ids=self.sample_ids.to(device)
        )

    def split(self, size: int) -> "Iterator[Canvas]":
        """Parts of at most this many rows, in order."""
        for start in range(0, len(self.sample_ids), size):
            rows = slice(start, start + size)
            held = [
                replace(each, row=each.row - start) for each in self.constraints if start <= each.row < start + size
            ]
            yield Canvas(self.tokens[rows], self.frozen[rows], self.sample_ids[rows], tuple(held))
