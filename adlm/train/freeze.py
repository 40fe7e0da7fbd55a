"""Which parameters learn."""

from collections.abc import Iterable, Sequence

from adlm.errors import ConfigError, UnknownName
from adlm.models.language_model import LanguageModel

# All that the first stage's prediction depends on.
_ANCHOR = ("embedding", "anchor", "anchor_head")


def freeze(model: LanguageModel, names: Sequence[str]) -> None:
    """Let parts of a model stay as they are: no gradient is computed for them, and optimisers leave them out.

    A name is a stage of a two-stage model or the beginning of parameters' names, such as `embedding` or
    `anchor.blocks.0`. The stage `anchor` is embedding, anchor stack and anchor head; `denoiser` is the rest. Where
    heads are tied, their matrix is the embedding: frozen with the anchor stage, which leaves the last head its bias,
    and not with the denoiser.
    """
    own = {parameter: name for name, parameter in model.named_parameters()}
    every = dict(model.named_parameters(remove_duplicate=False))
    stages = _stages(own.values()) if model.stages == 2 else {}
    frozen = {name for asked in names for name in stages.get(asked) or _beginning(asked, every, stages)}
    for name in sorted(frozen):
        first = own[every[name]]
        if first not in frozen:
            fix = f"freeze {first} too, or only what is beside it, by its whole name"
            raise ConfigError(f"asked to freeze {name}", f"weights are tied: it is {first}, which is to learn", fix)
    if not any(parameter.requires_grad and name not in frozen for parameter, name in own.items()):
        raise ConfigError(f"asked to freeze {', '.join(names)}", "nothing is left that learns", "freeze less")
    for name in frozen:
        every[name].requires_grad_(False)


def _stages(names: Iterable[str]) -> dict[str, list[str]]:
    anchor = [name for name in names if name.split(".")[0] in _ANCHOR]
    return {"anchor": anchor, "denoiser": [name for name in names if name not in anchor]}


def _beginning(asked: str, names: Iterable[str], stages: Iterable[str]) -> list[str]:
    """The names of which `asked` is the beginning, in whole words."""
    found = [name for name in names if f"{name}.".startswith(f"{asked}.")]
    if found:
        return found
    # What there is instead: the words that can follow the part that is right.
    words = asked.split(".")
    for depth in reversed(range(len(words))):
        right = "".join(f"{word}." for word in words[:depth])
        known = {".".join(name.split(".")[: depth + 1]) for name in names if name.startswith(right)}
        if known:
            break
    raise UnknownName("part to freeze", asked, known if depth else {*known, *stages})
