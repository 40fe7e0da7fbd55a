"""Runs by name: CORPUS-KIND, at its usual size, or CORPUS-KIND-SIZE."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from adlm.errors import UnknownName
from adlm.models.sizes import SIZES
from adlm.recipes import published, small
from adlm.recipes.matched import MATCHED_BASELINES
from adlm.train.run import Run
from adlm.train.run_folder import read_run


class Family(NamedTuple):
    """The runs on one corpus.

    Args:
        make: (kind, size) -> run.
        sizes: the usual one first; none where there is but one.
    """

    make: Callable[..., Run]
    kinds: tuple[str, ...]
    sizes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        return (self.make.__doc__ or "").split("\n")[0]


FAMILIES: dict[str, Family] = {
    "demo": Family(small.demo, small.DEMO_KINDS),
    "box": Family(small.box, small.BOX_KINDS),
    "text8": Family(small.text8, small.KINDS, small.OFFERED),
    "wikitext2": Family(small.wikitext2, small.KINDS, small.OFFERED),
    "tinystories": Family(small.tinystories, small.KINDS, small.OFFERED),
    "lm1b": Family(published.lm1b, published.KINDS, published.OFFERED),
    "openwebtext": Family(published.openwebtext, published.KINDS, published.OFFERED),
}


def recipes() -> dict[str, Run]:
    """All named runs at their usual size, corpus by corpus."""
    return {name: family.make(kind) for name, (family, kind) in _names().items()}


def find_run(name: str) -> Run:
    """A run by the name of a recipe, the config.json of a run, or a run's folder."""
    path = Path(name)
    return read_run(path) if path.suffix == ".json" or path.is_dir() else recipe(name)


def recipe(name: str) -> Run:
    """The run of this name; at another size with that after it, as in openwebtext-adlm-medium."""
    known = _names()
    if name in known:
        family, kind = known[name]
        return family.make(kind)
    base, _, size = name.rpartition("-")
    if base not in known or size not in SIZES:
        raise UnknownName("recipe", name, known, listed="adlm recipes")
    family, kind = known[base]
    if size not in family.sizes:
        raise UnknownName(f"size of {base}", size, family.sizes)
    return family.make(kind, size)


def matched(name: str) -> Run | None:
    """The run that the one of this name is made to match; None for those that match none."""
    corpus, _, rest = name.partition("-")
    for kind, anchored in MATCHED_BASELINES.items():
        if rest == kind or rest.startswith(f"{kind}-"):
            return recipe(f"{corpus}-{anchored}{rest.removeprefix(kind)}")
    return None


def _names() -> dict[str, tuple[Family, str]]:
    return {f"{corpus}-{kind}": (family, kind) for corpus, family in FAMILIES.items() for kind in family.kinds}
