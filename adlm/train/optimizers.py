"""Optimizers as values.

Frozen parameters are in no optimizer. Weight decay applies to the matrices of linear maps and heads only; gains,
biases, positions, embeddings and tied heads do not decay. Parameter groups name their parameters (`param_names`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from adlm.errors import OutOfRange
from adlm.models.embedding import Head
from adlm.models.stack import Stack
from adlm.train.muon import MuonOptimizer

NamedParameter = tuple[str, nn.Parameter]
_HAVE_FUSED = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True)
class OptimizerConfig(ABC):
    """An optimizer by its settings; `build` makes it for a model.

    Args:
        lr: the peak learning rate; an `LRSchedule` scales it.
        embedding_lr: that of token embeddings and of heads tied to them; None: `lr`. A high one, 1e-2, makes small
            masked models learn faster, says modded-diffumamba (github.com, no paper).
    """

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    embedding_lr: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.embedding_lr is not None and not self.embedding_lr > 0:
            raise OutOfRange("embedding_lr", self.embedding_lr, "above 0")

    @abstractmethod
    def build(self, model: nn.Module) -> Sequence[Optimizer]:
        """Build one optimizer or several; together they hold each trainable parameter once."""

    def _adamw(self, model: nn.Module, parameters: Sequence[NamedParameter]) -> Sequence[Optimizer]:
        embeddings = _weights(model, nn.Embedding)
        decaying = _weights(model, nn.Linear, Head) - embeddings
        apart = embeddings if self.embedding_lr is not None else set()
        rest = {parameter for _, parameter in parameters} - decaying - apart

        def among(members: set[nn.Parameter]) -> list[NamedParameter]:
            return [named for named in parameters if named[1] in members]

        groups: list[dict[str, Any]] = [
            {"params": among(decaying), "weight_decay": self.weight_decay},
            {"params": among(rest), "weight_decay": 0.0},
            {"params": among(apart), "weight_decay": 0.0, "lr": self.embedding_lr},
        ]
        groups = [group for group in groups if group["params"]]
        if not groups:
            return []
        # Fused: one kernel for all parameters instead of a loop over them.
        fused = all(parameter.device.type in _HAVE_FUSED for _, parameter in parameters)
        return [torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, fused=fused)]


@dataclass(frozen=True)
class AdamW(OptimizerConfig):
    """AdamW for every parameter, with the published settings by default."""

    def build(self, model: nn.Module) -> Sequence[Optimizer]:
        return self._adamw(model, _trainable(model))


@dataclass(frozen=True)
class Muon(OptimizerConfig):
    """Muon for the matrices inside the stacks, adapters among them; AdamW for embeddings, heads, gains and biases.

    Small masked models learn much faster with it (docs/log.md).

    Args:
        matrix_lr: learning rate of the orthogonalized update, scaled by sqrt(max(1, rows / columns)).
    """

    lr: float = 3e-3
    matrix_lr: float = 2e-2
    betas: tuple[float, float] = (0.9, 0.98)

    def build(self, model: nn.Module) -> Sequence[Optimizer]:
        stacks = [module for module in model.modules() if isinstance(module, Stack)]
        chosen = {weight for stack in stacks for weight in _weights(stack.blocks, nn.Linear)}
        trainable = _trainable(model)
        matrices = [named for named in trainable if named[1] in chosen]
        muon = [MuonOptimizer(matrices, lr=self.matrix_lr, weight_decay=self.weight_decay)] if matrices else []
        return [*muon, *self._adamw(model, [named for named in trainable if named[1] not in chosen])]


def _trainable(model: nn.Module) -> list[NamedParameter]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _weights(model: nn.Module, *kinds: type[nn.Module]) -> set[nn.Parameter]:
    """The weights of the modules of these kinds."""
    return {module.weight for module in model.modules() if isinstance(module, kinds)}  # type: ignore[misc]
