"""A cache of transformers as the networks of this package use one."""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from adlm.models.block import Block
from adlm.models.cache import BlockCache, Cache
from adlm.models.language_model import LanguageModel


class Past(Cache):
    """A cache of this package stored in a `transformers.Cache`, so that it can be reordered, cropped and passed on.

    Args:
        past: has a layer for each block, and another for each short convolution.
        segments: [B, all], of what was read and of what comes next.
    """

    def __init__(self, past: Any, network: LanguageModel, rows: int, segments: Tensor | None) -> None:
        super().__init__(rows, sys.maxsize, segments=segments)
        self.length = past.get_seq_length()
        layers = 0
        for block in network.modules():
            if isinstance(block, Block):
                self._memories[block] = _PastMemory(past, layers)
                layers += 1 if block.convolution is None else 2

    def of(self, block: nn.Module) -> BlockCache:
        return self._memories[block]


class _PastMemory(BlockCache):
    """Of one block: keys and values in the layer of this number, inputs of the convolution in the next."""

    def __init__(self, past: Any, layer: int) -> None:
        super().__init__(sys.maxsize)
        self.past, self.layer = past, layer

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.past.update(k, v, self.layer)

    def following(self, x: Tensor, count: int) -> Tensor:
        # A layer has two tensors of one shape: each takes half of the channels.
        halves = self.past.update(*x[:, None].chunk(2, -1), self.layer + 1)
        all_inputs = torch.cat(halves, -1)[:, 0, -(x.shape[1] + count) :]
        missing = x.shape[1] + count - all_inputs.shape[1]
        return nn.functional.pad(all_inputs, (0, 0, missing, 0))
