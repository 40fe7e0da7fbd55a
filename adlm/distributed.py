"""The processes of a run, one or as many as `torchrun` started, and their devices.

Randomness never depends on the number of processes, so several compute what one would compute alone.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from adlm.errors import AdlmError, ConfigError, first_line

T = TypeVar("T")


@dataclass(frozen=True)
class DistributedContext:
    """Rank, number of processes and device of this process. Work done once for all processes is done by the `first`.

    Args:
        local_rank: rank among the processes on the same machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """All-reduce: the sum over processes, in place, on each of them."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gathered(self, values: Tensor) -> Tensor:
        """The tensors of all processes, equal in shape, as [size, ...]."""
        if self.size == 1:
            return values[None]
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous())
        return torch.stack(parts)

    def all(self, value: Any) -> list[Any]:
        """All-gather of a small picklable value: one per rank, on every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def on_first(self, call: Callable[[], T]) -> T:
        """Call on the first process and return its result on all. An `AdlmError` raised there is raised on all."""
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
    """Rank of this process on its machine, known before the process group exists."""
    return int(os.environ.get("LOCAL_RANK", 0))


@contextmanager
def joined(device: str = "auto") -> Iterator[DistributedContext]:
    """Join the process group of `torchrun` (or slurm, with RANK and WORLD_SIZE set), if there is one.

    Inside another `joined` it is the same group: several jobs of one process join once, around all of them.

    Args:
        device: auto takes a GPU if there is one.
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
            f"cannot join {size} processes (WORLD_SIZE) without {', '.join(missing)}; start them with torchrun",
            subject=missing[0],
        )
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # gloo carries what lies in main memory: small values, and checkpoints written in the background.
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo",
        store=_store_of_this_attempt(size),
        rank=int(os.environ["RANK"]),
        world_size=size,
    )
    try:
        yield DistributedContext(dist.get_rank(), size, local_rank(), chosen)
    finally:
        # gloo's threads may still be releasing the last tensors, for which they need the GIL. Destroying the group
        # holds the GIL and waits for them: without a pause this can deadlock.
        time.sleep(0.5)
        dist.destroy_process_group()


def _store_of_this_attempt(size: int) -> Any:
    """If torchrun shares its own store, restarted processes would find the addresses of dead ones in it and wait for
    them: each attempt gets a prefix of its own. None: the processes create a store themselves."""
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
        reason = f" ({first_line(error)})" if name.partition(":")[0] in ("cpu", "cuda", "mps") else ""
        raise ConfigError(
            f"the device {name!r} cannot be used{reason}; use auto, cpu, cuda or mps", subject=str(name)
        ) from error
    return device


def peak_memory(device: torch.device) -> int:
    """Peak bytes allocated on the device so far; of the process if it computes in main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
