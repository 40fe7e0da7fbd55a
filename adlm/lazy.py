"""Public names that a package imports when they are first used, so that nothing waits for what it never uses."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        names: the names that each of its modules defines; none, if the module itself is public.
    """
    modules = {name: f"{package}.{module}" for module, defined in names.items() for name in defined}

    def find(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        if name in names and not names[name]:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
