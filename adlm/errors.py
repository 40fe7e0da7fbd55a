"""Every error a user can cause, in one tree.

Each message has three parts: what was asked, what was found, what to do.

    AdlmError
    ├── ConfigError      an option, name or combination that means nothing
    │   └── UnknownName  a name that is not in a list; the nearest ones are offered
    ├── MissingExtra     an optional dependency is not installed
    ├── DataError        text that cannot be read, packed or trusted
    │   └── DamagedData  prepared files that do not match their manifest
    ├── ModelError       a model folder or file that does not fit
    └── TrainingError    a run that must not go on
        └── Interrupted  a run that was told to stop; it can go on later
"""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class AdlmError(Exception):
    """Something a user can put right; `asked`, `found` and `fix` say how."""

    def __init__(self, asked: str, found: str, fix: str) -> None:
        super().__init__(f"{asked}\n  found: {found}\n  to do: {fix}")
        self.asked, self.found, self.fix = asked, found, fix

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        # The default would replay the joined message as one argument; worker processes raise these.
        return type(self), (self.asked, self.found, self.fix)


class ConfigError(AdlmError):
    pass


class MissingExtra(AdlmError):
    pass


class DataError(AdlmError):
    pass


class DamagedData(DataError):
    pass


class ModelError(AdlmError):
    pass


class TrainingError(AdlmError):
    pass


class Interrupted(TrainingError):
    """Stopped by a signal. `signal` is its number."""

    def __init__(self, asked: str, found: str, fix: str, signal: int) -> None:
        super().__init__(asked, found, fix)
        self.signal = signal

    def __reduce__(self) -> tuple[type, tuple[str, str, str, int]]:  # type: ignore[override]
        return type(self), (self.asked, self.found, self.fix, self.signal)


class UnknownName(ConfigError):
    """A name that is not among `known`."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        close = difflib.get_close_matches(name, self.known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        super().__init__(
            f"asked for the {kind} {name!r}",
            f"no {kind} of that name",
            f"{hint}known: {', '.join(self.known)}",
        )

    def __reduce__(self) -> tuple[type, tuple[str, str, list[str]]]:  # type: ignore[override]
        return type(self), (self.kind, self.name, self.known)


def optional_module(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise MissingExtra(
            f"{purpose} needs the package {module!r}",
            "it is not installed",
            f"pip install 'adlm[{extra}]'",
        ) from error
