"""What is known of a foreign model beside its weights: what the user says (`Options`) and what its files say.

A checkpoint of the official training holds its Hydra configuration. Published folders have a `config.json`: MDLM's and
BD3-LM's are of transformers, of model types mdlm and bd3lm; SEDD's is the configuration of its training, with sections
`graph`, `noise` and `model`. All of it is read as data, and no code that comes with a folder is looked at.
"""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from adlm.convert.families import nearest_family
from adlm.convert.pickle_data import PickledObject, shown
from adlm.errors import ModelError
from adlm.models.io import CONFIG
from adlm.models.transformers_causal import KINDS

_FIX = f"name a folder of MDLM or BD3-LM (model_type mdlm or bd3lm), SEDD, or of transformers' {', '.join(KINDS)}"
_DEPTH = 8  # of containers in containers at one place; a file may nest them without end


@dataclass(frozen=True)
class Options:
    """Options of a conversion, for what a file does not say or leaves open.

    Args:
        weights: the moving average (ema, the default if there is one) or those of the last step (raw).
        heads: number of attention heads, if neither the configuration nor the buffers say.
        length: tokens per row.
        rows: wrap: packed rows, of OpenWebText with a begin and an end token; crop: one document per row (LM1B).
        timed: whether the network is conditioned on time.
        tokenizer: a name or folder, if the file has none.
        mask_id: the mask token's id, if not the official one.
    """

    weights: Literal["ema", "raw"] | None = None
    heads: int | None = None
    length: int | None = None
    rows: Literal["wrap", "crop"] | None = None
    timed: bool | None = None
    tokenizer: str | None = None
    mask_id: int | None = None


def only(options: Options, known: tuple[str, ...], asked: str) -> Options:
    """The options, of which a file that says the rest itself leaves no more than `known` to choose."""
    idle = [
        field.name for field in fields(options) if field.name not in known and getattr(options, field.name) is not None
    ]
    if idle:
        raise ModelError(f"{asked} with {', '.join(idle)}: the file says it itself", subject=idle[0])
    return options


def plain(node: Any) -> Any:
    """The dictionary in an OmegaConf container, the value in an OmegaConf node, or what was given."""
    for _ in range(_DEPTH):
        if not isinstance(node, PickledObject):
            return node
        state = node.state if isinstance(node.state, dict) else {}
        if "_content" in state:
            node = state["_content"]
        elif "_val" in state:
            node = state["_val"]
        else:
            return node.items or state
    return None


def lookup(node: Any, *path: str) -> Any:
    """The value at `path`, or None. Interpolations ("${...}") count as absent: resolving them is the file's wish."""
    for key in path:
        node = plain(node)
        if not isinstance(node, dict):
            return None
        node = node.get(key)
    node = plain(node)
    return None if isinstance(node, str) and "${" in node else node


def natural(config: Any, *path: str) -> int | None:
    """The number of things at `path`, or None."""
    value = lookup(config, *path)
    return value if type(value) is int and 0 < value < 2**31 else None


def fraction(config: Any, *path: str) -> float | None:
    """The number in [0, 1) at `path`, or None."""
    value = lookup(config, *path)
    return float(value) if type(value) in (int, float) and 0 <= value < 1 else None


@dataclass(frozen=True)
class Description:
    """The settings that a checkpoint states; None for those it does not.

    Args:
        wrapped: rows are packed.
        scores: logits are those of ratios, logit - log(V - 1) - log(e^sigma - 1), as `ScoreEntropy` reads them.
        framed: packed rows begin and end with a token of their own.
        block_size: tokens per block, of block diffusion.
        size, width, condition, layers: what the shapes of weights tell too, and have to agree with.
    """

    heads: int | None = None
    length: int | None = None
    dropout: float | None = None
    causal: bool | None = None
    timed: bool | None = None
    wrapped: bool | None = None
    scores: bool = False
    framed: bool = True
    block_size: int | None = None
    size: int | None = None
    width: int | None = None
    condition: int | None = None
    layers: int | None = None


# As published (arXiv 2310.16834), of files that say nothing themselves.
SEDD = Description(causal=False, timed=True, wrapped=True, scores=True, framed=False)


