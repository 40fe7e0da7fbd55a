"""The processes that work together: one alone, or as many as `torchrun` started, on one machine or on several.

Randomness never depends on them, so what they compute together is what one would compute alone.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from adlm.errors import AdlmError, ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class DistributedContext:
    """This process's place. What is done by one for all is done by the `first`.

    Args:
        local_rank: the number of this process on its own machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Over all processes, on each of them."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gathered(self, values: Tensor) -> Tensor:
        """[size, ...]: the tensors of all processes, equal in shape."""
        if self.size == 1:
            return values[None]
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous())
        return torch.stack(parts)

    def all(self, value: Any) -> list[Any]:
        """A small value of each process, on all of them."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def on_first(self, call: Callable[[], T]) -> T:
        """What the first process gets from `call`, on all; what it raises for a user to put right, all raise."""
        outcome: tuple[T | None, AdlmError | None] = (None, None)
        if self.first:
            try:
                outcome = (call(), None)
            except AdlmError as error:
                outcome = (None, error)
        value, problem = self.all(outcome)[0]
        if problem is not None:
            raise problem
        return value


def local_rank() -> int:
    """Of this process on its machine, before it has joined the others."""
    return int(os.environ.get("LOCAL_RANK", 0))


@contextmanager
def joined(device: str = "auto") -> Iterator[DistributedContext]:
    """Join the processes that `torchrun` started (or slurm, with RANK and WORLD_SIZE set), if it did.

    Inside another `joined` it is the same group: several jobs of one process join once, around all of them.

    Args:
        device: auto takes a GPU where there is one.
    """
    size = int(os.environ.get("WORLD_SIZE", 1))
    chosen = device_for(device)
    if size == 1:
        yield DistributedContext(device=chosen)
        return
    if dist.is_initialized():
        yield DistributedContext(dist.get_rank(), size, local_rank(), chosen)
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"asked to join {size} processes (WORLD_SIZE)", f"no {', '.join(missing)}", "start them with torchrun"
        )
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # gloo carries what lies in main memory: small values, and checkpoints while training goes on.
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo",
        store=_store_of_this_attempt(size),
        rank=int(os.environ["RANK"]),
        world_size=size,
    )
    try:
        yield DistributedContext(dist.get_rank(), size, local_rank(), chosen)
    finally:
        # gloo's threads may still be letting go of the last tensors, for which they need Python's lock. Whoever takes
        # the group apart holds that lock and waits for them: without a pause they can wait for each other forever.
        time.sleep(0.5)
        dist.destroy_process_group()


def _store_of_this_attempt(size: int) -> Any:
    """Where torchrun lends processes its own store, those it has restarted would find the addresses of dead ones in
    it, and wait for them: each attempt gets a part of the store for itself. None: processes make a store themselves."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    lent = dist.TCPStore(host, port, size, is_master=False)  # type: ignore[attr-defined]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"attempt-{attempt}", lent)  # type: ignore[attr-defined]


def device_for(name: str) -> torch.device:
    """A device by name; auto: this process's GPU, or the CPU."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        return torch.device("cuda", local_rank())
    if name == "auto":
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"asked for the device {name!r}", reason, "use auto, cpu, cuda or mps") from error
    return device
