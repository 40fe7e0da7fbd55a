"""Commands as new processes would run them: what one registered or imported, the next does not know."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adlm import registry


@contextmanager
def fresh_registry(folder: Path) -> Iterator[None]:
    """The registry as it is at the start of a process; modules from `folder` are forgotten afterwards."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        members = {group: dict(members) for group, members in registry._MEMBERS.items()}
        patch.setattr(registry, "_MEMBERS", members)
        patch.setattr(registry, "_imported", [])
        patch.setattr(registry, "_stored", [])
        patch.setattr(sys, "path", [*sys.path])
        try:
            yield
        finally:
            for name in set(sys.modules) - before:
                if str(folder) in str(getattr(sys.modules[name], "__file__", None)):
                    del sys.modules[name]
