"""The samplers of a served model, with a sentence and the bounds of each control, for clients that show a choice."""

from typing import Any

from adlm.samplers.blocks import Blocks
from adlm.samplers.named import named_samplers
from adlm.samplers.sampler import Sampler
from adlm.serve.engine import Engine
from adlm.serve.limits import ServerLimits
from adlm.serve.requests import Sampling
from adlm.serve.streaming import checked
from adlm.text_model import TextModel


def samplers_of(model: TextModel, limits: ServerLimits) -> list[dict[str, Any]]:
    """Those of the registry that can write with this model."""
    found = []
    for name, sampler in named_samplers().items():
        if not sampler.suits(model.network):
            continue
        options: dict[str, Any] = {
            "temperature": {"default": 1.0, "least": 0.0, "most": 2.0},
            "top_p": {"default": 1.0, "least": 0.05, "most": 1.0},
        }
        if "steps" in sampler.options:
            steps = min(steps_of(sampler.make()) or 64, limits.steps)
            options["steps"] = {"default": steps, "least": 1, "most": limits.steps}
        if "block_size" in sampler.options:
            options["block_size"] = {"least": 0}
        found.append({"name": name, "about": sampler.summary, "options": options, "aliases": list(sampler.aliases)})
    return found


def steps_of(sampler: Sampler) -> int:
    """The steps of a sampler; 0 if it does not know them beforehand."""
    sampler = sampler.inner if isinstance(sampler, Blocks) else sampler
    pace = getattr(sampler, "pace", None)
    steps = getattr(sampler, "steps", None) or getattr(pace, "steps", None)
    return steps if isinstance(steps, int) else 0


def sampler_of(engine: Engine, ask: Sampling, n: int, tokens: int | None) -> Sampler:
    """The sampler of a request. What exceeds a limit is refused here, before the request waits for its turn."""
    limits = engine.limits
    limits.check("n", n)
    limits.check("tokens", tokens, param="max_tokens")
    limits.check("steps", ask.steps)
    model = engine.models[engine.named(ask.model)]
    sampler = checked(model.sampler, ask.sampler, **ask.options)
    if ask.steps is None and steps_of(sampler) > limits.steps:  # its default, or the model's own
        sampler = checked(model.sampler, ask.sampler, **{**ask.options, "steps": limits.steps})
    return sampler
