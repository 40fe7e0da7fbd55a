"""A low-rank change of a linear map, kept apart from it: the adapters of block diffusion."""

import math

import torch
from torch import Tensor, nn


class Adapter(nn.Module):
    """B A, added to the weights of a map where noisy positions are read (LoRA, arXiv 2106.09685).

    B starts at zero, so the map is the same at first. The sum of the weights is made once per pass: with thousands of
    positions that costs less than two more products at each of them.
    """

    def __init__(self, adapted: nn.Linear, rank: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(rank, adapted.in_features))
        self.second = nn.Parameter(torch.zeros(adapted.out_features, rank))
        nn.init.kaiming_uniform_(self.first, a=math.sqrt(5))

    def changed(self, weight: Tensor) -> Tensor:
        """The adapted weights."""
        return torch.addmm(weight, self.second, self.first)
