"""Anchored diffusion language models: train, measure, sample, explain and serve them."""

import importlib
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "AdlmError": "adlm.errors",
    "Run": "adlm.train.run",
    "TextModel": "adlm.text_model",
    "fit": "adlm.train.fit",
    "load": "adlm.text_model",
    "open_source": "adlm.data.catalog",
    "prepare": "adlm.data.prepare",
    "recipe": "adlm.recipes.named",
    "register": "adlm.registry",
}


def __getattr__(name: str) -> Any:
    # Public names are fetched when first used, so that `adlm --help` and data work never wait for torch.
    if name in ("evaluate", "samplers"):
        return importlib.import_module(f"adlm.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'adlm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
