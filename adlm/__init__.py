"""Anchored diffusion language models: train, measure, sample, explain and serve them."""

from typing import TYPE_CHECKING

from adlm.lazy import lazy_names

if TYPE_CHECKING:
    from adlm import evaluate, samplers
    from adlm.data.catalog import open_source
    from adlm.data.prepare import prepare
    from adlm.errors import AdlmError
    from adlm.recipes.named import recipe
    from adlm.registry import register
    from adlm.text_model import TextModel, load
    from adlm.train.fit import fit
    from adlm.train.run import Run

__version__ = "0.2.0.dev0"
__all__ = [
    "AdlmError",
    "Run",
    "TextModel",
    "evaluate",
    "fit",
    "load",
    "open_source",
    "prepare",
    "recipe",
    "register",
    "samplers",
]

# Public names are fetched when first used, so that `adlm --help` and data work never wait for torch.
__getattr__ = lazy_names(
    __name__,
    {
        "data.catalog": ("open_source",),
        "data.prepare": ("prepare",),
        "errors": ("AdlmError",),
        "evaluate": (),
        "recipes.named": ("recipe",),
        "registry": ("register",),
        "samplers": (),
        "text_model": ("TextModel", "load"),
        "train.fit": ("fit",),
        "train.run": ("Run",),
    },
)
