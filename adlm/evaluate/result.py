"""What a measurement leaves: a figure with its error, and everything one needs to know to trust or repeat it."""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adlm.errors import DataError

SCHEMA = "adlm.result.v1"


@dataclass(frozen=True)
class Figure:
    """Args:
    error: one standard error, or None where the value is exact.
    kind: "exact", "bound" (the truth is at most this) or "estimate".
    draws: Monte-Carlo draws per item, 0 where there are none.
    """

    value: float
    error: float | None = None
    kind: str = "estimate"
    unit: str = ""
    draws: int = 0

    def __str__(self) -> str:
        sign = "≤ " if self.kind == "bound" else ""
        return f"{sign}{_digits(self.value, self.error)}"


@dataclass(frozen=True)
class Result:
    """One measurement of one model on one set.

    Args:
        task: what was measured, as in "perplexity".
        model: its name and `weights`, a checksum; empty where texts were measured and no model.
        data: its name and `key`, a checksum.
        protocol: every setting that decides the figures, in words and numbers.
        figures: by name.
        items: one number for each document, by the name of a figure, for paired comparisons.
    """

    task: str
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    protocol: Mapping[str, Any]
    seed: int
    figures: Mapping[str, Figure]
    items: Mapping[str, Sequence[float]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=lambda: versions())

    def save(self, path: Path) -> None:
        """As JSON, at once or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps({"schema": SCHEMA, **_finite(asdict(self))}, indent=1) + "\n")
        new.replace(path)


def read_result(path: Path) -> Result:
    """A result that `Result.save` wrote."""
    asked = f"asked to read the result {path}"
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(asked, "no such file", "name a file that `adlm evaluate` wrote") from None
    except ValueError as error:
        raise DataError(asked, f"no JSON: {error}", "name a file that `adlm evaluate` wrote") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise DataError(asked, f"no result of this package ({SCHEMA})", "name a file that `adlm evaluate` wrote")
    content.pop("schema")
    try:
        figures = {
            name: Figure(**{**value, "value": _number(value["value"]), "error": _number(value["error"])})
            for name, value in content["figures"].items()
        }
        items = {name: [_number(value) for value in values] for name, values in content["items"].items()}
        return Result(**{**content, "figures": figures, "items": items})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        fix = "the file is damaged or of another version: measure again"
        raise DataError(asked, f"not all that a result has: {error}", fix) from error


def versions() -> dict[str, str]:
    """Of what decides figures."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("adlm", "torch", "tokenizers")}}


def markdown(results: Sequence[Result], columns: Sequence[str]) -> str:
    """A table: a row a result, a column a figure."""
    lines = [f"| model | data | {' | '.join(columns)} |", f"|{'---|' * (len(columns) + 2)}"]
    for result in results:
        cells = [str(result.figures[name]) if name in result.figures else "" for name in columns]
        lines.append(f"| {result.model.get('name', '')} | {result.data.get('name', '')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _digits(value: float, error: float | None) -> str:
    """As many digits as the error lets stand."""
    if error is None or not math.isfinite(error) or error <= 0 or not math.isfinite(value):
        return f"{value:.4g}"
    positions = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{positions}f} ± {error:.{positions}f}"


def _finite(value: Any) -> Any:
    """JSON has no infinities: they are written as words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _number(value: Any) -> Any:
    """As it was before `_finite`."""
    return float(value) if isinstance(value, str) else value
