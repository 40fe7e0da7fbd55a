"""What the `config.json` of a published folder says: MDLM's, SEDD's, and whose it is otherwise.

MDLM's is one of the library transformers, of model type mdlm. SEDD's is the configuration of its training, with
sections `graph`, `noise` and `model`. No code that comes with a folder is looked at.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from adlm.convert.description import SEDD, Description, fraction, lookup, natural
from adlm.convert.names import shown
from adlm.errors import ModelError
from adlm.models.transformers_causal import KINDS

CONFIG = "config.json"
_FIX = f"name a folder of MDLM (model_type mdlm), SEDD, or of transformers' {', '.join(KINDS)}"


def settings_of(folder: Path, asked: str) -> dict[str, Any]:
    """The `config.json` of a folder that is not a model of this package already."""
    path = folder / CONFIG
    if not path.is_file():
        fix = f"{_FIX}; a model folder goes under official names by --to official"
        raise ModelError(asked, f"a folder without {CONFIG}", fix)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(asked, f"{CONFIG} cannot be read: {error}", "the file is damaged: get it again") from error
    if not isinstance(settings, dict):
        raise ModelError(asked, f"{CONFIG} is not a table of settings", "the file is damaged: get it again")
    if "format" in settings and "network" in settings:
        fix = "load it as it is, or write it under official names: --to official"
        raise ModelError(asked, "a model folder of this package", fix)
    return settings


def description_of(settings: dict[str, Any], *, asked: str) -> Description:
    """Of MDLM's or SEDD's settings; those of others are refused."""
    kind = settings.get("model_type")
    if kind == "mdlm":
        return _mdlm(settings)
    if kind is None and isinstance(settings.get("graph"), dict) and isinstance(settings.get("model"), dict):
        return _sedd(settings, asked)
    whose = f"of model_type {shown(str(kind))}" if kind is not None else "that says of no model here what it is"
    raise ModelError(asked, f"a {CONFIG} {whose}", _FIX)


def _mdlm(settings: dict[str, Any]) -> Description:
    timed = settings.get("time_conditioning")
    return Description(
        heads=natural(settings, "n_heads"),
        length=natural(settings, "model_length"),
        dropout=fraction(settings, "dropout"),
        causal=False,
        timed=timed if isinstance(timed, bool) else None,
        size=natural(settings, "vocab_size"),
        width=natural(settings, "hidden_dim"),
        condition=natural(settings, "cond_dim"),
        layers=natural(settings, "n_blocks"),
    )


def _sedd(settings: dict[str, Any], asked: str) -> Description:
    """Refuses what is not SEDD's absorbing process as it was published: its outputs would mean something else."""
    fix = "only SEDD Absorb with scale_by_sigma and the log-linear noise has a counterpart here"
    for path, published in (
        (("graph", "type"), "absorb"),
        (("noise", "type"), "loglinear"),
        (("model", "scale_by_sigma"), True),
    ):
        value = lookup(settings, *path)
        if value != published:
            raise ModelError(asked, f"a SEDD with {'.'.join(path)} {shown(str(value))}, not {published}", fix)
    tokens = natural(settings, "tokens")
    return replace(
        SEDD,
        heads=natural(settings, "model", "n_heads"),
        length=natural(settings, "model", "length"),
        dropout=fraction(settings, "model", "dropout"),
        size=None if tokens is None else tokens + 1,  # the mask
        width=natural(settings, "model", "hidden_size"),
        condition=natural(settings, "model", "cond_dim"),
        layers=natural(settings, "model", "n_blocks"),
    )
