"""Batches from a table, in an order that depends on the seed and the epoch alone.

The order of an epoch is a keyed permutation that is computed, not stored; so the whole state of a loader is
one number, the batches already given. Any number of ranks and workers sees the same global batches.
"""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from adlm.data.table import Table
from adlm.errors import ConfigError, DataError
from adlm.types import Batch

_ROUNDS = 6


def permuted(positions: NDArray[np.int64], size: int, key: int) -> NDArray[np.int64]:
    """A bijection of 0..size-1 chosen by `key`, at these positions.

    A balanced Feistel network on the smallest even number of bits that holds `size`, walked until the value
    falls below it: no table, so a corpus of any size costs nothing to shuffle.
    """
    half = max(1, (int(size - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    rounds = np.random.Generator(np.random.Philox(key)).integers(1, 1 << 63, _ROUNDS, dtype=np.uint64) | np.uint64(1)

    def scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = x >> np.uint64(half), x & mask
        for constant in rounds:
            h = (right + np.uint64(0x9E3779B97F4A7C15)) * constant
            h = (h ^ (h >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((h ^ (h >> np.uint64(32))) & mask)
        return (left << np.uint64(half)) | right

    with np.errstate(over="ignore"):
        out = scramble(positions.astype(np.uint64))
        while (outside := out >= np.uint64(size)).any():
            out[outside] = scramble(out[outside])
    return out.astype(np.int64)


def read_rows(table: Table, rows: NDArray[np.int64], *, first_sample_id: int = 0) -> Batch:
    """These rows as a batch whose draws are numbered from `first_sample_id`."""
    tokens = table.tokens(rows)
    fixed, documents, targets = table.frozen(rows), table.documents(tokens), table.targets(rows)
    anchors = table.anchors(rows)
    return Batch(
        tokens=torch.from_numpy(tokens),
        valid=torch.from_numpy(table.valid(rows)),
        index=torch.from_numpy(rows),
        sample_id=torch.arange(first_sample_id, first_sample_id + len(rows)),
        frozen=None if fixed is None else torch.from_numpy(fixed),
        documents=None if documents is None else torch.from_numpy(documents),
        targets=None if targets is None else torch.from_numpy(targets),
        anchors=None if anchors is None else torch.from_numpy(anchors),
    )


@dataclass(frozen=True)
class LoaderConfig:
    """The settings of a loader.

    Args:
        batch: rows in a global batch, over all ranks.
        seed: of the order.
        shuffle: off for evaluation: rows in their stored order.
        workers: processes that read ahead.
    """

    batch: int
    seed: int = 0
    shuffle: bool = True
    workers: int = 0

    def build(self, table: Table, *, rank: int = 0, world_size: int = 1) -> "Loader":
        return Loader(table, self, rank=rank, world_size=world_size)


class Loader:
    """An endless stream of this rank's part of the global batches; incomplete batches are left out.

    `state_dict()` is exact in the middle of an epoch: it counts batches that were handed out, not those
    that workers have read ahead.
    """

    def __init__(self, table: Table, config: LoaderConfig, *, rank: int = 0, world_size: int = 1) -> None:
        if config.batch < 1 or config.batch % world_size:
            raise ConfigError(
                f"a global batch of {config.batch} rows cannot be divided among {world_size} ranks",
                fix=f"choose a multiple of {world_size}",
                subject="batch",
            )
        if len(table) < config.batch:
            raise DataError(
                f"{table.name} has {len(table)} rows, fewer than a batch of {config.batch}",
                fix="choose a smaller batch or more data",
                subject=table.name,
            )
        self.table, self.config, self.rank, self.world_size = table, config, rank, world_size
        self.given = 0

    @property
    def batches_per_epoch(self) -> int:
        return len(self.table) // self.config.batch

    def rows(self, step: int) -> NDArray[np.int64]:
        """This rank's rows of global batch number `step`."""
        epoch, position = divmod(step, self.batches_per_epoch)
        fraction = self.config.batch // self.world_size
        positions = np.arange(fraction) + position * self.config.batch + self.rank * fraction
        if not self.config.shuffle:
            return positions
        key = int.from_bytes(np.array([self.config.seed, epoch], np.uint64).tobytes(), "little")
        return permuted(positions, len(self.table), key)

    def batch(self, step: int) -> Batch:
        """This rank's part of global batch number `step`."""
        rows = self.rows(step)
        return read_rows(self.table, rows, first_sample_id=step * self.config.batch + self.rank * len(rows))

    def __iter__(self) -> Iterator[Batch]:
        if self.config.workers == 0:
            batches: Any = (self.batch(step) for step in _count(self.given))
        else:
            batches = iter(
                DataLoader(
                    _Steps(self),
                    batch_size=None,
                    sampler=_count(self.given),
                    num_workers=self.config.workers,
                    prefetch_factor=4,
                    worker_init_fn=_begin_worker,
                )
            )
        try:
            for batch in batches:
                self.given += 1
                yield batch
        finally:
            if self.config.workers:
                batches._shutdown_workers()  # deaf to signals, they would be waited for at the end of the process

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given, "batch": self.config.batch, "seed": self.config.seed, "data": self.table.key}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mine = self.state_dict()
        changed = [name for name in mine if name != "given" and state.get(name) != mine[name]]
        if changed:
            raise ConfigError(
                "cannot resume reading data",
                "; ".join(f"{name}: was {state.get(name)}, now {mine[name]}" for name in changed),
                "use the same data, batch and seed, or start a new run",
                subject=", ".join(changed),
            )
        self.given = int(state["given"])


class _count:
    """0, 1, 2, ... from `start`: as a sampler, one step number a time."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __iter__(self) -> Iterator[int]:
        step = self.start
        while True:
            yield step
            step += 1


class _Steps(Dataset[Batch]):
    """A loader seen as a table of batches, for worker processes."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getitem__(self, step: int) -> Batch:
        return self.loader.batch(step)


def _begin_worker(number: int) -> None:
    """Ctrl-C and what a scheduler sends come to all processes of a run. It is for the one that trains to answer: it
    still needs batches until it has saved."""
    torch.set_num_threads(1)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_IGN)
