"""Checkpoints of others into models of this package and back, read as data; and models as programs."""

from typing import TYPE_CHECKING

from adlm.lazy import lazy_names

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

__getattr__ = lazy_names(
    __name__,
    {
        "conversion": ("convert", "converted", "from_ar"),
        "description": ("Options",),
        "from_official": ("Converted",),
        "official": ("to_official",),
        "program": ("export_program",),
        "prune": ("prune_vocabulary", "token_counts"),
    },
)
