"""Frozen dataclasses to JSON and back, strictly: an unknown field is an error, never ignored.

A value is written as its fields and its `kind`, the name of its class. Where a field may hold one of several classes,
the registry says which class a kind is.
"""

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from adlm import registry
from adlm.errors import ConfigError, UnknownName

T = TypeVar("T")

# What version 0.1 called fields; the kinds it had are aliases in the registry.
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
    if not isinstance(kind, str):
        return {key: renamed(value) for key, value in data.items()}
    kind = registry.current_kind(kind)
    if kind == "StackConfig" and "causal" in data:
        causal = data["causal"]
        data = {"attention": "causal" if causal else "full", **{k: v for k, v in data.items() if k != "causal"}}
    if kind == "TrainConfig" and "bf16" in data:
        data = {"precision": "auto" if data["bf16"] else "float32", **{k: v for k, v in data.items() if k != "bf16"}}
    names = _OLD_FIELDS.get(kind, {})
    found = {names.get(key, key) if names.get(key) not in data else key: renamed(value) for key, value in data.items()}
    return {**found, "kind": kind}


def to_json(value: Any) -> Any:
    """A dataclass, or whatever its fields hold, as plain JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "kind": type(value).__name__,
            **{field.name: to_json(getattr(value, field.name)) for field in fields(value)},
        }
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return value


def from_json(expected: type[T], data: Any, *, where: str = "config") -> T:
    """The value of type `expected` that `data` describes.

    Args:
        where: what to call the place in messages, as in `config.stack.width`.
    """
    return _read(expected, renamed(data), where)


def _read(expected: Any, data: Any, where: str) -> Any:
    origin, inner = get_origin(expected) or expected, get_args(expected)
    if origin in (Union, types.UnionType):
        return _union(expected, inner, data, where)
    if origin is Literal:
        if any(data == each and type(data) is type(each) for each in inner):
            return data
    elif origin is Any or origin is object:
        return data
    elif isinstance(origin, type) and is_dataclass(origin):
        if isinstance(data, str):
            data = {"kind": registry.current_kind(data)}  # a value by the name of its kind
        if isinstance(data, dict):
            return _dataclass(origin, data, where)
    elif origin in (tuple, list, Sequence):
        if isinstance(data, list):
            return _items(expected, origin, inner, data, where)
    elif origin in (dict, Mapping):
        if isinstance(data, dict):
            key, value = inner or (Any, Any)
            return {_key(key, name, where): _read(value, item, f"{where}.{name}") for name, item in data.items()}
    elif origin in (None, type(None)):
        if data is None:
            return None
    elif origin is float and type(data) is int:
        return float(data)
    elif type(data) is origin:
        return data
    raise _wrong(expected, data, where)


def _wrong(expected: Any, data: Any, where: str) -> ConfigError:
    return ConfigError(f"{where} must be {_name(expected)}, got {json.dumps(data, default=repr)}", subject=where)


def _name(expected: Any) -> str:
    """A type as a person says it."""
    origin, inner = get_origin(expected) or expected, get_args(expected)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_name, inner))
    if origin is Literal:
        return " or ".join(map(json.dumps, inner))
    if origin in (tuple, list, Sequence):
        if origin is tuple and inner and Ellipsis not in inner:
            return f"a list of {len(inner)} values"
        return f"a list, each {_name(inner[0])}" if inner else "a list"
    if origin in (None, type(None)):
        return "null"
    plain = {int: "an integer", float: "a number", bool: "true or false", str: "text", dict: "an object"}
    return plain.get(origin, f"a {getattr(origin, '__name__', origin)}")


def _union(expected: Any, members: Sequence[Any], data: Any, where: str) -> Any:
    """By the first member that fits, an exact one before one that converts: 3 is an int where float is possible too."""
    failures: list[ConfigError] = []
    for member in sorted(members, key=lambda each: type(data) is not each):
        try:
            return _read(member, data, where)
        except ConfigError as error:
            failures.append(error)
    # What is wrong inside a value says more than that none of the members fits.
    deeper = [error for error in failures if isinstance(error, UnknownName) or error.subject != where]
    raise deeper[0] if deeper else _wrong(expected, data, where)


def _items(expected: Any, origin: Any, inner: Sequence[Any], data: list[Any], where: str) -> Any:
    kinds: Sequence[Any]
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        kinds = [] if inner == ((),) else inner
        if len(kinds) != len(data):
            raise _wrong(expected, data, where)
    else:
        kinds = [inner[0] if inner else Any] * len(data)
    read = [_read(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, data, strict=True))]
    return read if origin is list else tuple(read)


def _key(expected: Any, name: str, where: str) -> Any:
    """Keys are text in JSON; numbers are read from it."""
    if expected in (str, Any):
        return name
    try:
        return _read(expected, json.loads(name), where)
    except (ValueError, ConfigError):
        raise _wrong(expected, name, f"a key of {where}") from None


def _dataclass(expected: type[Any], data: dict[str, Any], where: str) -> Any:
    cls = _class(expected, data.get("kind", expected.__name__), where)
    kind, hints = cls.__name__, get_type_hints(cls)
    known = {field.name: field for field in fields(cls) if field.init}
    for key in data:
        if key != "kind" and key not in known:
            raise UnknownName("field", str(key), known, where=f"in {where}")
    for name, field in known.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{where} has no {name}, which {kind} needs", subject=f"{where}.{name}")
    return cls(**{key: _read(hints[key], item, f"{where}.{key}") for key, item in data.items() if key != "kind"})


def _class(expected: type[Any], kind: object, where: str) -> type[Any]:
    """The class of a kind where `expected` is wanted."""
    finished = not getattr(expected, "__abstractmethods__", None)
    if kind == expected.__name__ and finished:
        return expected
    group = registry.group_of(expected)
    found = registry.lookup(group, kind) if group and isinstance(kind, str) else None
    if isinstance(found, type) and issubclass(found, expected) and not getattr(found, "__abstractmethods__", None):
        return found
    known = registry.kinds(group) if group else {expected.__name__: expected}
    raise UnknownName(expected.__name__, str(kind), known, where=f"for {where}")


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
            raise ConfigError(f"--set takes NAME=VALUE, as in train.steps=1000, got {change!r}", subject=change)
        *parents, last = path.split(".")
        inner = data
        for depth, name in enumerate([*parents, last]):
            where = ".".join(parents[:depth]) or "the run"
            if not isinstance(inner, dict) or "kind" not in inner:
                raise ConfigError(
                    f"{path} cannot be set, because {where} has no fields of its own", fix=f"set {where}", subject=path
                )
            name = _OLD_FIELDS.get(inner["kind"], {}).get(name, name)
            if name not in inner or name == "kind":
                raise UnknownName("field", name, [key for key in inner if key != "kind"], where=f"in {where}")
            if depth < len(parents):
                inner = inner[name]
            else:
                inner[name] = literal(text)
        # Whole again after each change, so that the next may reach into what this one put there.
        value = from_json(type(value), data)
        data = to_json(value)
    return value


def literal(text: str) -> Any:
    """The value of an option that is written as JSON, or as text without quotes."""
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def differences(ours: Any, theirs: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The fields in which two configurations as JSON differ, by dotted name; what differs in kind, by its kind.

    Modules to import are left out: they decide where classes are found, not which.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.get("kind") == theirs.get("kind"):
        for key in sorted({*ours, *theirs} - {"imports"}):
            yield from differences(ours.get(key), theirs.get(key), f"{where}.{key}" if where else key)
    elif ours != theirs:
        yield where, _kind_or_value(ours), _kind_or_value(theirs)


def _kind_or_value(value: Any) -> Any:
    return value["kind"] if isinstance(value, dict) and "kind" in value else value
