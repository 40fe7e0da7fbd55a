"""Muon: momentum, orthogonalised (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

torch.optim.Muon exists, but always works in bfloat16, which a CPU without bfloat16 instructions multiplies a
hundred times slower than float32. This one takes the fast type of the device and does matrices of one shape
together.

Matrices may be in parts on several processes (FSDP2): momentum and weights are then worked on part by part, and each
process puts the momentum together, orthogonalises it and takes its part of the result.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from adlm.train.precision import bf16_is_fast

# Coefficients of x -> a x + b x^3 + c x^5, five times: singular values end near 1 (a test says how near).
_A, _B, _C = 3.4445, -4.7750, 2.0315
# Numbers that are orthogonalised at a time: many small matrices, or one large one.
_AT_ONCE = 1 << 25


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices, about, of [N, rows, columns], by Newton-Schulz iteration."""
    x = matrices.bfloat16() if bf16_is_fast(matrices.device) else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class MuonOptimizer(Optimizer):
    """Update of a matrix [r, c]: lr * sqrt(max(1, r / c)) * orthogonalised(Nesterov momentum)."""

    def __init__(self, matrices: ParamsT, lr: float, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrices in _alike([matrix for matrix in group["params"] if matrix.grad is not None]):
                updates = [self._momentum(matrix, group["momentum"]) for matrix in matrices]
                rows, columns = matrices[0].shape
                size = group["lr"] * max(1.0, rows / columns) ** 0.5
                for matrix, update in zip(matrices, _orthogonalised_parts(torch.stack(updates)), strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-size)

    def _momentum(self, matrix: nn.Parameter, momentum: float) -> Tensor:
        assert matrix.grad is not None
        if "momentum" not in self.state[matrix]:
            self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        buffer: Tensor = self.state[matrix]["momentum"]
        buffer.lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(buffer, momentum)


def _alike(matrices: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Matrices of one shape, as many as are done together."""
    shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
    for matrix in matrices:
        shapes[matrix.shape].append(matrix)
    for shape, group in shapes.items():
        together = max(1, _AT_ONCE // shape.numel())
        yield from (group[start : start + together] for start in range(0, len(group), together))


def _orthogonalised_parts(matrices: Tensor) -> Sequence[Tensor]:
    """As `orthogonalised`, and where each process has a part of the matrices, the same parts of the results."""
    if not hasattr(matrices, "full_tensor"):
        return orthogonalised(matrices).unbind()
    # Not at the top: it takes most of a second, and whoever has such tensors has imported it.
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(matrices, DTensor)
    whole = orthogonalised(matrices.full_tensor())
    return distribute_tensor(whole, matrices.device_mesh, matrices.placements, src_data_rank=None).unbind()
