"""The result of an evaluation: figures with their errors, and what is needed to trust, compare and repeat them."""

import json
import math
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adlm.errors import DataError
from adlm.files import write_atomically

SCHEMA = "adlm.result.v1"


@dataclass(frozen=True)
class Figure:
    """A number with its error.

    Args:
        error: one standard error, or None if the value is exact.
        kind: "exact", "bound" (the truth is at most this) or "estimate".
        draws: Monte-Carlo draws per item, 0 if there are none.
        interval: the ends of a 95% interval, for figures whose error is far from symmetric.
    """

    value: float
    error: float | None = None
    kind: str = "estimate"
    unit: str = ""
    draws: int = 0
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        if self.interval is not None:
            width = self.interval[1] - self.interval[0]
            shown = [_digits(each, width).split(" ")[0] for each in (self.value, *self.interval)]
            return f"{shown[0]} [{shown[1]}, {shown[2]}]"
        sign = "≤ " if self.kind == "bound" else ""
        return f"{sign}{_digits(self.value, self.error)}"


@dataclass(frozen=True)
class Result:
    """A measurement of one model on one data set. `print(result)` shows its figures.

    Args:
        task: what was measured, as in "perplexity".
        model: its name and `weights`, a checksum; empty if texts were measured and no model.
        data: its name and `key`, a checksum.
        protocol: every setting that decides the figures, in words and numbers.
        figures: by name.
        items: one number per document, row or text, by name, for paired comparisons.
        notes: what a reader of the figures should know: too few texts, a bound beside an exact value.
    """

    task: str
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    protocol: Mapping[str, Any]
    seed: int
    figures: Mapping[str, Figure]
    items: Mapping[str, Sequence[float]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        lines = [f"{self.task}: {self.model.get('name', '')} on {self.data.get('name', '')}"]
        lines += [f"  {name}: {figure} {figure.unit}".rstrip() for name, figure in self.figures.items()]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def save(self, path: Path) -> None:
        """Write the result as JSON. An interrupted save leaves the old file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"schema": SCHEMA, **_finite(asdict(self))}, indent=1) + "\n")


def read_result(path: str | Path) -> Result:
    """Read a result that `Result.save` wrote."""
    path = Path(path)
    asked = f"cannot read the result {path}"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        found = "no such file" if isinstance(error, FileNotFoundError) else f"not JSON: {error}"
        raise DataError(f"{asked}: {found}", subject=str(path)) from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise DataError(f"{asked}: `adlm evaluate` did not write it (no schema {SCHEMA})", subject=str(path))
    content.pop("schema")
    try:
        figures = {_new_name(name): _figure(value) for name, value in content["figures"].items()}
        items = {name: [_number(value) for value in values] for name, values in content["items"].items()}
        notes = tuple(content.get("notes", ()))
        return Result(**{**content, "figures": figures, "items": items, "notes": notes})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        fix = "the file is damaged or of another version: measure again"
        raise DataError(f"{asked}: a field is missing or wrong: {error}; {fix}", subject=str(path)) from error


def _figure(stored: Mapping[str, Any]) -> Figure:
    interval = stored.get("interval")
    values = {"value": _number(stored["value"]), "error": _number(stored["error"])}
    return Figure(**{**stored, **values, "interval": None if interval is None else tuple(map(_number, interval))})


def _new_name(name: str) -> str:
    """The name of a figure, as version 0.1 wrote it, in today's words."""
    return re.sub(r"(bits|tokens|nats)_a_(byte|character|second|token)", r"\1_per_\2", name)


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that decide figures."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("adlm", "torch", "tokenizers")}}


def markdown(results: Sequence[Result], columns: Sequence[str]) -> str:
    """A Markdown table with one row per result and one column per figure."""
    lines = [f"| model | data | {' | '.join(columns)} |", f"|{'---|' * (len(columns) + 2)}"]
    for result in results:
        cells = [str(result.figures[name]) if name in result.figures else "" for name in columns]
        lines.append(f"| {result.model.get('name', '')} | {result.data.get('name', '')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _digits(value: float, error: float | None) -> str:
    """As many digits as the error justifies."""
    if error is None or not math.isfinite(error) or error <= 0 or not math.isfinite(value):
        return f"{value:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _finite(value: Any) -> Any:
    """JSON has no infinities: they are written as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _number(value: Any) -> Any:
    """The inverse of `_finite`."""
    return float(value) if isinstance(value, str) else value
