"""The training loop: batches in, optimiser steps out, reports to whoever watches."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from adlm.data.loader import Loader
from adlm.errors import TrainingError
from adlm.models.language_model import LanguageModel
from adlm.objectives.objective import Objective
from adlm.randomness import Noise
from adlm.train.ema import Ema
from adlm.train.optimizer import Muon, OptimizerConfig
from adlm.train.precision import bf16_is_fast
from adlm.train.rates import Rate, StableDecay


@dataclass(frozen=True)
class TrainConfig:
    """How long and how.

    Args:
        ema: decay of the averaged weights that are kept; 0 keeps the last ones.
        bf16: matrix products in bfloat16 where the device is fast at it.
    """

    steps: int = 1000
    optimizer: OptimizerConfig = field(default_factory=Muon)
    rate: Rate = field(default_factory=StableDecay)
    clip: float = 1.0
    ema: float = 0.0
    bf16: bool = True
    seed: int = 0


class Report(NamedTuple):
    """What a step did. `loss` and `bound` are nats a token."""

    step: int
    loss: float
    bound: float
    gradient: float
    seconds: float
    tokens: int


def train(
    model: LanguageModel,
    objective: Objective,
    loader: Loader,
    config: TrainConfig,
    *,
    device: torch.device | str = "cpu",
    watch: Callable[[Report], None] | None = None,
) -> LanguageModel:
    """Train `model` in place and return it, with averaged weights if the config asks for them."""
    model.to(device).train()
    optimizers = config.optimizer.build(model)
    peaks = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    ema = Ema(model, config.ema) if config.ema else None
    noise = Noise(config.seed).fork("train")
    bf16 = config.bf16 and bf16_is_fast(device)
    started = time.perf_counter()
    for step, batch in zip(range(config.steps), loader, strict=False):
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * config.rate.share(step, config.steps)
        batch = batch.to(device)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bf16):
            terms = objective(model, batch, progress=step / config.steps, noise=noise)
        loss = terms.loss_sum / terms.tokens
        loss.backward()
        gradient = nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        report = Report(
            step,
            loss.item(),
            (terms.nll_sum / terms.tokens).item(),
            gradient.item(),
            time.perf_counter() - started,
            batch.tokens.numel(),
        )
        if not math.isfinite(report.loss) or not math.isfinite(report.gradient):
            raise TrainingError(
                f"asked for training step {step}",
                f"loss {report.loss}, gradient norm {report.gradient} on samples {batch.index.tolist()[:8]} ...",
                "lower the learning rate; the weights are those before this step",
            )
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if ema is not None:
            ema.update(model)
        if watch is not None:
            watch(report)
    if ema is not None:
        ema.keep(model)
    return model.eval()
