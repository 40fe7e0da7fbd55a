"""Tables as HTML: figures in line by their decimal points, errors lighter, the best marked as far as it is known.

A figure whose interval overlaps that of the best one may be the best as well, so it is marked too, lightly.
"""

import math
from collections.abc import Sequence
from html import escape

from adlm_studies.report.markup import inline
from adlm_studies.report.sections import Cell, Interval, ReportTable

_FIGURE_SPACE, _POINT_SPACE = "\u2007", "\u2008"  # as wide as a digit, and as a full stop
_DIRECTIONS = {"low": ("↓", "lower is better"), "high": ("↑", "higher is better")}


def table(section: ReportTable) -> str:
    """The HTML of a table."""
    width = max([len(section.columns), *(len(row) for row in section.rows)])
    best = [section.best[i] if i < len(section.best) else "" for i in range(width)]
    columns = [[row[i] if i < len(row) else None for row in section.rows] for i in range(width)]
    numeric = [any(_is_figure(cell) for cell in column) for column in columns]
    shown = [_column(cells, kind) for cells, kind in zip(columns, best, strict=True)]
    heads = [_head(section.columns[i] if i < len(section.columns) else "", best[i], numeric[i]) for i in range(width)]
    rows = [
        "<tr>" + "".join(_cell(shown[i][r], numeric[i], first=i == 0) for i in range(width)) + "</tr>"
        for r in range(len(section.rows))
    ]
    name = escape(section.title, quote=True)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}"><table>'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _head(name: str, best: str, numeric: bool) -> str:
    arrow, meaning = _DIRECTIONS.get(best, ("", ""))
    mark = f'&nbsp;<span class="better" aria-label="{meaning}">{arrow}</span>' if arrow else ""
    return f'<th scope="col"{_number(numeric)}>{inline(name)}{mark}</th>'


def _cell(content: str, numeric: bool, *, first: bool) -> str:
    return f'<th scope="row">{content}</th>' if first else f"<td{_number(numeric)}>{content}</td>"


def _number(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _is_figure(cell: Cell) -> bool:
    return isinstance(cell, Interval) or (isinstance(cell, int | float) and not isinstance(cell, bool))


def ranks(cells: Sequence[Cell], best: str) -> list[str]:
    """For each cell "best", "near" where it may be the best as well, or ""."""
    spans = [_span(cell) for cell in cells]
    known = [span for span in spans if span is not None]
    if best not in _DIRECTIONS or len(known) < 2:
        return [""] * len(cells)
    top = min(known) if best == "low" else max(known)

    def rank(span: tuple[float, float, float] | None) -> str:
        if span is None:
            return ""
        if span[0] == top[0]:
            return "best"
        return "near" if span[1] <= top[2] and top[1] <= span[2] else ""

    return [rank(span) for span in spans]


def _span(cell: Cell) -> tuple[float, float, float] | None:
    """Value, low and high of a figure."""
    if isinstance(cell, Interval):
        low, high = (v if math.isfinite(v) else cell.value for v in (cell.low, cell.high))
        return (cell.value, low, high) if math.isfinite(cell.value) else None
    if isinstance(cell, int | float) and not isinstance(cell, bool) and math.isfinite(cell):
        return float(cell), float(cell), float(cell)
    return None


def _column(cells: Sequence[Cell], best: str) -> list[str]:
    """The cells of a column as HTML, each padded to the same positions on both sides of the point."""
    positions = max((_positions(cell) for cell in cells), default=0)
    texts = [_parts(cell, positions) for cell in cells]
    after = max((len(value.partition(".")[2]) for value, _ in texts), default=0)
    error = max((len(half) for _, half in texts), default=0)
    return [
        _figure(cell, _padded(value, after), half, error, rank) if _is_figure(cell) else _words(cell)
        for cell, (value, half), rank in zip(cells, texts, ranks(cells, best), strict=True)
    ]


def _parts(cell: Cell, positions: int) -> tuple[str, str]:
    """The figure and its error, as text; both empty for what is no figure. `positions` are what its column has."""
    if isinstance(cell, Interval):
        value, _, half = str(cell).partition(" ± ")
        return _minus(value), half
    if not _is_figure(cell):
        return "", ""
    return _minus(_float(cell, positions) if isinstance(cell, float) else f"{cell:,}"), ""


def _float(value: float, positions: int) -> str:
    """With four digits that count, or as many positions as others in its column have."""
    if not math.isfinite(value):
        return "–"
    if value and not 1e-4 <= abs(value) < 1e9:
        return f"{value:.4g}"
    return f"{value:,.{min(positions, _most_positions(value))}f}"


def _most_positions(value: float) -> int:
    return max(0, 3 - math.floor(math.log10(abs(value)))) if value else 4


def _positions(cell: Cell) -> int:
    """Decimals of a figure with four digits that count."""
    if not isinstance(cell, float) or not math.isfinite(cell) or (cell and not 1e-4 <= abs(cell) < 1e9):
        return 0
    return len(f"{cell:.{_most_positions(cell)}f}".rstrip("0").partition(".")[2])


def _minus(text: str) -> str:
    return text.replace("-", "−") if "e" not in text else text.replace("e+", "e")


def _padded(value: str, after: int) -> str:
    if "e" in value or not after:
        return escape(value)
    decimals = value.partition(".")[2]
    return escape(value) + _POINT_SPACE * ("." not in value) + _FIGURE_SPACE * (after - len(decimals))


def _figure(cell: Cell, value: str, half: str, error: int, rank: str) -> str:
    pad = _FIGURE_SPACE * (error - len(half))
    plus = f'<span class="error"> ± {escape(half)}{pad}</span>' if half else ""
    if error and not half:
        plus = f'<span class="error" aria-hidden="true">{_FIGURE_SPACE * (error + 3)}</span>'
    name = " ".join(["figure", rank]).strip()
    title = (
        f' title="{escape(describe_interval(cell), quote=True)}"'
        if isinstance(cell, Interval) and cell.high > cell.low
        else ""
    )
    shown = f"<strong>{value}</strong>" if rank == "best" else value
    return f'<span class="{name}"{title}>{shown}{plus}</span>'


def describe_interval(cell: Interval) -> str:
    """An interval in words."""
    runs = f"mean of {cell.runs} runs" if cell.runs > 1 else "one run"
    bound = ", an upper bound" if cell.bound else ""
    return f"95 % interval {cell.low:.5g} to {cell.high:.5g}, {runs}{bound}"


def _words(cell: Cell) -> str:
    return '<span class="absent">–</span>' if cell is None else inline(str(cell))
