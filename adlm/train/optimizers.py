"""Optimizers as values, and the Muon update.

Frozen parameters are in no optimizer. Weight decay applies to the matrices of linear maps and heads only; gains,
biases, positions, embeddings and tied heads do not decay. Parameter groups name their parameters (`param_names`).
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from adlm.distributed import bf16_is_fast
from adlm.models.embedding import Head
from adlm.models.stack import Stack

NamedParameter = tuple[str, nn.Parameter]
_HAVE_FUSED = ("cpu", "cuda", "mps", "xpu")
# Coefficients of x -> a x + b x^3 + c x^5, five times: singular values end near 1 (a test says how near).
_A, _B, _C = 3.4445, -4.7750, 2.0315
# Numbers that are orthogonalised at a time: many small matrices, or one large one.
_AT_ONCE = 1 << 25


@dataclass(frozen=True)
class OptimizerConfig(ABC):
    """An optimizer by its settings; `build` makes it for a model.

    Args:
        lr: the peak learning rate; an `LRSchedule` scales it.
    """

    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0

    @abstractmethod
    def build(self, model: nn.Module) -> Sequence[Optimizer]:
        """One optimizer or several; together they hold each trainable parameter once."""

    def _adamw(self, model: nn.Module, parameters: Sequence[NamedParameter]) -> Sequence[Optimizer]:
        decaying = _weights(model, nn.Linear, Head) - _weights(model, nn.Embedding)
        groups = [
            {"params": [named for named in parameters if named[1] in decaying], "weight_decay": self.weight_decay},
            {"params": [named for named in parameters if named[1] not in decaying], "weight_decay": 0.0},
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
        matrix_lr: learning rate of the orthogonalised update, scaled by sqrt(max(1, rows / columns)).
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


class MuonOptimizer(Optimizer):
    """Muon: orthogonalised momentum (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    Update of a matrix [r, c]: lr * sqrt(max(1, r / c)) * orthogonalised(Nesterov momentum).

    torch.optim.Muon always computes in bfloat16, which a CPU without bfloat16 instructions multiplies a hundred
    times slower than float32. This one uses the fast type of the device and batches matrices of one shape. Sharded
    matrices (FSDP2) are gathered to be orthogonalised; momentum and weights stay sharded.
    """

    def __init__(self, matrices: ParamsT, lr: float, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for matrices in _same_shape([matrix for matrix in group["params"] if matrix.grad is not None]):
                updates = [self._momentum(matrix, group["momentum"]) for matrix in matrices]
                rows, columns = matrices[0].shape
                size = group["lr"] * max(1.0, rows / columns) ** 0.5
                for matrix, update in zip(matrices, _orthogonalised_shards(torch.stack(updates)), strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-size)

    def _momentum(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        assert matrix.grad is not None
        if "momentum" not in self.state[matrix]:
            self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        buffer: Tensor = self.state[matrix]["momentum"]
        buffer.lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(buffer, momentum)


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """Approximately the nearest (semi-)orthogonal matrices to [N, rows, columns], by Newton-Schulz iteration."""
    x = matrices.bfloat16() if bf16_is_fast(matrices.device) else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def _orthogonalised_shards(matrices: Tensor) -> Sequence[Tensor]:
    """As `orthogonalised`; sharded matrices give equally sharded results."""
    if not hasattr(matrices, "full_tensor"):
        return orthogonalised(matrices).unbind()
    # Not at the top: it takes most of a second, and whoever has such tensors has imported it.
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(matrices, DTensor)
    whole = orthogonalised(matrices.full_tensor())
    return distribute_tensor(whole, matrices.device_mesh, matrices.placements, src_data_rank=None).unbind()


def _same_shape(matrices: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Groups of matrices of one shape, as large as are orthogonalised together."""
    shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
    for matrix in matrices:
        shapes[matrix.shape].append(matrix)
    for shape, group in shapes.items():
        together = max(1, _AT_ONCE // shape.numel())
        yield from (group[start : start + together] for start in range(0, len(group), together))


def _trainable(model: nn.Module) -> list[NamedParameter]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _weights(model: nn.Module, *kinds: type[nn.Module]) -> set[nn.Parameter]:
    """The weights of the modules of these kinds."""
    return {module.weight for module in model.modules() if isinstance(module, kinds)}  # type: ignore[misc]
