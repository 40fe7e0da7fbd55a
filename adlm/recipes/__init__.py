"""Named runs: `recipe(name)`, `recipes()`, and the baselines that match them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adlm.recipes.matched import MATCHED_BASELINES, matched_baseline, mismatch, same_cost, same_parameters
    from adlm.recipes.named import FAMILIES, recipe, recipes

__all__ = [
    "FAMILIES",
    "MATCHED_BASELINES",
    "matched_baseline",
    "mismatch",
    "recipe",
    "recipes",
    "same_cost",
    "same_parameters",
]

_HOMES = {
    "FAMILIES": "adlm.recipes.named",
    "MATCHED_BASELINES": "adlm.recipes.matched",
    "matched_baseline": "adlm.recipes.matched",
    "mismatch": "adlm.recipes.matched",
    "recipe": "adlm.recipes.named",
    "recipes": "adlm.recipes.named",
    "same_cost": "adlm.recipes.matched",
    "same_parameters": "adlm.recipes.matched",
}


def __getattr__(name: str) -> Any:
    # Fetched when first used, since `adlm --help` asks for names only.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
