"""The Muon update: momentum, made orthogonal, for matrices (Jordan et al. 2024, kellerjordan.github.io/posts/muon)."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

# Coefficients of x -> a x + b x^3 + c x^5, five times: singular values end near 1 (a test says how near).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_STEPS = 5
# Numbers that are orthogonalized at a time: many small matrices, or one large one.
_AT_ONCE = 1 << 25


class MuonOptimizer(Optimizer):
    """Muon: update of a matrix [r, c]: lr * sqrt(max(1, r / c)) * orthogonalized(Nesterov momentum).

    torch.optim.Muon always computes in bfloat16, which a CPU without bfloat16 instructions multiplies a hundred
    times slower than float32. This one computes in bfloat16 on a GPU only, and does matrices of one shorter side
    together. Sharded matrices (FSDP2) are gathered to be orthogonalized; momentum and weights stay sharded.
    """

    def __init__(self, matrices: ParamsT, lr: float, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for matrices in _together([matrix for matrix in group["params"] if matrix.grad is not None]):
                updates = orthogonalised([_whole(update) for update in self._nesterov(matrices, group["momentum"])])
                if group["weight_decay"]:
                    torch._foreach_mul_(
                        [_local(matrix) for matrix in matrices], 1 - group["lr"] * group["weight_decay"]
                    )
                for matrix, update in zip(matrices, updates, strict=True):
                    rows, columns = matrix.shape
                    _local(matrix).add_(_sharded_as(matrix, update), alpha=-group["lr"] * max(1, rows / columns) ** 0.5)

    def _nesterov(self, matrices: Sequence[nn.Parameter], momentum: float) -> list[Tensor]:
        """Move the momentum of each matrix towards its gradient; returns the gradients moved towards the momentum."""
        for matrix in matrices:
            if "momentum" not in self.state[matrix]:
                self.state[matrix]["momentum"] = torch.zeros_like(matrix)
        buffers = [self.state[matrix]["momentum"] for matrix in matrices]
        gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
        torch._foreach_lerp_([_local(x) for x in buffers], [_local(x) for x in gradients], 1 - momentum)
        return [gradient.lerp(buffer, momentum) for gradient, buffer in zip(gradients, buffers, strict=True)]


def orthogonalised(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Approximately the nearest (semi-)orthogonal matrices, by Newton-Schulz iteration; all of one shorter side.

    With S = X X^T, an iteration X -> Q X has Q = a + b S + c S^2, and S -> Q S Q. So all of them can be made on S,
    which is as small as the shorter side, and applied to X at the end. S has the squares of the singular values, for
    which bfloat16 is too short: there X itself is iterated.
    """
    shapes: dict[tuple[torch.Size, torch.dtype], list[int]] = defaultdict(list)
    for i, matrix in enumerate(matrices):
        shapes[matrix.shape, matrix.dtype].append(i)
    stacks = [torch.stack([matrices[i] for i in members]) for members in shapes.values()]
    done = _by_iteration(stacks) if _multiplies_bf16(matrices[0].device) else _by_gram(stacks)
    order = [i for members in shapes.values() for i in members]
    results = dict(zip(order, (x for stack in done for x in stack.unbind()), strict=True))
    return [results[i] for i in range(len(matrices))]


def _by_gram(stacks: Sequence[Tensor]) -> list[Tensor]:
    wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in stacks]
    tall = [x.shape[-2] > x.shape[-1] for x in wide]
    s = torch.cat([x.mT @ x if t else x @ x.mT for x, t in zip(wide, tall, strict=True)])
    size = s.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None].sqrt() + 1e-7  # the norm of X
    s = s / size.square()
    product: Tensor | None = None
    for step in range(_STEPS):
        q = torch.baddbmm(s, s, s, beta=_B, alpha=_C)
        q.diagonal(dim1=-2, dim2=-1).add_(_A)
        product = q / size if product is None else q @ product
        if step < _STEPS - 1:
            s = q @ s @ q
    assert product is not None
    parts = product.split([len(x) for x in wide])
    return [
        (x @ part if t else part @ x).to(original.dtype)
        for x, part, t, original in zip(wide, parts, tall, stacks, strict=True)
    ]


def _by_iteration(stacks: Sequence[Tensor]) -> list[Tensor]:
    found = []
    for original in stacks:
        x = original.bfloat16()
        tall = x.shape[-2] > x.shape[-1]
        x = x.mT if tall else x
        x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
        for _ in range(_STEPS):
            s = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(s, s, s, beta=_B, alpha=_C), x, beta=_A)
        found.append((x.mT if tall else x).to(original.dtype))
    return found


def _multiplies_bf16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _together(matrices: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Groups of one shorter side, as large as are orthogonalized together."""
    sides: dict[int, list[nn.Parameter]] = defaultdict(list)
    for matrix in matrices:
        sides[min(matrix.shape)].append(matrix)
    for group in sides.values():
        taken: list[nn.Parameter] = []
        for matrix in group:
            if taken and sum(x.numel() for x in taken) + matrix.numel() > _AT_ONCE:
                yield taken
                taken = []
            taken.append(matrix)
        yield taken


# Sharded tensors (FSDP2) are told by what they can do: importing their class takes most of a second.


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _sharded_as(matrix: Tensor, update: Tensor) -> Tensor:
    """This process's part of `update`, if `matrix` is sharded."""
    if not hasattr(matrix, "full_tensor"):
        return update
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(matrix, DTensor)
    return distribute_tensor(update, matrix.device_mesh, matrix.placements, src_data_rank=None).to_local()
