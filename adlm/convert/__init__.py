"""Checkpoints of others into models of this package and back, read as data; and models as programs."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adlm.convert.conversion import convert, converted, from_ar
    from adlm.convert.description import Options
    from adlm.convert.from_official import Converted
    from adlm.convert.official import to_official
    from adlm.convert.program import export_program
    from adlm.convert.prune import prune_vocabulary, token_counts

__all__ = [
    "Converted",
    "Options",
    "convert",
    "converted",
    "export_program",
    "from_ar",
    "prune_vocabulary",
    "to_official",
    "token_counts",
]

_HOMES = {
    "Converted": "from_official",
    "Options": "description",
    "convert": "conversion",
    "converted": "conversion",
    "export_program": "program",
    "from_ar": "conversion",
    "prune_vocabulary": "prune",
    "to_official": "official",
    "token_counts": "prune",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
