"""Anchored models: an anchor stack predicts every token, a denoiser stack predicts again from that.

ADLM (arXiv 2505.18456) with bidirectional stacks, A2R with causal ones. How the anchor stage's knowledge
reaches the denoiser is a value, the hand-over.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from adlm.models.language_model import Embedding, Head, LanguageModel, NetworkConfig, Vocabulary, sigma_at
from adlm.models.one_stage import shifted
from adlm.models.stack import Stack, StackConfig
from adlm.types import Features


@dataclass(frozen=True)
class HandOver(ABC):
    """How the denoiser reads the anchor stage."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary, width: int) -> "HandOverModule": ...


class HandOverModule(nn.Module, ABC):
    @abstractmethod
    def forward(self, residual: Tensor, anchor: Tensor, head: Head) -> Tensor:
        """The denoiser's input [B, L, D] from the anchor stage's residual stream and features."""


@dataclass(frozen=True)
class Logits(HandOver):
    """The paper's: raw anchor logits through a linear map, W_in (W_out h + b_out) + b_in.

    There is nothing nonlinear between the two maps, so they are one map of D x D, (W_in W_out) h + const.,
    and the logits [B, L, V] are never made.
    """

    def build(self, vocabulary: Vocabulary, width: int) -> HandOverModule:
        return _LogitsModule(vocabulary, width)


class _LogitsModule(HandOverModule):
    def __init__(self, vocabulary: Vocabulary, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(vocabulary.size, width)

    def forward(self, residual: Tensor, anchor: Tensor, head: Head) -> Tensor:
        joint = self.project.weight @ head.weight  # [D, D]
        constant = self.project.weight @ head.bias + self.project.bias
        return torch.nn.functional.linear(anchor, joint, constant)


@dataclass(frozen=True)
class Continued(HandOver):
    """The residual stream simply goes on: the anchor stage is the lower half of one deep stack, read out early."""

    def build(self, vocabulary: Vocabulary, width: int) -> HandOverModule:
        return _ContinuedModule()


class _ContinuedModule(HandOverModule):
    def forward(self, residual: Tensor, anchor: Tensor, head: Head) -> Tensor:
        return residual


@dataclass(frozen=True)
class TwoStageConfig(NetworkConfig):
    """Two stacks of one width.

    Args:
        anchor: the first stack; the denoiser is the same but for its depth.
        denoiser_layers: depth of the second; the paper takes half of the first.
        tied: both heads are the embedding.
        positions: as in `OneStageConfig`.
    """

    anchor: StackConfig = field(default_factory=StackConfig)
    denoiser_layers: int = 3
    hand_over: HandOver = field(default_factory=Logits)
    tied: bool = False
    positions: int = 0

    def build(self, vocabulary: Vocabulary) -> "TwoStage":
        return TwoStage(self, vocabulary)


class TwoStage(LanguageModel):
    def __init__(self, config: TwoStageConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        width = config.anchor.width
        self.config, self.vocabulary, self.causal = config, vocabulary, config.anchor.causal
        self.embedding = Embedding(vocabulary, width, config.positions)
        tied_to = self.embedding if config.tied else None
        self.anchor: Stack = config.anchor.build()
        self.anchor_head = Head(vocabulary, width, tied_to=tied_to)
        self.hand_over = config.hand_over.build(vocabulary, width)
        self.denoiser: Stack = replace(config.anchor, layers=config.denoiser_layers).build()
        self.head = Head(vocabulary, width, tied_to=tied_to)

    def features(self, tokens: Tensor, t: Tensor | None = None) -> Features:
        if self.causal:
            tokens = shifted(tokens, self.vocabulary.mask_id)
        sigma = sigma_at(t)
        residual, anchor = self.anchor(self.embedding(tokens), sigma)
        _, final = self.denoiser(self.hand_over(residual, anchor, self.anchor_head), sigma)
        return Features(final, anchor)

    def logits(self, final: Tensor) -> Tensor:
        return self.head(final)

    def anchor_logits(self, anchor: Tensor) -> Tensor:
        return self.anchor_head.raw(anchor).float()
