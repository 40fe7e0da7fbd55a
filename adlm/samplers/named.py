"""Samplers by name, with options by the names this field uses. Nothing that is given is ignored.

An option has one name here. What LLaDA, Dream, MDLM, ReMDM and Hugging Face call exactly the same thing is read as
well; what only resembles it is not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from adlm.errors import ConfigError, UnknownName
from adlm.models.language_model import LanguageModel
from adlm.samplers.analytic import Analytic
from adlm.samplers.ancestral import Ancestral, Remasking
from adlm.samplers.blocks import Blocks
from adlm.samplers.filters import Allowed, Banned, Filter, MinP, RepetitionPenalty, Temperature, TopK, TopP
from adlm.samplers.first_hitting import FirstHitting
from adlm.samplers.left_to_right import LeftToRight
from adlm.samplers.ordered import Ordered
from adlm.samplers.orders import AnchorConfidence, AnyOrder, Confidence, LeastEntropy, Margin, Order
from adlm.samplers.paces import Above, EntropyBound, InSteps, Pace, PerStep
from adlm.samplers.remasking import ByConfidence, Cap, FlowCorrector, ForwardBackward, Loop, RemaskRule, Rescale
from adlm.samplers.sampler import Sampler, Unmasking

# What an option takes.
_TYPES: dict[str, type] = {
    **dict.fromkeys(("n", "max_new_tokens", "steps", "top_k", "block_size", "window"), int),
    **dict.fromkeys(("stale_anchors", "tokens_per_step"), int),
    **dict.fromkeys(("temperature", "top_p", "nucleus_p", "min_p", "repetition_penalty"), float),
    **dict.fromkeys(("eta", "t_on", "t_off", "alpha_on", "threshold", "gamma"), float),
    "keep_crossing": bool,
    **dict.fromkeys(("banned", "allowed"), tuple),
    **dict.fromkeys(("remasking", "alg", "predictor"), str),
}
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
_AMOUNTS = ("n", "max_new_tokens")
# In the order in which they are applied.
_FILTERS: dict[str, Callable[[Any], Filter]] = {
    "banned": Banned,
    "allowed": Allowed,
    "repetition_penalty": RepetitionPenalty,
    "temperature": Temperature,
    "top_k": TopK,
    "top_p": TopP,
    "nucleus_p": lambda p: TopP(p, keep_crossing=False),
    "min_p": MinP,
}
_FILTERING = (*_FILTERS, "keep_crossing")
_UNMASKING = ("stale_anchors", "block_size", "window")
_PACES: dict[str, Callable[[Any], Pace]] = {
    "steps": InSteps,
    "tokens_per_step": PerStep,
    "threshold": Above,
    "gamma": EntropyBound,
}


class _Named(NamedTuple):
    """How a sampler is made, from `filters`, `stale_anchors` and the options it has for itself."""

    make: Callable[..., Sampler]
    options: tuple[str, ...] = ()
    unmasks: bool = True

    @property
    def all_options(self) -> tuple[str, ...]:
        return (*_FILTERING, *(_UNMASKING if self.unmasks else ()), *self.options)


def _remasking(rule: type[RemaskRule], *options: str) -> _Named:
    def make(**given: Any) -> Sampler:
        return Remasking(rule=rule(**{name: given.pop(name) for name in options if name in given}), **given)

    return _Named(make, ("steps", *options))


def _ordered(order: Order, *paces: str, pace: Pace | None = None, agreeing: bool = False) -> _Named:
    def make(**given: Any) -> Sampler:
        chosen = {name: given.pop(name) for name in paces if name in given}
        _only_one(chosen)
        found = [_PACES[name](value) for name, value in chosen.items()]
        return Ordered(order=order, pace=found[0] if found else pace or InSteps(), agreeing=agreeing, **given)

    return _Named(make, paces)


_SAMPLERS: dict[str, _Named] = {
    "ancestral": _Named(Ancestral, ("steps",)),
    "first-hitting": _Named(FirstHitting),
    "remdm-cap": _remasking(Cap, "eta"),
    "remdm-rescale": _remasking(Rescale, "eta"),
    "remdm-conf": _remasking(ByConfidence),
    "remdm-loop": _remasking(Loop, "eta", "t_on", "t_off", "alpha_on"),
    "forward-backward": _remasking(ForwardBackward),
    "dfm": _remasking(FlowCorrector),
    "analytic": _Named(Analytic, ("steps",)),
    "confidence": _ordered(Confidence(), "steps", "tokens_per_step", "threshold", "gamma"),
    "margin": _ordered(Margin(), "steps", "tokens_per_step", "threshold", "gamma"),
    "entropy": _ordered(LeastEntropy(), "steps", "tokens_per_step", "gamma"),
    "entropy-bounded": _ordered(LeastEntropy(), "gamma", pace=EntropyBound()),
    "threshold": _ordered(Confidence(), "threshold", pace=Above()),
    "random": _ordered(AnyOrder(), "steps", "tokens_per_step"),
    "anchor-first": _ordered(AnchorConfidence(), "steps", "tokens_per_step", "threshold", "gamma"),
    "agreeing": _ordered(Confidence(), "steps", "tokens_per_step", "threshold", "gamma", agreeing=True),
    "left-to-right": _Named(LeftToRight, unmasks=False),
}
_ALSO = {"mdlm": "ancestral", "ddpm": "ancestral", "eb": "entropy-bounded", "ar": "left-to-right"}


def default_sampler(model: LanguageModel) -> Sampler:
    """The plain sampler of a model's kind."""
    return LeftToRight() if model.causal else Ancestral()


