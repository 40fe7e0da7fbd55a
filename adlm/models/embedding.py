"""The two ends of a model: tokens to vectors, and features to logits.

Shapes: B batch, L length, D width, V vocabulary, N chosen positions.
"""

import math

import torch
from torch import Tensor, nn

from adlm.errors import ConfigError
from adlm.models.layers import linear, positions_in
from adlm.models.matrix_products import inference_products
from adlm.models.network import Vocabulary


class Embedding(nn.Module):
    """Tokens [B, L] -> [B, L, D], plus a learned vector for each of the first `positions` positions if there are any.

    Rotary positions express distances only. If rows begin with their document, a fully masked row looks the same
    everywhere to a masked model, and learned positions are what it can know; in packed rows they mean nothing.

    Initialized as published, uniform in +-1/sqrt(D). If the table is the head as well (`tied`) it starts smaller, so
    that first predictions are nearly uniform over the vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary, width: int, positions: int = 0, *, tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary.size, width)
        if tied:
            nn.init.normal_(self.tokens.weight, std=0.02)
        else:
            nn.init.uniform_(self.tokens.weight, -(width**-0.5), width**-0.5)
        self.positions = nn.Parameter(0.02 * torch.randn(positions, width)) if positions else None

    def forward(self, tokens: Tensor, segments: Tensor | None = None) -> Tensor:
        return self.add_positions(self.tokens(tokens), segments)

    def at(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Tokens [B, S] -> [B, S, D] at these positions [B|1, S]; learned vectors end with the last one."""
        x: Tensor = self.tokens(tokens)
        return x if self.positions is None else x + self.positions[positions.clamp_max(len(self.positions) - 1)]

    def add_positions(self, x: Tensor, segments: Tensor | None = None, start: int = 0) -> Tensor:
        """Token vectors [B, L, D] plus those of their positions.

        Args:
            segments: [B, start + L].
            start: number of the first position, if rows are read in parts.
        """
        if self.positions is None:
            return x
        end = start + x.shape[1]
        check_length(end, len(self.positions))
        return x + (
            self.positions[start:end] if segments is None else self.positions[positions_in(segments)[:, start:]]
        )


def check_length(length: int, learned_positions: int) -> None:
    """Refuse rows with positions that the model has not learned."""
    if length > learned_positions:
        raise ConfigError(
            f"rows of {length} tokens are longer than the {learned_positions} learned positions of the model",
            fix="use shorter rows, or a model with rotary positions only",
            subject="positions",
        )


class Head(nn.Module):
    """h [N, D] -> logits [N, V]. The mask token gets -inf: nothing ever predicts it (SUBS, arXiv 2406.07524)."""

    def __init__(self, vocabulary: Vocabulary, width: int, *, tied_to: Embedding | None = None) -> None:
        super().__init__()
        self.mask_id = vocabulary.mask_id
        self.weight = nn.Parameter(torch.zeros(vocabulary.size, width)) if tied_to is None else tied_to.tokens.weight
        self.bias = nn.Parameter(torch.zeros(vocabulary.size))

    def raw(self, h: Tensor) -> Tensor:
        """Logits including that of the mask, as the second stage reads them."""
        with inference_products(h, len(self.weight)):
            return linear(h, self.weight, self.bias)

    def forward(self, h: Tensor) -> Tensor:
        return widened(self.raw(h)).index_fill(-1, torch.full((1,), self.mask_id, device=h.device), -math.inf)


def widened(x: Tensor) -> Tensor:
    """The tensor in at least float32: short types are for matrix products, not for probabilities."""
    return x if x.dtype == torch.float64 else x.float()
