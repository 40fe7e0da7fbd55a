"""The module that is trained, replicated (DDP) or sharded (FSDP2) over the processes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from adlm.distributed import DistributedContext
from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.models.stack import Stack
from adlm.objectives.objective import Objective
from adlm.randomness import Noise
from adlm.types import Batch, LossTerms


class TrainingModule(nn.Module):
    """A network and its objective as one module: `forward` is the loss of a batch.

    DDP and FSDP2 act where the forward of the wrapped module begins and ends, so the loss, which reads the weights of
    the heads, has to be inside it.
    """

    def __init__(self, model: LanguageModel, objective: Objective, noise: Noise) -> None:
        super().__init__()
        self.model, self.objective, self.noise = model, objective, noise

    def forward(self, batch: Batch, progress: float) -> LossTerms:
        """Sums over the batch. `progress` in [0, 1) is the fraction of the run that is done."""
        return self.objective(self.model, batch, progress=progress, noise=self.noise)

    def gather(self) -> None:
        """Does nothing by itself. FSDP2 gathers the weights outside the blocks before it and keeps them until
        `reshard`; the blocks gather theirs as they are called."""


class ParallelModel:
    """A `TrainingModule` on the processes of a context: `parallel(batch, progress)` is its forward pass.

    Args:
        shard: keep a shard of weights, gradients and optimizer states on each process (FSDP2), for models that do not
            fit on one. Blocks are gathered when they are used.
    """

    def __init__(self, module: TrainingModule, context: DistributedContext, *, shard: bool = False) -> None:
        if shard and context.size == 1:
            raise ConfigError("sharding needs several processes: start them with torchrun", subject="shard")
        self.module, self.model, self.context, self.sharded = module, module.model, context, shard
        self._wrapped: nn.Module = module
        if shard:
            _shard(module)
        elif context.size > 1:
            devices = [context.device] if context.device.type == "cuda" else None
            # An anchor head without a term of its own gets no gradient, which DDP has to look for.
            unused = self.model.anchor_head is not None and not module.objective.trains_anchor
            self._wrapped = DistributedDataParallel(module, device_ids=devices, find_unused_parameters=unused)

    def __call__(self, batch: Batch, progress: float) -> LossTerms:
        terms: LossTerms = self._wrapped(batch, progress)
        return terms

    def backward(self, loss_sum: Tensor) -> None:
        """Add the gradients of a sum over this process's rows, summed over processes: both wrappers take the mean."""
        (loss_sum * self.context.size).backward()

    @contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        """Around forward and backward of a micro-batch: gradients are communicated once, with the last one."""
        if self.sharded:
            self.module.set_requires_gradient_sync(last)  # type: ignore[operator]
            yield
        elif isinstance(self._wrapped, DistributedDataParallel) and not last:
            with self._wrapped.no_sync():
                yield
        else:
            yield

    @contextmanager
    def full_weights(self) -> Iterator[None]:
        """Inside, `model` can be called directly, without gradients, whether it is sharded or not. All processes
        enter together and make the same calls."""
        with torch.no_grad():
            if self.sharded:
                self.module.gather()
            try:
                yield
            finally:
                if self.sharded:
                    self.module.reshard()  # type: ignore[operator]

    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def grad_norm(self) -> Tensor:
        """The norm of all gradients together, over all shards; a scalar on the device."""
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters() if p.grad is not None])
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    @torch.no_grad()
    def scale_gradients(self, factor: Tensor) -> None:
        """Multiply all gradients by a scalar on the device."""
        gradients = [local(p.grad) for p in self.parameters() if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))

    def gathered_weights(self) -> dict[str, Tensor]:
        """Every parameter, unsharded, in main memory on the first process; the others take part and get nothing."""
        weights = {}
        for name, parameter in self.model.named_parameters():
            weight = parameter.detach()
            weight = weight.full_tensor() if isinstance(weight, DTensor) else weight
            if self.context.first:
                weights[name] = weight.cpu()
        return weights

    def close(self) -> None:
        """Release DDP before the process group is destroyed: DDP must not be the last owner of the group, since it
        would hold the GIL while it waits for the group's threads, which may need it."""
        self._wrapped = self.module


def _shard(module: TrainingModule) -> None:
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for stack in module.model.modules():
        if isinstance(stack, Stack):
            for block in stack.blocks:
                fully_shard(block)
    fully_shard(module)
    register_fsdp_forward_method(module, "gather")


def local(tensor: Tensor) -> Tensor:
    """This process's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
