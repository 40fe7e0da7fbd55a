"""Frozen dataclasses to JSON and back, strictly: what is not known is named, never ignored.

A value is written as its fields plus `kind`, its class. Only classes of this package's own list can come back.
"""

import json
import types
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from adlm.errors import ConfigError, UnknownName

T = TypeVar("T")

# What version 0.1 called kinds and fields: its saved models, runs and configurations still load.
_OLD_KINDS = {
    "AtPlaces": "AtPositions",
    "Diffused": "DiffusionReasoningData",
    "Fresh": "RandomInit",
    "RandomShare": "RandomFraction",
    "Reasoned": "ReasoningData",
    "Spread": "LowDiscrepancyTimes",
    "WithMarks": "FinetuneWithNewTokens",
}
_OLD_FIELDS: dict[str, dict[str, str]] = {
    "AnchoredCrossEntropy": {"share": "fraction"},
    "Anelbo": {"share": "fraction"},
    "AtPositions": {"places": "positions"},
    "Corpus": {"rows": "packing"},
    "Curriculum": {"rows": "batch_size", "start": "init"},
    "DegradedAnelbo": {"share": "fraction"},
    "ModelConfig": {"rows": "packing"},
    "RandomFraction": {"share": "fraction"},
    "RareInCorpus": {"share": "fraction"},
    "Run": {"start": "init"},
    "StackConfig": {"reread": "input_reinjection"},
    "TfIdf": {"share": "fraction"},
    "TrainConfig": {
        "clip": "grad_clip",
        "ema": "ema_decay",
        "micro_rows": "micro_batch_size",
        "rate": "lr_schedule",
        "recompute": "activation_checkpointing",
        "tokens": "tokens_per_step",
    },
    "ValidationConfig": {"micro_rows": "micro_batch_size", "rows": "num_rows"},
}


def renamed(data: Any) -> Any:
    """JSON with the names of 0.1 replaced by today's, at any depth."""
    if isinstance(data, list):
        return [renamed(item) for item in data]
    if not isinstance(data, dict):
        return data
    kind = data.get("kind")
    fields_of = _OLD_FIELDS.get(_OLD_KINDS.get(kind, kind), {}) if isinstance(kind, str) else {}
    found = {
        fields_of.get(key, key) if fields_of.get(key) not in data else key: renamed(value)
        for key, value in data.items()
    }
    if isinstance(kind, str):
        found["kind"] = _OLD_KINDS.get(kind, kind)
    return found


def to_json(value: Any) -> Any:
    """A dataclass, or whatever its fields hold, as plain JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "kind": type(value).__name__,
            **{field.name: to_json(getattr(value, field.name)) for field in fields(value)},
        }
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    return value


def _kinds(base: type[Any]) -> dict[str, type[Any]]:
    """`base` and every finished class below it, by name."""
    found = {} if getattr(base, "__abstractmethods__", None) else {base.__name__: base}
    for child in base.__subclasses__():
        found.update(_kinds(child))
    return found


def from_json(expected: type[T], data: Any, *, where: str = "config") -> T:
    """The value of type `expected` that `data` describes.

    Args:
        where: what to call the place in messages, as in `config.stack.width`.
    """
    return _read(expected, renamed(data), where)


def _read(expected: Any, data: Any, where: str) -> Any:
    if isinstance(data, str) and is_dataclass(expected):
        data = {"kind": data}  # a value by the name of its kind
    if isinstance(data, dict) and isinstance(expected, type) and is_dataclass(expected):
        kinds = _kinds(expected)
        kind = data.get("kind", expected.__name__)
        if kind not in kinds:
            raise UnknownName(f"kind of {expected.__name__} at {where}", str(kind), kinds)
        cls = kinds[kind]
        hints = get_type_hints(cls)
        names = [field.name for field in fields(cls)]
        for key in data:
            if key != "kind" and key not in names:
                raise UnknownName(f"field of {kind} at {where}", key, names)
        missing = [
            field.name
            for field in fields(cls)
            if field.name not in data and field.default is MISSING and field.default_factory is MISSING
        ]
        if missing:
            raise ConfigError(f"asked to read {kind} at {where}", f"no {', '.join(missing)}", "add what is missing")
        values = {key: _read(hints[key], item, f"{where}.{key}") for key, item in data.items() if key != "kind"}
        return cls(**values)
    return _plain(expected, data, where)


def _plain(expected: Any, data: Any, where: str) -> Any:
    """A value that is not a dataclass."""
    origin = get_origin(expected)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in get_args(expected):
            return None
        options = [option for option in get_args(expected) if option is not type(None)]
        return _read(options[0], data, where)
    if origin is tuple and isinstance(data, list):
        kind, *more = get_args(expected)
        if more == [...]:
            return tuple(_read(kind, item, f"{where}[{i}]") for i, item in enumerate(data))
        return tuple(data)
    plain = origin or expected
    if plain is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(plain, type) or not isinstance(data, plain) or (plain is int and isinstance(data, bool)):
        name = "list" if plain is tuple else getattr(plain, "__name__", str(plain))
        raise ConfigError(
            f"asked to read {where}", f"{data!r}, a {type(data).__name__}", f"give a value of type {name}"
        )
    return data


def with_changes(value: T, changes: Sequence[str]) -> T:
    """A copy of a dataclass with fields changed, as `--set train.steps=1000` says it.

    The right side is JSON, or text that needs no quotes. A field that is itself a value takes the name of its kind
    (`train.optimizer=AdamW`) or an object (`train.optimizer={"kind": "AdamW", "lr": 1e-4}`); the rest of it then has
    its defaults.
    """
    data = to_json(value)
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path:
            raise ConfigError(f"asked to set {change!r}", "no NAME=VALUE", "write as in train.steps=1000")
        *parents, last = path.split(".")
        inner = data
        for depth, name in enumerate([*parents, last]):
            where = ".".join(parents[:depth]) or "the run"
            if not isinstance(inner, dict) or "kind" not in inner:
                raise ConfigError(f"asked to set {path}", f"{where} has no fields of its own", f"set {where}")
            name = _OLD_FIELDS.get(inner["kind"], {}).get(name, name)
            if name not in inner or name == "kind":
                raise UnknownName(f"field of {inner['kind']} at {where}", name, [key for key in inner if key != "kind"])
            if depth < len(parents):
                inner = inner[name]
            else:
                inner[name] = _literal(text)
        # Whole again after each change, so that the next may reach into what this one put there.
        value = from_json(type(value), data)
        data = to_json(value)
    return value


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)