def described(config: Any, *, asked: str) -> Description:
    """The description in a checkpoint's `hyper_parameters["config"]`.

    Refuses networks whose weights mean something else here, although they would fit.
    """

    def flag(*path: str) -> bool | None:
        value = lookup(config, *path)
        return value if isinstance(value, bool) else None

    # BD3-LM's code has a section for what others have at the top.
    kind, backbone = (lookup(config, name) or lookup(config, "algo", name) for name in ("parameterization", "backbone"))
    timed = flag("algo", "time_conditioning") if flag("time_conditioning") is None else flag("time_conditioning")
    block_size = natural(config, "block_size") if lookup(config, "algo", "cross_attn") is True else None
    _check_blocks(block_size, timed, asked)
    if kind not in (None, "subs", "ar", "sedd"):
        raise ModelError(
            f"{asked}: it was trained with parameterization {shown(str(kind))}; only subs (MDLM, ADLM), ar and sedd "
            "can be converted",
            subject="parameterization",
        )
    if kind == "sedd" and not timed:
        raise ModelError(
            f"{asked}: the scores of a SEDD that is not time-conditioned are divided by e^0 - 1",
            subject="time_conditioning",
        )
    noise, by_time = lookup(config, "noise", "type"), flag("training", "change_of_variables")
    if timed and (noise not in (None, "loglinear") or by_time):
        raise ModelError(
            f"{asked}: it is time-conditioned with the noise {shown(str(noise))}"
            f"{' and change_of_variables' if by_time else ''}; only the log-linear schedule can be converted",
            subject="noise",
        )
    return Description(
        heads=natural(config, "model", "n_heads"),
        length=natural(config, "model", "length"),
        dropout=fraction(config, "model", "dropout"),
        causal=True if "ar" in (kind, backbone) else flag("model", "causal"),
        timed=timed,
        wrapped=flag("data", "wrap"),
        scores=kind == "sedd",
        block_size=block_size,
    )


def _check_blocks(block_size: int | None, timed: object, asked: str) -> None:
    if block_size is not None and timed:
        raise ModelError(f"{asked}: there is no time-conditioned block diffusion here", subject="time_conditioning")


def settings_of(folder: Path, asked: str) -> dict[str, Any]:
    """The `config.json` of a folder that is not a model of this package already."""
    path = folder / CONFIG
    if not path.is_file():
        raise ModelError(asked, f"a folder without {CONFIG}", _FIX, subject=CONFIG)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{asked}: {CONFIG} cannot be read: {error}", subject=CONFIG) from error
    if not isinstance(settings, dict):
        raise ModelError(f"{asked}: {CONFIG} is not an object", subject=CONFIG)
    if "format" in settings and "network" in settings:
        raise ModelError(f"{asked}: a model folder of this package; load it with `adlm.load`", subject="format")
    return settings


def description_of(settings: dict[str, Any], *, asked: str) -> Description:
    """The description of MDLM's, BD3-LM's or SEDD's settings; others are refused."""
    kind = settings.get("model_type")
    if kind == "mdlm":
        return _mdlm(settings)
    if kind == "bd3lm":
        return _bd3lm(settings, asked)
    if kind is None and isinstance(settings.get("graph"), dict) and isinstance(settings.get("model"), dict):
        return _sedd(settings, asked)
    if kind is None:
        found = f"a {CONFIG} without a model_type, graph or model"
        raise ModelError(asked, found, _FIX, subject="model_type")
    found = f"a {CONFIG} of model_type {shown(str(kind))}; the nearest that is known is {nearest_family(str(kind))}"
    raise ModelError(asked, found, _FIX, subject="model_type")


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


def _bd3lm(settings: dict[str, Any], asked: str) -> Description:
    """MDLM's settings and the size of blocks. Without `cross_attn` rows are read whole, which is MDLM itself."""
    if settings.get("causal") or settings.get("adaln") is False:
        found = "a left-to-right network, or one without adaptive norms, of model_type bd3lm"
        raise ModelError(f"{asked}: {found}; only its block diffusion has a counterpart here", subject="causal")
    plain = _mdlm(settings)
    if settings.get("cross_attn") is False:
        return plain
    block_size = natural(settings, "block_size")
    if block_size is None:
        raise ModelError(f"{asked}: {CONFIG} has no block_size", subject="block_size")
    _check_blocks(block_size, plain.timed, asked)
    return replace(plain, block_size=block_size)


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
            found = f"a SEDD with {'.'.join(path)} {shown(str(value))}, not {published}"
            raise ModelError(f"{asked}: {found}; {fix}", subject=".".join(path))
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
