"""Every error message of the package in one file, tests/messages.txt: to read the English, and to see it change.

Other tests tell errors apart by type and fields (`tests.errors.raises`), so a message can be reworded freely; then
`ADLM_UPDATE=1 python -m pytest tests/test_messages.py` writes the file again.
"""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import adlm.errors

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOT = Path(__file__).with_name("messages.txt")
KINDS = {name for name, value in vars(adlm.errors).items() if isinstance(value, type)}


def template(node: ast.expr) -> str:
    """An argument as it is written: text as it is, whatever is computed in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else template(part)
            for part in node.values
        )
    return f"{{{ast.unparse(node)}}}"


def messages(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in KINDS:
            continue
        named = [f"{word.arg}={template(word.value)}" for word in node.keywords]
        yield "\n".join([node.func.id, *(f"    {part}" for part in [*map(template, node.args), *named])])


def collected() -> str:
    found = []
    for package in ("adlm", "adlm_studies"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if lines := list(messages(path)):
                found.append("\n".join([f"# {path.relative_to(ROOT).as_posix()}", *lines]))
    return "\n\n".join(found) + "\n"


def test_the_messages_are_those_of_the_snapshot():
    found = collected()
    if os.environ.get("ADLM_UPDATE"):
        SNAPSHOT.write_text(found, encoding="utf-8")
    assert found == SNAPSHOT.read_text(encoding="utf-8"), "run again with ADLM_UPDATE=1 and read the difference"


def test_what_is_computed_shows_in_braces():
    (call,) = ast.parse('ConfigError(f"cannot read {n + 1} rows", found, "give fewer", subject="n")').body
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    assert [template(each) for each in call.value.args] == ["cannot read {n + 1} rows", "{found}", "give fewer"]
