"""A moving average of the weights, as published: mean += (1 - d) (weights - mean), d = min(decay, (1 + n) / (10 + n)).

The second term lets the average of a short run follow at first instead of remembering the start.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from adlm.errors import ConfigError


class Ema:
    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ConfigError(f"asked for averaged weights with decay {decay}", "not between 0 and 1", "use 0.9999")
        self.decay, self.updates = decay, 0
        self.mean = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        weights = [parameter.detach() for _, parameter in model.named_parameters()]
        torch._foreach_lerp_(list(self.mean.values()), weights, 1 - decay)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model has the averaged weights. They change places, so nothing is copied."""
        self._exchange(model)
        try:
            yield
        finally:
            self._exchange(model)

    def keep(self, model: nn.Module) -> None:
        """Leave the model with the averaged weights."""
        self._exchange(model)

    @torch.no_grad()
    def _exchange(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.data, self.mean[name] = self.mean[name], parameter.data

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "mean": dict(self.mean)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = int(state["updates"])
        for name, mean in self.mean.items():
            mean.copy_(state["mean"][name])
