"""Samplers are values: each takes a model and a canvas and gives a filled canvas.

Which positions change is decided first; features are computed only for rows in which something does; the
vocabulary is computed only at those positions; and a token is drawn there by inverse CDF in float64.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from adlm.diffusion.schedule import LogLinear, Schedule
from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm.randomness import Noise
from adlm.samplers.canvas import Canvas


class Sample(NamedTuple):
    """Tokens [B, L], and how many rows went through the network, all calls together."""

    tokens: Tensor
    row_calls: int


class StepView(NamedTuple):
    """What a watcher sees: step number, steps in all, tokens [B, L], which positions are fresh [B, L]."""

    step: int
    steps: int
    tokens: Tensor
    fresh: Tensor


Watch = Callable[[StepView], None]


@dataclass(frozen=True)
class Sampler(ABC):
    """Args:
    temperature: logits are divided by it; towards 0 the likeliest token is taken.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ConfigError(
                f"asked for temperature {self.temperature}", "it is not positive", "use 0.01 for nearly greedy"
            )

    def sample(self, model: LanguageModel, canvas: Canvas, *, noise: Noise, watch: Watch | None = None) -> Sample:
        """Fill the canvas. The model's weights are not to change meanwhile."""
        with model.frozen():
            return self._sample(model, canvas, noise, watch)

    @abstractmethod
    def _sample(self, model: LanguageModel, canvas: Canvas, noise: Noise, watch: Watch | None) -> Sample: ...

    def _draw(self, logits: Tensor, u: Tensor) -> Tensor:
        """Tokens [N] from logits [N, V] and one uniform number each."""
        return inverse_cdf(logits.double() / self.temperature, u)


def inverse_cdf(logits: Tensor, u: Tensor) -> Tensor:
    """The token at which the cumulative probability first exceeds u. Exact to float64, one random number a draw."""
    cumulative = logits.softmax(-1).cumsum(-1)
    target = u[:, None] * cumulative[:, -1:]  # the sum differs from 1 by rounding
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_max(logits.shape[-1] - 1)


@dataclass(frozen=True)
class Ancestral(Sampler):
    """MDLM's: over `steps` equal times, each blank is revealed with chance (alpha_s - alpha_t) / (1 - alpha_t).

    Tokens revealed in one step do not see each other, so more steps write better text. They cost little: a row
    goes through the network only in steps that reveal something in it, at most once for each blank.
    """

    steps: int = 256
    schedule: Schedule = field(default_factory=LogLinear)

    def _sample(self, model: LanguageModel, canvas: Canvas, noise: Noise, watch: Watch | None) -> Sample:
        if model.causal:
            raise ConfigError(
                "asked to unmask with a left-to-right model", "it only sees what is on the left", "use LeftToRight"
            )
        tokens, row_calls = canvas.tokens.clone(), 0
        blank = ~canvas.frozen
        length = tokens.shape[1]
        for step in range(self.steps):
            t = torch.tensor(1 - step / self.steps, dtype=torch.float64)
            s = torch.tensor(1 - (step + 1) / self.steps, dtype=torch.float64)
            alpha_t, alpha_s = self.schedule.alpha(t), self.schedule.alpha(s)
            chance = 1.0 if step == self.steps - 1 else ((alpha_s - alpha_t) / (1 - alpha_t)).item()
            fresh = blank & (noise.fork("reveal", step).uniform(canvas.rows, length) < chance)
            changed = fresh.any(-1)
            if changed.any():
                row_calls += int(changed.sum())
                times = t.float().expand(int(changed.sum())).to(tokens.device)
                final = model.features(tokens[changed], times, wanted=fresh[changed]).final
                u = noise.fork("token", step).uniform(canvas.rows, length)[fresh]
                tokens[fresh] = self._draw(model.logits(final), u)
                blank &= ~fresh
            if watch is not None:
                watch(StepView(step, self.steps, tokens, fresh))
        return Sample(tokens, row_calls)


@dataclass(frozen=True)
class LeftToRight(Sampler):
    """One token after another, for autoregressive models; whatever stands on the canvas is kept."""

    def _sample(self, model: LanguageModel, canvas: Canvas, noise: Noise, watch: Watch | None) -> Sample:
        if not model.causal:
            raise ConfigError(
                "asked to write left to right", "the model sees both sides and was not trained for it", "use Ancestral"
            )
        tokens, row_calls = canvas.tokens.clone(), 0
        length = tokens.shape[1]
        u = noise.fork("token").uniform(canvas.rows, length)
        for place in range(length):
            rows = (~canvas.frozen[:, place]).nonzero()[:, 0]
            fresh = torch.zeros_like(canvas.frozen)
            if len(rows):
                row_calls += len(rows)
                final = model.features(tokens[rows, : place + 1]).final[:, -1]
                tokens[rows, place] = self._draw(model.logits(final), u[rows, place])
                fresh[rows, place] = True
            if watch is not None:
                watch(StepView(place, length, tokens, fresh))
        return Sample(tokens, row_calls)


def default_sampler(model: LanguageModel) -> Sampler:
    """The plain sampler of a model's kind."""
    return LeftToRight() if model.causal else Ancestral()
