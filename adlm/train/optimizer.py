"""Optimisers as values: which parameters get which update."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.optim import Optimizer

from adlm.models.stack import Stack
from adlm.train.muon import MuonOptimizer


@dataclass(frozen=True)
class OptimizerConfig(ABC):
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0

    @abstractmethod
    def build(self, model: nn.Module) -> Sequence[Optimizer]: ...

    def _adamw(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        # Fused: one kernel for all parameters instead of a loop over them.
        return torch.optim.AdamW(parameters, lr=self.lr, betas=self.betas, weight_decay=self.weight_decay, fused=True)


@dataclass(frozen=True)
class AdamW(OptimizerConfig):
    """AdamW for everything, the published settings by default."""

    def build(self, model: nn.Module) -> Sequence[Optimizer]:
        return [self._adamw(list(model.parameters()))]


@dataclass(frozen=True)
class Muon(OptimizerConfig):
    """Muon for the matrices inside the stacks, AdamW for embeddings, heads, gains and biases.

    Small masked models learn much faster with it (docs/log.md).

    Args:
        matrix_lr: step of the orthogonalised update, scaled by sqrt(max(1, rows / columns)).
    """

    lr: float = 3e-3
    matrix_lr: float = 2e-2
    betas: tuple[float, float] = (0.9, 0.98)

    def build(self, model: nn.Module) -> Sequence[Optimizer]:
        stacks = [module for module in model.modules() if isinstance(module, Stack)]
        linears = [m for stack in stacks for m in stack.blocks.modules() if isinstance(m, nn.Linear)]
        matrices = [cast("nn.Parameter", linear.weight) for linear in linears]
        chosen = {id(matrix) for matrix in matrices}
        rest = [p for p in model.parameters() if id(p) not in chosen]
        muon = MuonOptimizer(matrices, lr=self.matrix_lr, weight_decay=self.weight_decay)
        return [muon, self._adamw(rest)]
