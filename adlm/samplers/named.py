"""Samplers by name, with options by the names this field uses. Nothing that is given is ignored.

Names come from the registry; options are the parameters of what is registered there. An option has one name here. What
LLaDA, Dream, MDLM, ReMDM and Hugging Face call exactly the same thing is read as well; what only resembles it is not.
"""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

from adlm import registry
from adlm.errors import ConfigError, UnknownName
from adlm.models.language_model import LanguageModel
from adlm.samplers.blocks import Blocks
from adlm.samplers.filters import Filter, TopP
from adlm.samplers.sampler import Needs, Sampler, Unmasking

_SAME = {
    "num_samples": "n",
    "num_return_sequences": "n",
    "gen_length": "max_new_tokens",
    "max_denoising_steps": "steps",
    "num_steps": "steps",
    "num_inference_steps": "steps",
    "diffusion_steps": "steps",
    "block_length": "block_size",
    "k": "tokens_per_step",
}
# Options by which others name a sampler: LLaDA's, Dream's, MDLM's.
_CHOOSING = {
    "remasking": {"low_confidence": "confidence", "random": "random"},
    "alg": {"origin": "ancestral", "maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "entropy"},
    "predictor": {"ddpm": "ancestral", "ddpm_cache": "ancestral", "analytic": "analytic"},
}
_AMOUNTS: dict[str, type] = {"n": int, "max_new_tokens": int}
_BLOCKS: dict[str, type] = {"block_size": int, "window": int}
_TOP_P: dict[str, type] = {"nucleus_p": float, "keep_crossing": bool}
_PLAIN = (int, float, bool, str)
_VALUES = {int: "an integer", float: "a number", bool: "true or false", str: "text", tuple: "a list of token ids"}


class Option(NamedTuple):
    """The type of an option's values, `tuple` for token ids, and its default; None if it depends on others."""

    type: type
    default: Any = None


class NamedSampler(NamedTuple):
    """A sampler of the registry: what a user needs to know to choose it."""

    name: str
    summary: str
    options: Mapping[str, Option]
    needs: Needs
    aliases: tuple[str, ...]
    make: Callable[..., Sampler]

    def suits(self, model: LanguageModel) -> bool:
        """Whether it can write with this model."""
        return {
            "any": True,
            "causal": model.causal or (model.shifted and model.attention == "block"),
            "masked": not model.causal,
            "two-stage": not model.causal and model.stages == 2,
            "shifted blocks": model.shifted and model.attention == "block",
        }[self.needs]


def named_samplers() -> dict[str, NamedSampler]:
    """All named samplers, by name."""
    return {name: named_sampler(name) for name in registry.names("sampler")}


def named_sampler(name: str) -> NamedSampler:
    """A sampler of the registry by its name or an alias."""
    aliases = registry.aliases("sampler")
    name = aliases.get(name, name)
    make = registry.find("sampler", name)
    return _described(name, make, tuple(other for other in aliases if aliases[other] == name), registry.names("filter"))


@cache
def _described(
    name: str, make: Callable[..., Sampler], aliases: tuple[str, ...], filters: tuple[str, ...]
) -> NamedSampler:
    made = make()
    options = _filter_options(filters) | _own_options(make)
    if isinstance(made, Unmasking):
        options |= {"stale_anchors": Option(int, 1)} | {option: Option(kind) for option, kind in _BLOCKS.items()}
    summary = (inspect.getdoc(make) or name).split("\n\n")[0].replace("\n", " ")
    return NamedSampler(name, summary, options, made.needs, aliases, make)


def _own_options(make: Callable[..., object]) -> dict[str, Option]:
    """The parameters of plain types; others, such as schedules, are for Python."""
    hints = get_type_hints(make if inspect.isfunction(make) else make.__init__)
    found = {}
    for name, parameter in inspect.signature(make).parameters.items():
        kind = _plain(hints.get(name))
        if kind is not None and parameter.kind is not parameter.VAR_KEYWORD:
            found[name] = Option(kind, None if parameter.default is parameter.empty else parameter.default)
    return found


def _plain(hint: Any) -> type | None:
    """int, float, bool or str, or one of these or None; `tuple` for a tuple of integers."""
    if hint == tuple[int, ...]:
        return tuple
    if isinstance(hint, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        hint = kinds[0] if len(kinds) == 1 else None
    return hint if hint in _PLAIN else None


def _filter_options(filters: Sequence[str]) -> dict[str, Option]:
    """An option for each filter, of the type of its first field."""
    found = {}
    for name in filters:
        first, *_ = _own_options(registry.find("filter", name)).values()
        found[name] = Option(first.type)
    return found | {option: Option(kind) for option, kind in _TOP_P.items()}


def option_types() -> dict[str, type]:
    """The options of all samplers, with the types of their values."""
    found = _AMOUNTS | dict.fromkeys(_CHOOSING, str)
    for sampler in named_samplers().values():
        found |= {name: option.type for name, option in sampler.options.items()}
    return found


def sampler_for(model: LanguageModel, sampler: Sampler | str | None, options: Mapping[str, object]) -> Sampler:
    """A sampler from its name and options; a sampler is taken as it is; None is the plain one of the model's kind.

    `named_samplers()` has the names, with their options and other spellings; so has the page "Sample". LLaDA's
    `remasking`, Dream's `alg` and MDLM's `predictor` name a sampler too.

    Options (None means not given) that every sampler has, applied in this order:
        banned, allowed: ids of tokens; repetition_penalty; temperature; top_k; top_p, with keep_crossing=False to drop
            the token that crosses it, which `nucleus_p` does; min_p.
    Options of samplers that unmask:
        block_size (block_length): fill blocks of this many tokens from left to right; window: see `Blocks`. `steps` are
            then those of each block; LLaDA counts those of all blocks together.
        stale_anchors: see `Unmasking`.
    """
    given = canonical(options)
    for name in _AMOUNTS:
        if name in given:
            raise ConfigError(f"a sampler has no option {name}", fix="give it to `generate`", subject=name)
    if isinstance(sampler, Sampler):
        if given:
            raise ConfigError(
                f"{', '.join(given)} cannot be given with a {type(sampler).__name__}: give them to it, or name the "
                "sampler by a string",
                subject=", ".join(given),
            )
        return sampler
    named = named_sampler(_chosen(model, sampler, given))
    for option in given:
        if option not in named.options:
            having = [other.name for other in named_samplers().values() if option in other.options]
            fix = f"leave it out, or use another sampler, such as {' or '.join(having[:3])}"
            raise ConfigError(f"the sampler {named.name} has no option {option}", fix=fix, subject=option)
    filters = _filters(given)
    # A sampler that reads blocks itself has an option of that name.
    size = None if "block_size" in _own_options(named.make) else given.pop("block_size", None)
    window = given.pop("window", None)
    if window is not None and size is None:
        raise ConfigError("a window moves along with blocks: give block_size too", subject="window")
    made = named.make(filters=filters, **given)
    return Blocks(inner=made, size=size, window=window) if isinstance(made, Unmasking) and size is not None else made


def canonical(options: Mapping[str, object]) -> dict[str, Any]:
    """Options under the names they have here, checked for their types. None is left out, as not given."""
    found: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    kinds = option_types()
    for spelling, value in options.items():
        name = _SAME.get(spelling, spelling)
        if name not in kinds:
            raise UnknownName("option", spelling, [*kinds, *_SAME])
        if value is None:
            continue
        if name in found:
            raise _twice(spelled[name], spelling)
        found[name], spelled[name] = _checked(spelling, value, kinds[name]), spelling
    return found


def _checked(name: str, value: object, kind: type) -> Any:
    """The value as what it is meant to be. Only an integer where any number will do is converted."""
    if kind is tuple:
        if isinstance(value, Sequence) and not isinstance(value, str) and all(type(each) is int for each in value):
            return tuple(value)
    elif type(value) is kind:
        return value
    elif kind is float and type(value) is int:
        return float(value)
    raise ConfigError(f"{name} must be {_VALUES[kind]}, got {value!r}", subject=name)


def names_one(options: Mapping[str, object]) -> bool:
    """Whether one of the options names a sampler."""
    return any(way in options for way in _CHOOSING)


def _chosen(model: LanguageModel, sampler: str | None, given: dict[str, Any]) -> str:
    """The name of the sampler. Takes away the options that name one."""
    ways = {way: given.pop(way) for way in _CHOOSING if way in given}
    if sampler is not None:
        ways = {"sampler": sampler, **ways}
    _only_one(ways)
    for way, value in ways.items():
        if way == "sampler":
            return str(value)
        if value not in _CHOOSING[way]:
            raise UnknownName(way, value, _CHOOSING[way])
        return _CHOOSING[way][value]
    return "left-to-right" if model.causal else "ancestral"


def _filters(given: dict[str, Any]) -> tuple[Filter, ...]:
    """Takes away the options that make filters."""
    _only_one({name: given[name] for name in ("top_p", "nucleus_p") if name in given})
    keep = given.pop("keep_crossing", None)
    if keep is not None and "top_p" not in given:
        raise ConfigError(
            f"keep_crossing needs top_p{', and nucleus_p always drops that token' if 'nucleus_p' in given else ''}",
            subject="keep_crossing",
        )
    if dropping := "nucleus_p" in given:
        given["top_p"] = given.pop("nucleus_p")
    made = {name: registry.find("filter", name)(given.pop(name)) for name in registry.names("filter") if name in given}
    if dropping or keep is False:
        made["top_p"] = TopP(made["top_p"].p, keep_crossing=False)
    return tuple(made.values())


def _only_one(given: Mapping[str, object]) -> None:
    if len(given) > 1:
        raise _twice(*given)


def _twice(*names: str) -> ConfigError:
    both = " and ".join(names)
    return ConfigError(f"use only one of {both}: they mean the same", subject=both)
