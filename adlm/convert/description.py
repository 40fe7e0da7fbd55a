"""What an official checkpoint says of itself beside its weights: the Hydra configuration, read as data."""

from dataclasses import dataclass
from typing import Any

from adlm.convert.names import shown
from adlm.convert.pickle_data import PickledObject
from adlm.errors import ModelError

_DEPTH = 8  # of containers in containers at one place; a file may nest them without end


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
    """What a checkpoint says; None where it does not.

    Args:
        wrapped: rows are packed.
        scores: logits are those of ratios, logit - log(V - 1) - log(e^sigma - 1), as `ScoreEntropy` reads them.
        framed: packed rows begin and end with a token of their own.
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

    kind, backbone = lookup(config, "parameterization"), lookup(config, "backbone")
    timed = flag("time_conditioning")
    if kind not in (None, "subs", "ar", "sedd"):
        raise ModelError(
            asked,
            f"a network trained with parameterization {shown(str(kind))}",
            "only outputs of subs (MDLM, ADLM), ar and sedd have a meaning here; there is no model for others",
        )
    if kind == "sedd" and not timed:
        raise ModelError(
            asked,
            "a network trained with parameterization sedd that is not time-conditioned",
            "its scores are divided by e^0 - 1: there is nothing to convert",
        )
    noise, by_time = lookup(config, "noise", "type"), flag("training", "change_of_variables")
    if timed and (noise not in (None, "loglinear") or by_time):
        raise ModelError(
            asked,
            f"a time-conditioned network with the noise {shown(str(noise))}"
            + (" and change_of_variables" if by_time else ""),
            "models here are told the time of the log-linear schedule; there is no way to convert this one",
        )
    return Description(
        heads=natural(config, "model", "n_heads"),
        length=natural(config, "model", "length"),
        dropout=fraction(config, "model", "dropout"),
        causal=True if "ar" in (kind, backbone) else flag("model", "causal"),
        timed=timed,
        wrapped=flag("data", "wrap"),
        scores=kind == "sedd",
    )
