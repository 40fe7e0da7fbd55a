"""What the denoiser reads of the anchor stage: hand-overs as values.

Shapes: B batch, L length, D width, V vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adlm.models.derived import Deriving
from adlm.models.embedding import Embedding, Head
from adlm.models.network import Vocabulary


class AnchorState(NamedTuple):
    """The output of the anchor stage, [B, L, D] each: its input, its residual stream, what its head reads."""

    embedded: Tensor
    residual: Tensor
    anchor: Tensor


@dataclass(frozen=True)
class HandOver(ABC):
    """The way in which the denoiser reads the anchor stage."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary, width: int, *, tied_to: Embedding | None) -> "HandOverModule":
        """The module with random weights; `tied_to` is the embedding if embeddings are tied."""

    @abstractmethod
    def work(self, size: int, width: int) -> tuple[int, int]:
        """Floating-point operations of its products: once per pass, and per token."""


class HandOverModule(Deriving, ABC):
    """The weights of a hand-over."""

    @abstractmethod
    def forward(self, stage: AnchorState, head: Head) -> Tensor:
        """The denoiser's input [B, L, D]."""


@dataclass(frozen=True)
class Logits(HandOver):
    """The paper's: raw anchor logits through a linear map, W_in (W_out h + b_out) + b_in.

    There is nothing nonlinear between the two maps, so they are one map of D x D, (W_in W_out) h + const.,
    and the logits [B, L, V] are never made. W_in remains a weight of its own if embeddings are tied.
    """

    def build(self, vocabulary: Vocabulary, width: int, *, tied_to: Embedding | None) -> HandOverModule:
        return _LogitsModule(vocabulary, width)

    def work(self, size: int, width: int) -> tuple[int, int]:
        return 2 * size * width**2, 2 * width**2


class _LogitsModule(HandOverModule):
    def __init__(self, vocabulary: Vocabulary, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(vocabulary.size, width)

    def forward(self, stage: AnchorState, head: Head) -> Tensor:
        joint, constant = self.derived("joint", lambda: self._joint(head))
        return F.linear(stage.anchor, joint, constant)

    def _joint(self, head: Head) -> tuple[Tensor, Tensor]:
        weight = self.project.weight
        return weight @ head.weight, weight @ head.bias + self.project.bias


@dataclass(frozen=True)
class Probabilities(HandOver):
    """The mean embedding under the anchor's distribution: softmax(W_out h + b_out) E, without the mask.

    E is the embedding if it is tied, otherwise a table of its own. The softmax stands between the two maps, so
    logits have to be made: a slice of positions at a time, and again in the backward pass.
    """

    def build(self, vocabulary: Vocabulary, width: int, *, tied_to: Embedding | None) -> HandOverModule:
        return _ProbabilitiesModule(vocabulary, width, tied_to)

    def work(self, size: int, width: int) -> tuple[int, int]:
        return 0, 4 * size * width


class _ProbabilitiesModule(HandOverModule):
    SLICE = 1 << 24  # logits at a time

    def __init__(self, vocabulary: Vocabulary, width: int, tied_to: Embedding | None) -> None:
        super().__init__()
        self.table = Embedding(vocabulary, width).tokens.weight if tied_to is None else tied_to.tokens.weight

    def forward(self, stage: AnchorState, head: Head) -> Tensor:
        def soft(h: Tensor) -> Tensor:
            return head(h).softmax(-1).to(self.table.dtype) @ self.table

        h = stage.anchor
        rows = max(1, self.SLICE // len(self.table))
        parts = [checkpoint(soft, part, use_reentrant=False) for part in h.flatten(0, 1).split(rows)]
        return torch.cat(parts).view_as(h)


@dataclass(frozen=True)
class Hidden(HandOver):
    """A gated residual: e + sigmoid(G [e, h] + b) * W h, e the normalized embedding.

    The gate sees whether a position is masked. It starts half open.
    """

    def build(self, vocabulary: Vocabulary, width: int, *, tied_to: Embedding | None) -> HandOverModule:
        return _HiddenModule(width)

    def work(self, size: int, width: int) -> tuple[int, int]:
        return 0, 6 * width**2


class _HiddenModule(HandOverModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * width, width)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, stage: AnchorState, head: Head) -> Tensor:
        # Embeddings that are the head as well stay small, and would drown in what is added to them.
        tokens = F.rms_norm(stage.embedded, stage.embedded.shape[-1:])
        open_fraction = torch.sigmoid(self.gate(torch.cat([tokens, stage.anchor], dim=-1)))
        return tokens + open_fraction * self.project(stage.anchor)


@dataclass(frozen=True)
class Continued(HandOver):
    """The residual stream continues: the anchor stage is the lower half of one deep stack, read out early."""

    def build(self, vocabulary: Vocabulary, width: int, *, tied_to: Embedding | None) -> HandOverModule:
        return _ContinuedModule()

    def work(self, size: int, width: int) -> tuple[int, int]:
        return 0, 0


class _ContinuedModule(HandOverModule):
    def forward(self, stage: AnchorState, head: Head) -> Tensor:
        return stage.residual