def sampler_for(model: LanguageModel, sampler: Sampler | str | None, options: Mapping[str, object]) -> Sampler:
    """A sampler from its name and options; a sampler is taken as it is; None is the plain one of the model's kind.

    Names: ancestral (mdlm, ddpm), first-hitting, remdm-cap, remdm-rescale, remdm-conf, remdm-loop, forward-backward,
    dfm, analytic, confidence, margin, entropy, entropy-bounded (eb), threshold, random, anchor-first, agreeing,
    left-to-right (ar). LLaDA's `remasking`, Dream's `alg` and MDLM's `predictor` name one too.

    Options, of which None is none:
        banned, allowed: ids of tokens; repetition_penalty; temperature; top_k; top_p, with keep_crossing=False to drop
            the token that crosses it, which `nucleus_p` does; min_p. Applied in this order, by every sampler.
        steps (max_denoising_steps, num_steps, num_inference_steps, diffusion_steps): of each block, where there are
            blocks. LLaDA counts those of all blocks together.
        tokens_per_step (k), threshold, gamma (nats): other paces than `steps` for samplers that have an order.
        eta, t_on, t_off, alpha_on: of ReMDM's rules.
        block_size (block_length): from left to right in blocks of so many tokens; window: see `Blocks`.
        stale_anchors: see `Unmasking`.
    """
    given = canonical(options)
    for name in _AMOUNTS:
        if name in given:
            raise ConfigError(f"asked a sampler for {name}", "it decides how, not how much", "give it to `generate`")
    if isinstance(sampler, Sampler):
        if given:
            asked = f"asked for {', '.join(given)} beside the sampler {type(sampler).__name__}"
            raise ConfigError(asked, "a sampler is complete", "give them to the sampler, or name it by a string")
        return sampler
    name = _chosen(model, sampler, given)
    named = _SAMPLERS[name]
    for option in given:
        if option not in named.all_options:
            having = [other for other in _SAMPLERS if option in _SAMPLERS[other].all_options]
            fix = f"leave it out, or use {' or '.join(having)}"
            raise ConfigError(f"asked for {option} with the sampler {name}", "it has no use for it", fix)
    filters = _filters(given)
    size, window = given.pop("block_size", None), given.pop("window", None)
    if window is not None and size is None:
        raise ConfigError("asked for a window", "it moves along with blocks, and there are none", "give block_size too")
    made = named.make(filters=filters, **given)
    return Blocks(inner=made, size=size, window=window) if isinstance(made, Unmasking) and size is not None else made


def canonical(options: Mapping[str, object]) -> dict[str, Any]:
    """Options under the names they have here, checked for their types. None is left out, as not given."""
    found: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for spelling, value in options.items():
        name = _SAME.get(spelling, spelling)
        if name not in _TYPES:
            raise UnknownName("option", spelling, [*_TYPES, *_SAME])
        if value is None:
            continue
        if name in found:
            raise _twice(spelled[name], spelling)
        found[name], spelled[name] = _checked(spelling, value, _TYPES[name]), spelling
    return found


def _checked(name: str, value: object, kind: type) -> Any:
    """The value as what it is meant to be. Only an integer where any number is wanted becomes something else."""
    if kind is tuple:
        if isinstance(value, Sequence) and not isinstance(value, str) and all(type(each) is int for each in value):
            return tuple(value)
    elif type(value) is kind:
        return value
    elif kind is float and type(value) is int:
        return float(value)
    output_mask = {int: "a whole number", float: "a number", bool: "True or False", tuple: "a list of token ids"}
    fix = f"give {output_mask.get(kind, 'a name')}"
    raise ConfigError(f"asked for {name}={value!r}", f"a value of type {type(value).__name__}", fix)


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
        if way in _CHOOSING:
            if value not in _CHOOSING[way]:
                raise UnknownName(way, value, _CHOOSING[way])
            return _CHOOSING[way][value]
        name = _ALSO.get(value, value)
        if name not in _SAMPLERS:
            raise UnknownName("sampler", value, [*_SAMPLERS, *_ALSO])
        return name
    return "left-to-right" if model.causal else "ancestral"


def _filters(given: dict[str, Any]) -> tuple[Filter, ...]:
    """Takes away the options that make filters."""
    _only_one({name: given[name] for name in ("top_p", "nucleus_p") if name in given})
    keep = given.pop("keep_crossing", None)
    if keep is not None and "top_p" not in given:
        found = "nucleus_p drops it always" if "nucleus_p" in given else "no top_p"
        raise ConfigError(f"asked for keep_crossing={keep}", found, "give it with top_p")
    if keep is False:
        given["nucleus_p"] = given.pop("top_p")
    return tuple(make(given.pop(name)) for name, make in _FILTERS.items() if name in given)


def _only_one(given: Mapping[str, object]) -> None:
    if len(given) > 1:
        raise _twice(*given)


def _twice(*names: str) -> ConfigError:
    return ConfigError(f"asked for {' and '.join(names)}", "they say the same, or contradict", "give one of them")
