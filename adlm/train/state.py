"""All that changes while a run goes on: what a checkpoint holds, by name.

Noise, order and dropout are functions of the seed and the step, so there is no state of a random generator in it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adlm.errors import TrainingError
from adlm.models.language_model import LanguageModel
from adlm.train.checkpoint import Checkpoints, Found
from adlm.train.ema import Ema


@dataclass
class Numbers:
    """Args:
    step: steps done.
    tokens: trained on.
    skipped: steps left out because something was not finite.
    validated: the step of the last validation; -1 before the first.
    nats, error: what it found, a token.
    best: the lowest bound so far.
    since_best: validations after that one.
    averaged: updates of the averaged weights.
    """

    step: int = 0
    tokens: int = 0
    skipped: int = 0
    validated: int = -1
    nats: float | None = None
    error: float | None = None
    best: float | None = None
    since_best: int = 0
    averaged: int = 0


class State:
    def __init__(self, model: LanguageModel, optimizers: Sequence[Optimizer], ema: Ema | None) -> None:
        self.model, self.optimizers, self.ema = model, optimizers, ema
        self.numbers = Numbers()

    def save(self, checkpoints: Checkpoints, **others: Any) -> None:
        """Begin to write a checkpoint. `others` go into its state as they are."""
        self.numbers.averaged = self.ema.updates if self.ema is not None else 0
        checkpoints.save(self.numbers.step, self._tensors(), {"numbers": asdict(self.numbers), **others})

    def restore(self, checkpoints: Checkpoints, found: Found) -> None:
        """Go back to a checkpoint."""
        self._make_room(found)
        tensors = self._tensors()
        if missing := sorted(tensors.keys() - found.shapes.keys()):
            raise TrainingError(
                f"asked to go on from {found.folder}",
                f"no {missing[0]} in it" + (f", and {len(missing) - 1} others are missing" if missing[1:] else ""),
                "the checkpoint belongs to another model: name another --out",
            )
        checkpoints.load(found, tensors)
        known = {field.name for field in fields(Numbers)}
        self.numbers = Numbers(**{key: value for key, value in found.state["numbers"].items() if key in known})
        if self.ema is not None:
            self.ema.updates = self.numbers.averaged

    def _tensors(self) -> dict[str, Tensor]:
        """Name -> tensor, all that is to be saved or filled. Numbers are kept as tensors [1]."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            tensors[f"model.{name}"] = parameter.detach()
            for optimizer in self.optimizers:
                # .get: `state` is a defaultdict, and a parameter that has had no gradient has no state.
                for key, value in optimizer.state.get(parameter, {}).items():
                    tensors[f"optimizer.{name}.{key}"] = value.detach() if value.ndim else value.detach().view(1)
        if self.ema is not None:
            tensors.update({f"ema.{name}": mean for name, mean in self.ema.mean.items()})
        return tensors

    def _make_room(self, found: Found) -> None:
        """Optimisers make their state with the first gradient: make what the checkpoint has."""
        for name, parameter in self.model.named_parameters():
            for optimizer in self.optimizers:
                if not any(parameter is one for group in optimizer.param_groups for one in group["params"]):
                    continue
                begin = f"optimizer.{name}."
                keys = [name.removeprefix(begin) for name in sorted(found.shapes) if name.startswith(begin)]
                room = {key: _room(parameter, key) for key in keys if "." not in key}
                if room:
                    optimizer.state[parameter] = room


def _room(parameter: nn.Parameter, key: str) -> Tensor:
    return torch.zeros((), device=parameter.device) if key == "step" else torch.zeros_like(parameter.detach())
