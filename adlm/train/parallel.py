"""A model over the processes of a world: whole on each (DDP), or in parts (FSDP2)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from adlm.distributed import DistributedContext
from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.models.stack import Stack

T = TypeVar("T")


class _Inside(nn.Module):
    """Both wrappers act where a module's forward begins and ends. So everything that uses weights, losses included,
    is called inside one."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, call: Callable[[LanguageModel], T]) -> T:
        return call(self.model)


class ParallelModel:
    """`spread(call)` is `call(model)` with all weights in place; gradients of backward are summed over processes.

    Args:
        shard: keep a part of weights, gradients and optimiser states on each process, for models that do not fit on
            one. Blocks are put together when they are used.
        some_unused: parameters may be without a gradient, which DDP has to look for.
    """

    def __init__(
        self, model: LanguageModel, world: DistributedContext, *, shard: bool = False, some_unused: bool = False
    ) -> None:
        self.model, self.world = model, world
        self.sharded = shard and world.size > 1
        self._whole = _Inside(model)
        self._wrapped: nn.Module = self._whole
        if shard and world.size == 1:
            raise ConfigError("asked to shard a model", "one process", "start several with torchrun")
        if self.sharded:
            from torch.distributed.fsdp import fully_shard

            blocks = [block for stack in model.modules() if isinstance(stack, Stack) for block in stack.blocks]
            for block in blocks:
                fully_shard(block)
            fully_shard(self._whole)
        elif world.size > 1:
            devices = [world.device] if world.device.type == "cuda" else None
            self._wrapped = DistributedDataParallel(self._whole, device_ids=devices, find_unused_parameters=some_unused)

    def __call__(self, call: Callable[[LanguageModel], T]) -> T:
        if torch.is_grad_enabled():
            return self._wrapped(call)
        result = self._whole(call)
        if self.sharded:
            self._whole.reshard()  # type: ignore[operator] # or the next call would use what it put together for this one
        return result

    @contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        """Around forward and backward of a micro-batch: gradients travel once, with the last one."""
        if self.sharded:
            self._whole.set_requires_gradient_sync(last)  # type: ignore[operator]
            yield
        elif isinstance(self._wrapped, DistributedDataParallel) and not last:
            with self._wrapped.no_sync():
                yield
        else:
            yield

    @property
    def mean_of(self) -> int:
        """Both wrappers take the mean over processes: what a loss is multiplied by to get the sum."""
        return self.world.size

    def close(self) -> None:
        """Before the processes part. DDP must not be the last to let go of their group: it would wait for the group's
        threads while it holds the interpreter's lock, which they may be waiting for."""
        self._wrapped = self._whole

    def parameters(self) -> list[nn.Parameter]:
        """Those that learn."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def gradient_norm(self) -> Tensor:
        """Of all gradients together, over all parts."""
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters() if p.grad is not None])
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    @torch.no_grad()
    def scale_gradients(self, factor: float) -> None:
        torch._foreach_mul_([local(p.grad) for p in self.parameters() if p.grad is not None], factor)

    def whole_weights(self) -> dict[str, Tensor]:
        """Every parameter put together, in main memory on the first process; the others help and get nothing."""
        weights = {}
        for name, parameter in self.model.named_parameters():
            weight = parameter.detach()
            weight = weight.full_tensor() if isinstance(weight, DTensor) else weight
            if self.world.first:
                weights[name] = weight.cpu()
        return weights


def local(tensor: Tensor) -> Tensor:
    """This process's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
