"""Errors in three parts (what cannot be done, found, to do) are few, and tests/three_parts.txt says why each is one.

All others are one sentence, or a sentence and what to do. A new error in three parts belongs under the reason that it
has in common with others there; if none fits, it is likely that one sentence does.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.test_messages import KINDS, ROOT, template

REASONS = Path(__file__).with_name("three_parts.txt")
# They take other arguments, and have three parts or two by themselves: adlm/errors.py.
OTHERS = {"OutOfRange", "UnknownName", "NotUtf8"}


def parts_of(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(word.value for word in call.keywords if word.arg in ("found", "fix"))]


def three_parts(node: ast.AST, function: str = "") -> Iterator[str]:
    """Each as "FUNCTION: the first of its parts that begins with a word"."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in KINDS - OTHERS:
            parts = parts_of(child)
            if len(parts) > 2 or any(isinstance(part, ast.Starred) for part in parts):
                texts = [text for part in parts if not (text := template(part)).startswith("{")]
                yield f"{function}: {texts[0]}" if texts else function
        named = isinstance(child, ast.FunctionDef)
        yield from three_parts(child, child.name if named else function)


def test_each_error_in_three_parts_has_a_reason_and_a_reason_an_error():
    found = [
        f"{path.relative_to(ROOT).as_posix()} {each}"
        for package in ("adlm", "adlm_studies")
        for path in sorted((ROOT / package).rglob("*.py"))
        for each in three_parts(ast.parse(path.read_text(encoding="utf-8")))
    ]
    lines = REASONS.read_text(encoding="utf-8").splitlines()
    listed = [line for line in lines if line.startswith("adlm")]
    assert Counter(found) == Counter(listed)
    assert len(listed) < 120


def test_two_parts_are_not_three():
    tree = ast.parse('def f():\n    ConfigError("a", fix="b")\n    ConfigError("a", found, "b")\n    ModelError(a, *b)')
    assert list(three_parts(tree)) == ["f: a", "f"]
