"""One optimiser step of a global batch, whoever computes which part of it.

Losses and gradients are sums until the end and are divided once, by the tokens of the global batch. Noise depends on
the numbers of rows, dropout on those of micro-batches: processes and interruptions change neither.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from adlm.objectives.objective import Objective
from adlm.randomness import Noise
from adlm.train.ema import Ema
from adlm.train.parallel import ParallelModel
from adlm.train.precision import bf16_is_fast
from adlm.train.run import TrainConfig
from adlm.types import Batch


class StepResult(NamedTuple):
    """What a step found: means a token, over all processes.

    Args:
        gradient: its norm before clipping.
        rate: the learning rate of the first parameters.
        taken: False where something was not finite: weights and optimiser are as before.
        suspects: numbers of this process's micro-batches whose loss was not finite.
        flags: sums of what the processes passed along.
    """

    loss: float
    bound: float
    gradient: float
    rate: float
    taken: bool
    suspects: tuple[int, ...]
    flags: tuple[float, ...]


class TrainStep:
    """Args:
    rows: of a global batch.
    """

    def __init__(
        self,
        spread: ParallelModel,
        objective: Objective,
        optimizers: Sequence[Optimizer],
        ema: Ema | None,
        config: TrainConfig,
        rows: int,
    ) -> None:
        self.spread, self.objective, self.optimizers, self.ema = spread, objective, optimizers, ema
        self.config, self.rows = config, rows
        self.device = spread.world.device
        self.noise, self.dropout = Noise(config.seed).fork("train"), Noise(config.seed).fork("dropout")
        self.bf16 = config.bf16 and bf16_is_fast(self.device)
        self._groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._peaks = [group["lr"] for group in self._groups]

    def __call__(self, batch: Batch, step: int, flags: Sequence[float] = ()) -> StepResult:
        """Step number `step`, counted from 0, with this process's part of its batch."""
        config, world = self.config, self.spread.world
        parts = batch.split(config.micro_batch_size)
        sums = [self._backward(part, step, i, last=i == len(parts) - 1) for i, part in enumerate(parts)]
        each = torch.stack(sums)  # [micro-batches, 3]: loss, bound, tokens
        extra = each.new_tensor(list(flags))
        totals = world.sum(torch.cat([each.sum(0), extra]))
        loss, bound, tokens, *summed = totals.tolist()
        tokens = max(tokens, 1.0)
        gradient = self.spread.gradient_norm().item() / tokens
        rate = self._set_rates(step)
        taken = math.isfinite(loss) and math.isfinite(gradient)
        if taken:
            self.spread.scale_gradients(min(1.0, config.grad_clip / (gradient + 1e-6)) / tokens)
            for optimizer in self.optimizers:
                optimizer.step()
            if self.ema is not None:
                self.ema.update(self.spread.model)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        suspects = () if taken else tuple((~each[:, 0].isfinite()).nonzero()[:, 0].tolist())
        return StepResult(loss / tokens, bound / tokens, gradient, rate, taken, suspects, tuple(summed))

    def _backward(self, part: Batch, step: int, number: int, *, last: bool) -> Tensor:
        """Add a micro-batch's gradients; its sums [3]."""
        config, world = self.config, self.spread.world
        first = step * self.rows + world.rank * (self.rows // world.size) + number * config.micro_batch_size
        torch.manual_seed(self.dropout.fork(first).seed % 2**63)
        part = part.to(self.device)
        with self.spread.accumulating(last=last):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                progress = step / config.steps
                terms = self.spread(lambda model: self.objective(model, part, progress=progress, noise=self.noise))
            (terms.loss_sum * self.spread.mean_of).backward()
        wide = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.stack([value.detach().to(wide) for value in (terms.loss_sum, terms.nll_sum, terms.tokens)])

    def _set_rates(self, step: int) -> float:
        fraction = self.config.lr_schedule.fraction(step, self.config.steps)
        for group, peak in zip(self._groups, self._peaks, strict=True):
            group["lr"] = peak * fraction
        return self._peaks[0] * fraction
