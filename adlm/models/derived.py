"""Weights that are computed from parameters: at each call in training, once while no parameter changes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

T = TypeVar("T")


class Deriving(nn.Module):
    """A module that works with weights derived from its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, Any] | None = None

    def derived(self, name: str, make: Callable[[], T]) -> T:
        """`make()`, or inside `inference_weights` what it returned the first time."""
        if self._kept is None:
            return make()
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


@contextmanager
def inference_weights(model: nn.Module) -> Iterator[None]:
    """Inside, no parameter of `model` may change: derived weights are made once. Without gradients.

    Samplers and scorers run inside it. It may be nested: derived weights are dropped when the outermost ends.
    """
    # Sharded weights (FSDP2) are gathered for each call: what was derived from them must not outlive it.
    sharded = any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
    modules = [m for m in model.modules() if isinstance(m, Deriving) and m._kept is None and not sharded]
    for module in modules:
        module._kept = {}
    try:
        with torch.no_grad():
            yield
    finally:
        for module in modules:
            module._kept = None
