"""A moving average of the weights, as published: mean += (1 - d) (weights - mean), d = min(decay, (1 + n) / (10 + n)).

The second term lets the average follow the weights at first instead of remembering the start. Frozen weights have no
average.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adlm.errors import OutOfRange


class Ema:
    """Averages of the trained weights by name, sharded as the weights are (FSDP2)."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise OutOfRange("ema_decay", decay, "between 0 and 1")
        self.decay, self.updates = decay, 0
        learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.mean = {name: parameter.detach().clone() for name, parameter in learning.items()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the averages towards the weights of the model."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(list(self.mean.values()), self._weights(model), 1 - decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        self._exchange(model)
        try:
            yield
        finally:
            self._exchange(model)

    @torch.no_grad()
    def keep(self, model: nn.Module) -> None:
        """Leave the model with the averaged weights."""
        for weight, mean in zip(self._weights(model), self.mean.values(), strict=True):
            weight.copy_(mean)

    @torch.no_grad()
    def _exchange(self, model: nn.Module) -> None:
        """Swap contents, one parameter at a time: FSDP2 and compiled code know a parameter by its storage."""
        for weight, mean in zip(self._weights(model), self.mean.values(), strict=True):
            own = weight.clone()
            weight.copy_(mean)
            mean.copy_(own)

    def _weights(self, model: nn.Module) -> list[Tensor]:
        """The weights of the model in the order of the averages."""
        parameters = dict(model.named_parameters())
        return [parameters[name].detach() for name in self.mean]

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "mean": dict(self.mean)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = int(state["updates"])
        for name, mean in self.mean.items():
            mean.copy_(state["mean"][name])
