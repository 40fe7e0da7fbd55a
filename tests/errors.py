"""Errors in tests: told apart by type and fields, never by their wording (tests/test_messages.py shows that)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from adlm.errors import AdlmError


@contextmanager
def raises(kind: type[AdlmError], /, **fields: Any) -> Iterator[pytest.ExceptionInfo[AdlmError]]:
    """`pytest.raises`, with the fields that the error must have: `raises(OutOfRange, subject="n", value=80)`."""
    with pytest.raises(kind) as info:
        yield info
    found = {name: getattr(info.value, name) for name in fields}
    assert found == fields, str(info.value)
