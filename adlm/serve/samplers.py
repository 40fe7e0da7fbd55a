"""The samplers of a served model, with a sentence and the bounds of each control, for clients that show a choice."""

from typing import Any

from adlm.errors import ConfigError
from adlm.samplers.sampler import Sampler
from adlm.serve.limits import ServerLimits
from adlm.text_model import TextModel

_ABOUT = {
    "ancestral": "Reveals blanks at random over a grid of times; what is written stays.",
    "first-hitting": "Reveals one blank after another, in random order.",
    "remdm-cap": "As ancestral, but may take a few tokens back in each step and write them anew.",
    "remdm-rescale": "As ancestral, taking back a fixed fraction of what could be taken back.",
    "remdm-conf": "As ancestral, taking back what the model was least sure of.",
    "remdm-loop": "Writes, then mends for a while at a constant noise level, then finishes.",
    "forward-backward": "Takes back as much in each step as noise would have hidden.",
    "dfm": "Flow matching's corrector: takes tokens back as it reveals others.",
    "confidence": "Writes first where the model is surest.",
    "margin": "Writes first where the best token leads the second by most.",
    "entropy": "Writes first where the model sees the fewest possibilities.",
    "entropy-bounded": "Writes as many sure tokens at once as a bound on their uncertainty allows.",
    "threshold": "Writes in each step all tokens that are surer than a threshold.",
    "random": "Writes in random order, equally many in each step.",
    "anchor-first": "Writes first where the anchor stage is surest.",
    "agreeing": "As confidence, and at once wherever the anchor stage and the denoiser agree.",
    "left-to-right": "One token after another.",
}
_TWO_STAGE = ("anchor-first", "agreeing")


def samplers_of(model: TextModel, limits: ServerLimits) -> list[dict[str, Any]]:
    """Those that can write with this model."""
    found = []
    for name, about in _ABOUT.items():
        unmasks = name != "left-to-right"
        if unmasks == model.network.causal or (name in _TWO_STAGE and model.network.stages < 2):
            continue
        options: dict[str, Any] = {
            "temperature": {"default": 1.0, "least": 0.0, "most": 2.0},
            "top_p": {"default": 1.0, "least": 0.05, "most": 1.0},
        }
        if (sampler := _with_steps(model, name)) is not None:
            options["steps"] = {"default": min(_steps(sampler), limits.steps), "least": 1, "most": limits.steps}
        found.append({"name": name, "about": about, "options": options})
    return found


def _with_steps(model: TextModel, name: str) -> Sampler | None:
    try:
        model.sampler(name, steps=2)
    except ConfigError:
        return None
    return model.sampler(name)


def _steps(sampler: Sampler) -> int:
    pace = getattr(sampler, "pace", None)
    steps = getattr(sampler, "steps", None) or getattr(pace, "steps", None)
    return steps if isinstance(steps, int) else 64
