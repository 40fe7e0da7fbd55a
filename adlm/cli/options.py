"""How the help of a command shows its options: MODEL instead of STR, INT instead of {None}|INT, whole paragraphs."""

from collections.abc import Callable
from dataclasses import is_dataclass
from inspect import signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import docstring_parser
import tyro

NOT_WORTH_SHOWING = ("None", "False", "", "''")  # as defaults
METAVARS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH", bool: "{True,False}"}


def with_plain_help(target: Callable[..., Any]) -> Callable[..., Any]:
    """A command or a class with options of it, annotated so that tyro's help needs no knowledge of Python.

    Positional arguments are called by their names, `None` is neither offered nor shown as a default, and a description
    is one paragraph wherever its docstring breaks lines. The annotations are changed in place.
    """
    hints = get_type_hints(target, include_extras=True)
    required = {name for name, each in signature(target).parameters.items() if each.default is each.empty}
    described = {each.arg_name: each.description for each in docstring_parser.parse_from_object(target).params}
    for name in hints.keys() - {"return"}:
        hints[name] = _plain(hints[name], name, name in required, described.get(name))
    target.__annotations__ = hints
    return target


def _plain(hint: Any, name: str, required: bool, description: str | None) -> Any:
    kind, metadata = (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())
    if is_dataclass(kind):
        if any(getattr(each, "name", None) == "" for each in metadata):  # its options are those of the command
            with_plain_help(kind)  # type: ignore[arg-type]
        return hint
    shown: dict[str, Any] = {}
    if description:
        text = " ".join(description.split())
        shown["help"] = text[0].lower() + text[1:] if text.split()[0][1:].islower() else text
    if tyro.conf.UseAppendAction not in metadata:
        shown["help_behavior_hint"] = lambda label: "" if label in NOT_WORTH_SHOWING else f"(default: {label})"
        if not any(getattr(each, "metavar", None) for each in metadata):
            shown["metavar"] = _metavar(kind, name, required, tyro.conf.Positional in metadata)
    return Annotated[hint, tyro.conf.arg(**shown)]


def _metavar(kind: Any, name: str, required: bool, positional: bool) -> str | None:
    """What stands for a value in the help; None leaves it to tyro."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    values = [member for member in members if member is not NoneType]
    if len(values) == 1 and positional and values[0] in METAVARS:
        return name.upper() if required else f"[{name.upper()}]"
    if len(values) == 1 and NoneType in members:
        choices = get_args(values[0]) if get_origin(values[0]) is Literal else ()
        return "{" + ",".join(map(str, choices)) + "}" if choices else METAVARS.get(values[0])
    return None
