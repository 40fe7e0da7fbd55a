"""The registry: every class that a stored configuration or an option can name, by group and name.

Members are listed as "module:name" and imported when they are first used. Other packages add theirs by an entry point
of the group `adlm.plugins` (a module that registers on import); scripts by `adlm.register` and `--import MODULE`.

A stored configuration names a class by its `kind`, which is the name of the class. Names in lower case are what users
type: samplers, filters and data sets have them.
"""

import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar, overload

from adlm.errors import ConfigError, UnknownName

T = TypeVar("T")
PLUGINS = "adlm.plugins"  # the group of entry points


def _in(module: str, *names: str) -> dict[str, str]:
    """Classes of a module under their own names."""
    return {name: f"{module}:{name}" for name in names}


# What the members of a group are.
_BASES = {
    "anchor_rule": "adlm.anchors.rules:AnchorRule",
    "corruption": "adlm.diffusion.corruption:Corruption",
    "data": "adlm.data.table:DataConfig",
    "dataset": "adlm.data.source:Source",
    "document_rule": "adlm.data.documents:DocumentRule",
    "filter": "adlm.samplers.filters:Filter",
    "hand_over": "adlm.models.hand_over:HandOver",
    "init": "adlm.train.init:Init",
    "lr_schedule": "adlm.train.lr_schedules:LRSchedule",
    "network": "adlm.models.network:NetworkConfig",
    "objective": "adlm.objectives.objective:Objective",
    "optimizer": "adlm.train.optimizers:OptimizerConfig",
    "order": "adlm.samplers.orders:Order",
    "pace": "adlm.samplers.paces:Pace",
    "packing": "adlm.data.packing:Packing",
    "remask_rule": "adlm.samplers.remasking:RemaskRule",
    "sampler": "adlm.samplers.sampler:Sampler",
    "schedule": "adlm.diffusion.schedule:Schedule",
    "times": "adlm.diffusion.times:Times",
}
_MEMBERS: dict[str, dict[str, Any]] = {
    "anchor_rule": {
        **_in("adlm.anchors.rules", "RareInSequence", "Given", "EveryToken", "NoToken", "RandomFraction"),
        **_in("adlm.anchors.corpus", "RareInCorpus", "TfIdf"),
        **_in("adlm.anchors.positions", "AtPositions"),
        **_in("adlm.anchors.words", "ContentWords"),
    },
    "corruption": {
        **_in("adlm.diffusion.corruption", "UniformMasking", "CountMasking", "AnchoredMasking"),
        **_in("adlm.diffusion.blocks", "BlockMasking"),
        **_in("adlm.diffusion.masks_in_training", "MirrorMasking", "LeftToRightMasking", "ConfidenceMasking"),
        **_in("adlm.samplers.hole_lengths", "ContextMasking"),
    },
    "data": {
        **_in("adlm.data.config", "Corpus"),
        **_in("adlm.data.prompts", "Prompts"),
        **_in("adlm.data.synthetic", "Synthetic"),
        **_in("adlm.data.anchored_process", "AnchoredProcess"),
        **_in("adlm.data.together", "Together"),
    },
    "dataset": {},  # those of `adlm.data.catalog`, see `_CATALOG`
    "document_rule": _in("adlm.data.documents", "Whole", "Lines", "Paragraphs", "Separator", "WikiTextArticles"),
    "filter": {  # in the order in which they are applied
        "banned": "adlm.samplers.filters:Banned",
        "allowed": "adlm.samplers.filters:Allowed",
        "repetition_penalty": "adlm.samplers.filters:RepetitionPenalty",
        "temperature": "adlm.samplers.filters:Temperature",
        "top_k": "adlm.samplers.filters:TopK",
        "top_p": "adlm.samplers.filters:TopP",
        "min_p": "adlm.samplers.filters:MinP",
        **_in("adlm.samplers.filters", "Forced"),
    },
    "hand_over": _in("adlm.models.hand_over", "Logits", "Probabilities", "Hidden", "Continued"),
    "init": _in("adlm.train.init", "RandomInit", "Finetune", "AnchorFrom", "SplitFrom", "Pretrained"),
    "lr_schedule": _in("adlm.train.lr_schedules", "Constant", "CosineDecay", "StableDecay"),
    "network": {
        **_in("adlm.models.one_stage", "OneStageConfig"),
        **_in("adlm.models.two_stage", "TwoStageConfig"),
        **_in("adlm.models.transformers_causal", "TransformersCausalConfig"),
    },
    "objective": {
        **_in("adlm.objectives.objective", "CrossEntropy"),
        **_in("adlm.objectives.nelbo", "Nelbo", "Anelbo", "AnchoredCrossEntropy"),
        **_in("adlm.objectives.d3pm", "D3pm"),
        **_in("adlm.objectives.score_entropy", "ScoreEntropy"),
        **_in("adlm.objectives.degraded", "DegradedAnelbo"),
        **_in("adlm.objectives.order_likelihood", "OrderLikelihood"),
    },
    "optimizer": _in("adlm.train.optimizers", "AdamW", "Muon"),
    "order": _in("adlm.samplers.orders", "Confidence", "Margin", "LeastEntropy", "AnchorConfidence", "AnyOrder"),
    "pace": _in("adlm.samplers.paces", "PerStep", "InSteps", "Above", "EntropyBound"),
    "packing": _in("adlm.data.packing", "Wrapped", "Padded"),
    "remask_rule": _in(
        "adlm.samplers.remasking",
        *("Never", "Cap", "Rescale", "ByConfidence", "ForwardBackward", "FlowCorrector", "Loop"),
    ),
    "sampler": {  # a class, or a function that makes a sampler from options
        "ancestral": "adlm.samplers.ancestral:Ancestral",
        "first-hitting": "adlm.samplers.first_hitting:FirstHitting",
        "remdm-cap": "adlm.samplers.presets:remdm_cap",
        "remdm-rescale": "adlm.samplers.presets:remdm_rescale",
        "remdm-conf": "adlm.samplers.presets:remdm_conf",
        "remdm-loop": "adlm.samplers.presets:remdm_loop",
        "forward-backward": "adlm.samplers.presets:forward_backward",
        "dfm": "adlm.samplers.presets:dfm",
        "analytic": "adlm.samplers.analytic:Analytic",
        "confidence": "adlm.samplers.presets:confidence",
        "margin": "adlm.samplers.presets:margin",
        "entropy": "adlm.samplers.presets:entropy",
        "entropy-bounded": "adlm.samplers.presets:entropy_bounded",
        "threshold": "adlm.samplers.presets:threshold",
        "random": "adlm.samplers.presets:random",
        "anchor-first": "adlm.samplers.presets:anchor_first",
        "agreeing": "adlm.samplers.presets:agreeing",
        "left-to-right": "adlm.samplers.left_to_right:LeftToRight",
        "draft-and-verify": "adlm.samplers.draft_and_verify:DraftAndVerify",
        **_in("adlm.samplers.ancestral", "Remasking"),
        **_in("adlm.samplers.ordered", "Ordered"),
        **_in("adlm.samplers.blocks", "Blocks"),
    },
    "schedule": _in("adlm.diffusion.schedule", "LogLinear", "Cosine", "Polynomial", "Linear", "Geometric", "Clipped"),
    "times": {
        **_in("adlm.diffusion.times", "LowDiscrepancyTimes", "Antithetic", "Independent"),
        **_in("adlm.diffusion.times_in_training", "Bell", "Window"),
    },
}
# Other spellings, and the kinds of version 0.1: its saved models, runs and configurations still load.
_ALIASES: dict[str, dict[str, str]] = {
    "anchor_rule": {"AtPlaces": "AtPositions", "RandomShare": "RandomFraction"},
    "init": {"Fresh": "RandomInit"},
    "sampler": {"mdlm": "ancestral", "ddpm": "ancestral", "eb": "entropy-bounded", "ar": "left-to-right"},
    "times": {"Spread": "LowDiscrepancyTimes"},
}
_CATALOG = "adlm.data.catalog:CATALOG"  # data sets are values with a summary and a license, and are kept there
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_imported: list[str] = []
_stored: list[tuple[str, Path]] = []


