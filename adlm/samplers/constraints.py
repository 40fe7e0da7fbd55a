"""What may be written in a hole."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adlm.samplers.filters import Sites


@dataclass(frozen=True)
class Constraint:
    """On the places start to end of one row of a canvas."""

    row: int
    start: int
    end: int


def bound_sites(row: Tensor, place: Tensor, constraints: Sequence[Constraint]) -> Tensor:
    """[N] bool: which positions lie under a constraint."""
    bound = torch.zeros_like(row, dtype=torch.bool)
    for each in constraints:
        bound |= (row == each.row) & (place >= each.start) & (place < each.end)
    return bound


def hold(logits: Tensor, sites: Sites, constraints: Sequence[Constraint]) -> Tensor:
    """-inf at tokens [N, V] that would break a constraint, given what the canvas holds."""
    return logits
