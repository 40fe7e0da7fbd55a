"""What an official checkpoint says of itself beside its weights: the Hydra configuration, read as data."""

from dataclasses import dataclass
from typing import Any

from adlm.convert.names import shown
from adlm.convert.pickle_data import Record
from adlm.errors import ModelError

_DEPTH = 8  # of containers in containers at one place; a file may nest them without end


def plain(node: Any) -> Any:
    """The dictionary in an OmegaConf container, the value in an OmegaConf node, or what was given."""
    for _ in range(_DEPTH):
        if not isinstance(node, Record):
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


@dataclass(frozen=True)
class Description:
    """What shapes do not tell; None where the file does not say."""

    heads: int | None = None
    length: int | None = None
    dropout: float | None = None
    causal: bool | None = None
    timed: bool | None = None
    wrapped: bool | None = None


def described(config: Any, *, asked: str) -> Description:
    """The description in a checkpoint's `hyper_parameters["config"]`.

    Refuses networks whose weights mean something else here, although they would fit.
    """

    def number(*path: str) -> int | None:
        value = lookup(config, *path)
        return value if type(value) is int and 0 < value < 2**31 else None

    def flag(*path: str) -> bool | None:
        value = lookup(config, *path)
        return value if isinstance(value, bool) else None

    kind, backbone = lookup(config, "parameterization"), lookup(config, "backbone")
    if kind not in (None, "subs", "ar"):
        raise ModelError(
            asked,
            f"a network trained with parameterization {shown(str(kind))}",
            "only subs (MDLM, ADLM) and ar outputs are log-probabilities of tokens; there is no model for others here",
        )
    timed = flag("time_conditioning")
    noise, by_time = lookup(config, "noise", "type"), flag("training", "change_of_variables")
    if timed and (noise not in (None, "loglinear") or by_time):
        raise ModelError(
            asked,
            f"a time-conditioned network with the noise {shown(str(noise))}"
            + (" and change_of_variables" if by_time else ""),
            "models here are told the time of the log-linear schedule; there is no way to convert this one",
        )
    dropout = lookup(config, "model", "dropout")
    return Description(
        heads=number("model", "n_heads"),
        length=number("model", "length"),
        dropout=float(dropout) if type(dropout) in (int, float) and 0 <= dropout < 1 else None,
        causal=True if "ar" in (kind, backbone) else flag("model", "causal"),
        timed=timed,
        wrapped=flag("data", "wrap"),
    )