def names(group: str) -> tuple[str, ...]:
    """The names of a group's members, without aliases."""
    members = _members(group)
    typed = tuple(name for name in members if name[0].islower())
    return typed or tuple(members)


def aliases(group: str) -> Mapping[str, str]:
    """Other spellings of a group's names."""
    _load_plugins()
    return _ALIASES.get(group, {})


def groups() -> Mapping[str, str]:
    """The groups, each with the class that its members have in common, as "module:name"."""
    _load_plugins()
    return _BASES


def find(group: str, name: str) -> Any:
    """The member of a group by its name, an alias, or the name of its class."""
    found = lookup(group, name)
    if found is None:
        raise UnknownName(group.replace("_", " "), name, [*names(group), *_typed(aliases(group))])
    return found


def lookup(group: str, name: str) -> Any | None:
    """As `find`, but None if there is none. Imports that a run stored happen here, when a name is not found."""
    found = _lookup(group, name)
    while found is None and _stored:
        _import_stored(*_stored[0])
        del _stored[0]
        found = _lookup(group, name)
    return found


def kinds(group: str) -> dict[str, Any]:
    """The classes of a group by the name of the class: where each is, or the class itself."""
    return {kind: member for member in _members(group).values() if (kind := _kind(member))}


def group_of(kind: type[Any]) -> str | None:
    """The group that a class belongs to, or whose base it is."""
    _load_plugins()
    by_base = {base: group for group, base in _BASES.items()}
    return next((by_base[key] for each in kind.__mro__ if (key := _address(each)) in by_base), None)


