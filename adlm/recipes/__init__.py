"""Named runs: `recipe(name)`, `recipes()`, and the baselines that match them."""

from typing import TYPE_CHECKING

from adlm.lazy import lazy_names

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

# Fetched when first used, since `adlm --help` asks for names only.
__getattr__ = lazy_names(
    __name__,
    {
        "matched": ("MATCHED_BASELINES", "matched_baseline", "mismatch", "same_cost", "same_parameters"),
        "named": ("FAMILIES", "recipe", "recipes"),
    },
)
