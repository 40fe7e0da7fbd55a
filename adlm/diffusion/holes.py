"""Holes: runs of masked tokens in a text that is otherwise visible, as infilling meets them."""

import math

import torch
from torch import Tensor

from adlm.randomness import Noise

_LONGEST = 24  # tokens
_RAREST, _DENSEST = 1 / 256, 1 / 12  # holes per token


def in_holes(scored: Tensor, sample_id: Tensor, noise: Noise) -> Tensor:
    """Which scored tokens [B, L] are in a hole.

    Each row draws how dense its holes are, from nearly none to one every dozen tokens, evenly in the logarithm; each
    hole draws its length from 1 to 24 tokens, likewise. A row has at least one hole, at a random scored token.
    """
    rows, length = scored.shape
    device = scored.device
    u = noise.fork("holes").uniform(sample_id, 2 * length + 2).to(device)
    density = _RAREST * (_DENSEST / _RAREST) ** u[:, :1]
    begins = u[:, 2 : 2 + length] < density
    count = scored.sum(-1)
    chosen = (u[:, 1] * count).long().minimum(count - 1)  # of the scored tokens of the row
    begins |= scored & (scored.cumsum(-1) - 1 == chosen[:, None])
    lengths = torch.exp(u[:, 2 + length :] * math.log(_LONGEST + 1)).long()
    columns = torch.arange(length, device=device).expand(rows, -1)
    ends = torch.where(begins, columns + lengths, 0).cummax(-1).values
    return (columns < ends) & scored