def current_kind(kind: str) -> str:
    """The name that a class has today, for the name it had in an earlier version."""
    _load_plugins()
    return next((old[kind] for old in _ALIASES.values() if kind in old and kind[0].isupper()), kind)


@overload
def register(group: str, name: str | None = None) -> Callable[[T], T]: ...
@overload
def register(group: str, name: str | None, member: T) -> T: ...
def register(group: str, name: str | None = None, member: Any = None) -> Any:
    """Register a class by name, as a decorator or by a call with the class.

    The class is a frozen dataclass below the base of its group; a sampler may also be a function that makes one. It can
    be stored and read from then on, and set by its name: `--set objective=MyObjective`, `--sampler my-sampler`.

    Args:
        group: sampler, filter, objective, anchor_rule, dataset and others: the keys of `groups()`.
        name: what users type; by default the name of the class.
    """
    if member is None:
        return lambda member: register(group, name, member)
    if group not in _BASES:
        raise UnknownName("group", group, _BASES)
    _check(group, member)
    add(group, {name or member.__name__: member})
    return member


def add(group: str, members: Mapping[str, Any], *, base: str = "", old: Mapping[str, str] | None = None) -> None:
    """Add members as "module:name", imported when they are needed; a new group has a `base`.

    Args:
        old: names of earlier versions, and what they are called now.
    """
    if base:
        _BASES[group] = base
    elif group not in _BASES:
        raise UnknownName("group", group, _BASES)
    mine = _MEMBERS.setdefault(group, {})
    for name, member in members.items():
        if group == "dataset" and name in _load(_CATALOG):
            raise ConfigError(f"the data set {name!r} is already in the catalog", subject=name)
        for taken, other in mine.items():
            if (taken == name or _kind(other) == _kind(member) != "") and _address(other) != _address(member):
                raise ConfigError(
                    f"the {group.replace('_', ' ')} {name!r} is already registered, as {_address(other)}", subject=name
                )
        mine[name] = member
    _ALIASES.setdefault(group, {}).update(old or {})


def import_module(module: str) -> None:
    """Import a module of the user's for the classes it registers, as `--import` does; the working folder is searched
    too. Runs that are trained afterwards remember it."""
    _import(module)
    if module not in _imported:
        _imported.append(module)


def imported() -> tuple[str, ...]:
    """The modules of `--import`."""
    return tuple(_imported)


