"""Every error a user can cause, in one tree.

    AdlmError
    ├── ConfigError      an option, name or combination that is not valid
    │   ├── OutOfRange   a value outside its range
    │   └── UnknownName  a name that is not in a list; the nearest ones are offered
    ├── MissingExtra     an optional dependency is not installed
    ├── DataError        text that cannot be read, packed or trusted
    │   ├── DamagedData  prepared files that do not match their manifest
    │   └── NotUtf8      bytes that are not UTF-8
    ├── ModelError       a model folder or file that does not fit
    └── TrainingError    a run that must not continue
        ├── Interrupted  a run that was told to stop; it can be resumed
        └── JobsFailed   some of several jobs that were run side by side

A message is one sentence where that says it all. Where the user could not know what to do next, or has a real choice,
it has three parts: what cannot be done, what was found, what to do. tests/three_parts.txt lists these, with reasons.
"""

import difflib
import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any


class AdlmError(Exception):
    """An error that a user can correct.

    Args:
        asked: what is wrong, or what cannot be done; the whole message if there is nothing to add.
        found: why: what was found.
        fix: what to do.
        subject: the option, field, file or name that the error is about. Programs and tests tell errors apart by it,
            so that messages can be reworded.
    """

    def __init__(self, asked: str, found: str = "", fix: str = "", *, subject: str = "") -> None:
        parts = [asked, *(f"{label}: {text}" for label, text in (("found", found), ("to do", fix)) if text)]
        super().__init__("\n  ".join(parts))
        self.asked, self.found, self.fix, self.subject = asked, found, fix, subject

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would replay the joined message as one argument; worker processes raise these.
        return _rebuilt, (type(self), self.args, vars(self).copy())


def _rebuilt(kind: type[AdlmError], args: tuple[Any, ...], fields: dict[str, Any]) -> AdlmError:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(fields)
    return error


class ConfigError(AdlmError):
    """An option, name or combination that is not valid."""


class OutOfRange(ConfigError):
    """A value outside its range: `OutOfRange("n", 80, "at most 64")` reads "n must be at most 64, got 80"."""

    def __init__(self, name: str, value: object, rule: str) -> None:
        super().__init__(f"{name} must be {rule}, got {value!r}", subject=name)
        self.value, self.rule = value, rule


class MissingExtra(AdlmError):
    """An optional dependency is not installed."""


class DataError(AdlmError):
    """Text that cannot be read, packed or trusted."""


class DamagedData(DataError):
    """Prepared files that do not match their manifest."""


class NotUtf8(DataError):
    """Bytes of a file that are not UTF-8. Callers that can replace them name the option (`with_option`)."""

    def __init__(self, where: str, found: str, option: str = "") -> None:
        fix = "convert the file to UTF-8" + (f", or replace such bytes: {option}" if option else "")
        super().__init__(f"cannot read {where} as UTF-8", found, fix, subject=where)
        self.where = where

    def with_option(self, option: str) -> "NotUtf8":
        """The same error, with the caller's option that replaces such bytes."""
        return NotUtf8(self.where, self.found, option)


class ModelError(AdlmError):
    """A model folder or file that does not fit."""


class TrainingError(AdlmError):
    """A run that must not continue."""


class Interrupted(TrainingError):
    """Stopped by a signal. `signal` is its number."""

    def __init__(self, asked: str, found: str, fix: str, signal: int) -> None:
        super().__init__(asked, found, fix)
        self.signal = signal


class JobsFailed(TrainingError):
    """Raised if some of several jobs failed. `errors` has their errors by name, `values` the values of the others."""

    def __init__(
        self, asked: str, found: str, fix: str, *, errors: Mapping[str, AdlmError], values: Mapping[str, Any]
    ) -> None:
        super().__init__(asked, found, fix, subject=", ".join(errors))
        self.errors, self.values = errors, values


class UnknownName(ConfigError):
    """A name that is not among `known`.

    Args:
        where: what should have it, as in "in train".
        listed: the command that lists all names, if they are too many for a message.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str = "", listed: str = "") -> None:
        self.kind, self.name, self.known, self.where = kind, name, sorted(known), where
        close = difflib.get_close_matches(name, self.known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        super().__init__(
            f"there is no {kind} {name!r}" + (f" {where}" if where else ""),
            fix=hint + (f"`{listed}` lists all" if listed else f"known: {', '.join(self.known)}"),
            subject=name,
        )


def first_line(error: BaseException) -> str:
    """What an error of another library says, in one line."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def optional_module(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or name the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise MissingExtra(
            f"{purpose} needs the package {module!r}, which is not installed",
            fix=f"pip install 'adlm[{extra}]'",
            subject=extra,
        ) from error
