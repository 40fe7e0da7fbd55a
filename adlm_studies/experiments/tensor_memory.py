"""Bytes of tensors that a piece of work has alive at once: counted tensor by tensor, the same on every machine."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(work: Callable[[], object]) -> int:
    """The peak number of bytes in tensors made by `work`; earlier tensors do not count.

    What an operation needs inside itself, and what allocators and libraries hold on to, is not seen.
    """
    with _Alive() as alive:
        work()
    return alive.peak


class _Alive(TorchDispatchMode):
    """Sees every operation, those of backward passes too, and follows the storages of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for storage in _storages((args, kwargs)):
            self._known.setdefault(storage, 0)  # made before, or known
        result = func(*args, **kwargs)
        for storage in _storages(result):
            if storage not in self._known:
                size = storage.nbytes()
                self._known[storage] = size
                self.now += size
                weakref.finalize(storage, self._freed, size)
        self.peak = max(self.peak, self.now)
        return result

    def _freed(self, size: int) -> None:
        self.now -= size


def _storages(values: Any) -> list[Any]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
