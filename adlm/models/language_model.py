"""What every language model here is: features for all positions first, a vocabulary for chosen ones last.

Position l of the features predicts token l, in every model. A left-to-right model therefore shifts its input
by itself and starts from the mask token, which no text contains.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.errors import ConfigError
from adlm.types import Features


@dataclass(frozen=True)
class Vocabulary:
    """What a model has to know of its tokenizer: the number of ids, the mask among them, and the mask."""

    size: int
    mask_id: int

    def __post_init__(self) -> None:
        if not 0 <= self.mask_id < self.size:
            raise ConfigError(
                f"asked for the mask token {self.mask_id} in a vocabulary of {self.size}",
                "it lies outside",
                "take both from the tokenizer's roles",
            )


@dataclass(frozen=True)
class NetworkConfig(ABC):
    """The shape of a network, whatever its vocabulary."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary) -> "LanguageModel": ...


class Embedding(nn.Module):
    """Tokens [B, L] -> [B, L, D], with a learned vector for each of the first `positions` places if there are any.

    Rotary positions tell distances only. Where rows begin with their document, a fully masked row looks the same
    everywhere to a masked model, and places are what it can know; in packed rows they mean nothing.
    """

    def __init__(self, vocabulary: Vocabulary, width: int, positions: int = 0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary.size, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(positions, width)) if positions else None

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.tokens(tokens)
        if self.positions is None:
            return x
        if tokens.shape[1] > len(self.positions):
            raise ConfigError(
                f"asked to read rows of {tokens.shape[1]} tokens",
                f"the model has learned {len(self.positions)} places",
                "use shorter rows, or a model with positions=0",
            )
        return x + self.positions[: tokens.shape[1]]


class Head(nn.Module):
    """h [N, D] -> logits [N, V]. The mask token gets -inf: nothing ever predicts it (SUBS, arXiv 2406.07524)."""

    def __init__(self, vocabulary: Vocabulary, width: int, *, tied_to: Embedding | None = None) -> None:
        super().__init__()
        self.mask_id = vocabulary.mask_id
        self.weight = nn.Parameter(torch.zeros(vocabulary.size, width)) if tied_to is None else tied_to.tokens.weight
        self.bias = nn.Parameter(torch.zeros(vocabulary.size))

    def raw(self, h: Tensor) -> Tensor:
        """Logits with the mask's own among them, as the second stage reads them."""
        return F.linear(h, self.weight, self.bias)

    def forward(self, h: Tensor) -> Tensor:
        return self.raw(h).float().index_fill(-1, torch.tensor([self.mask_id], device=h.device), -math.inf)


def sigma_at(t: Tensor | None, eps: float = 1e-3) -> Tensor | None:
    """-log alpha_t of the log-linear schedule: what timed networks are told."""
    return None if t is None else -torch.log1p(-(1 - eps) * t)


class LanguageModel(nn.Module, ABC):
    """Tokens [B, L] -> features [B, L, D] -> logits [N, V] at the N positions that asked."""

    vocabulary: Vocabulary
    causal: bool = False

    @abstractmethod
    def features(self, tokens: Tensor, t: Tensor | None = None) -> Features:
        """Hidden states at every position; x_t in, t [B] for time-conditioned models."""

    @abstractmethod
    def logits(self, final: Tensor) -> Tensor:
        """[N, D] -> [N, V] float32, the mask at -inf."""

    def anchor_logits(self, anchor: Tensor) -> Tensor:
        """[N, D] -> [N, V] of the anchor stage, the mask's own logit among them, as the official loss reads them."""
        raise ConfigError(f"asked {type(self).__name__} for anchor logits", "it has one stage", "use a two-stage model")