def offer_imports(modules: object, folder: Path) -> None:
    """Remember what a run in a local folder was trained with `--import` of. It is imported only if a class is not found
    otherwise, and never from inside the folder: what came with a model is data."""
    folder = folder.resolve()
    if any(part.startswith("models--") for part in folder.parts):  # the cache of the Hub
        return
    if isinstance(modules, list | tuple):
        offered = [(module, folder) for module in modules if isinstance(module, str)]
        _stored.extend(each for each in offered if each not in _stored and each[0] not in _imported)


def _import_stored(module: str, folder: Path) -> None:
    path = ""
    for part in module.split("."):
        path = f"{path}.{part}".removeprefix(".")
        # A parent has been looked at before its child is looked for, which imports the parent.
        if _MODULE.fullmatch(path) and (place := _inside(path, folder)):
            raise ConfigError(
                f"the run in {folder} wants to import {module!r}",
                f"it is {place}: code that comes with a model is not run",
                f"read it, move it out of the folder, and give --import {module}",
                subject=module,
            )
    _import(module, f"the run in {folder} was trained with --import {module}")


def _inside(module: str, folder: Path) -> Path | None:
    """Where in the folder a module would be loaded from, if it would."""
    _search_working_folder()
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    found = (Path(place).resolve() for place in places if place and place not in ("built-in", "frozen"))
    return next((place for place in found if place.is_relative_to(folder)), None)


def _import(module: str, asked: str = "") -> None:
    asked = asked or f"cannot import {module!r} (--import)"
    if not _MODULE.fullmatch(module):
        raise ConfigError(f"{asked}: not the name of a module, such as my_module for my_module.py", subject=module)
    _search_working_folder()
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(f"{asked}: it needs {error.name!r}, which is not installed", subject=module) from error
        fix = f"run it where {module.split('.')[0]}.py is, or install it, and give --import {module}"
        raise ConfigError(asked, "no module of that name", fix, subject=module) from error
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{asked}: {type(error).__name__}: {error}", subject=module) from error


def _search_working_folder() -> None:
    """Put the working folder at the end of the path, where it stays: a module may import its neighbors later."""
    if (folder := str(Path.cwd())) not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()


@cache
def _load_plugins() -> None:
    for entry in entry_points(group=PLUGINS):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(f"the plugin {entry.name} ({entry.value}) cannot be loaded: {error}", stacklevel=2)


def _members(group: str) -> dict[str, Any]:
    _load_plugins()
    if group not in _MEMBERS:
        raise UnknownName("group", group, _BASES)
    return {**_load(_CATALOG), **_MEMBERS[group]} if group == "dataset" else _MEMBERS[group]


def _lookup(group: str, name: str) -> Any | None:
    members = _members(group)
    name = _ALIASES.get(group, {}).get(name, name)
    return _load(members.get(name) or next((each for each in members.values() if name and _kind(each) == name), None))


def _load(member: Any) -> Any:
    if not isinstance(member, str):
        return member
    module, _, name = member.partition(":")
    return getattr(importlib.import_module(module), name)


def _address(member: Any) -> str:
    return member if isinstance(member, str) else f"{member.__module__}:{member.__qualname__}"


def _kind(member: Any) -> str:
    """The name of a class; nothing for functions and values."""
    name = _address(member).rpartition(":")[2] if isinstance(member, str | type) else ""
    return name if name[:1].isupper() else ""


def _typed(names: Iterable[str]) -> list[str]:
    return [name for name in names if name[0].islower()]


def _check(group: str, member: Any) -> None:
    """A class that could not be stored, or is of another group, is refused when it is registered."""
    base = _load(_BASES[group])
    name = getattr(member, "__name__", repr(member))
    if isinstance(member, type):
        if not issubclass(member, base):
            raise ConfigError(
                f"cannot register {name} as a {group}: it is not derived from {base.__module__}.{base.__name__}",
                subject=name,
            )
        if not is_dataclass(member) or "__dataclass_params__" not in vars(member):
            raise ConfigError(
                f"cannot register {name} as a {group}: it is not a dataclass; put "
                "@dataclass(frozen=True) below @adlm.register",
                subject=name,
            )
    elif group != "sampler" or not callable(member):
        raise ConfigError(f"only a class can be registered as a {group}, got {name}", subject=name)
