"""Charts as SVG, drawn here: a page needs no other file and a picture no other program.

Colours are classes, so that a page recolours its charts in the dark. What cannot be drawn, such as a value that is not
finite or that has no logarithm where one is needed, is left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from adlm.data.shards import write_atomically
from adlm_studies.report.sections import Chart, Series

COLOURS = 7
_WIDTH, _PLOT = 640, 290  # of the picture, and the height of what is inside its axes
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 18, 14, 50
_LETTER = 7.6  # about the width of one at the size of the text, to place what follows it
_HUGE = 1e100  # what is larger, or not a number, is not drawn: sums of such may be no numbers
_FEW = 30  # points that are shown as dots on a line; more are only there to be hovered over

# Okabe and Ito's colours, which differ for every kind of colour vision, the last ones changed to be seen on the ground.
LIGHT = ("#0072B2", "#D98A00", "#009E73", "#D55E00", "#B8578D", "#3E9BD3", "#222222")
DARK = ("#56B4E9", "#E69F00", "#1FC79A", "#F0793A", "#DB95BE", "#8FB8FF", "#F0E442")
_GROUND = {
    "light": "--chart-ink:#1d2430;--chart-soft:#5b6575;--chart-grid:#e6e9ee;--chart-paper:#ffffff;",
    "dark": "--chart-ink:#e8ebf0;--chart-soft:#a3adbc;--chart-grid:#333b47;--chart-paper:#10141a;",
}


class ChartPoint(NamedTuple):
    """A point that can be drawn; `low` and `high` are `y` where there is no interval."""

    x: float
    y: float
    low: float
    high: float
    label: str


def save_svg(chart: Chart, path: Path) -> None:
    """A picture by itself: with its title and colours, on whatever ground it is shown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _drawn(chart, _style(), heading=chart.title) + "\n")


def svg(chart: Chart) -> str:
    """For a page that has the styles of `chart.css`."""
    return _drawn(chart)


def _style() -> str:
    light, dark = ("".join(f"--s{i}:{c};" for i, c in enumerate(colours)) for colours in (LIGHT, DARK))
    rules = files("adlm_studies.report").joinpath("chart.css").read_text(encoding="utf-8")
    ground = (
        f".chart{{{_GROUND['light']}{light}}}"
        f"@media (prefers-color-scheme:dark){{.chart{{{_GROUND['dark']}{dark}}}}}"
        ".chart .heading{font-size:16px;font-weight:600;fill:var(--chart-ink)}"
    )
    return f"<style>{ground}\n{rules}</style>"


def points(series: Series, *, x_log: bool = False, y_log: bool = False) -> list[ChartPoint]:
    """Those that can be drawn, in the order they came."""
    found = []
    for i, (x, y) in enumerate(zip(series.x, series.y, strict=False)):
        if not (_drawable(x, x_log) and _drawable(y, y_log)):
            continue
        low, high = (
            side[i] if i < len(side) and _drawable(side[i], y_log) else y for side in (series.low, series.high)
        )
        found.append(ChartPoint(x, y, min(low, y), max(high, y), series.labels[i] if i < len(series.labels) else ""))
    return found


def _drawable(value: float | None, log: bool) -> bool:
    return value is not None and abs(value) < _HUGE and (value > 1 / _HUGE or not log)


@dataclass(frozen=True)
class Axis:
    """A range of values, on `length` units of the picture."""

    low: float
    high: float
    log: bool
    length: float

    @classmethod
    def over(cls, values: Sequence[float], *, log: bool, length: float, room: float = 0.04) -> "Axis":
        """With a little room on both sides. All equal: as much room as lets one see where they are."""
        low, high = (min(values), max(values)) if values else (1.0, 10.0) if log else (0.0, 1.0)
        equal = high - low <= 1e-12 * max(abs(low), abs(high), 1 / _HUGE)
        if log:
            gap = (high / low) ** room if not equal else 3.0
            return cls(low / gap, high * gap, True, length)
        gap = (high - low) * room if not equal else max(abs(low), abs(high)) / 2 or 1.0
        first = 0.0 if 0 <= low <= gap and not equal else low - gap
        return cls(first, high + gap, False, length)

    def place(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.length * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round numbers within the range."""
        if self.log and self.high / self.low > 4:
            found = _powers(self.low, self.high)
            if len(found) > 1:
                return found
        return _round_steps(self.low, self.high)


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten, with a few times them in between where there are few, and not all of them where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    each = math.ceil((math.log10(high) - math.log10(low)) / 8)
    found: list[float] = []
    for times in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 6, 8)):
        values = (m * 10.0**k for k in range(first, last + 1) if k % each == 0 for m in times)
        found = [v for v in values if low <= v <= high]
        if len(found) >= 4:
            break
    return found


def _round_steps(low: float, high: float, about: int = 6) -> list[float]:
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next((m * size for m in (1, 2, 2.5, 5, 10) if m * size >= rough), 10 * size)
    first = math.ceil(low / step - 1e-9)
    values = ((first + i) * step for i in range(2 * about))
    return [v + 0.0 for v in values if v <= high + step * 1e-9]


_UNITS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))


def tick_texts(values: Sequence[float], *, log: bool = False) -> list[str]:
    """As short as tells them apart, all in the unit of the largest; on a log axis each in its own."""
    largest = max(map(abs, values), default=0.0)
    if log or largest >= 1e15 or largest < 1e-3:
        return [short(v, 3) for v in values]
    unit, size = _unit(largest)
    near = 1e-3 * (max(values) - min(values)) / size
    for positions in range(16):
        texts = [f"{v / size:.{positions}f}" for v in values]
        if all(abs(float(text) - v / size) <= near for text, v in zip(texts, values, strict=True)):
            break
    return ["0" if float(text) == 0 else _minus(text) + unit for text in texts]


def short(value: float, digits: int = 4) -> str:
    """1.5M, 340k, 0.25."""
    unit, size = _unit(abs(value))
    return _minus(f"{value / size:.{digits}g}{unit}")


def _unit(value: float) -> tuple[str, float]:
    return next(((unit, size) for unit, size in _UNITS if size <= value < 1e15), ("", 1.0))


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _drawn(chart: Chart, style: str = "", heading: str = "") -> str:
    drawn = [points(s, x_log=chart.x_log, y_log=chart.y_log) for s in chart.series]
    levels = [(name, y) for name, y in chart.levels if _drawable(y, chart.y_log)]
    keys = _keys(chart)
    first = _TOP + 28 * bool(heading)
    top = first + 22 * (1 + keys[-1].row if keys else 0) + 26 * bool(chart.y_label)
    height = top + _PLOT + _BOTTOM
    every = [p for series in drawn for p in series]
    x = Axis.over([p.x for p in every], log=chart.x_log, length=_WIDTH - _LEFT - _RIGHT)
    heights = [v for p in every for v in (p.low, p.high)] + [y for _, y in levels]
    y = Axis.over(heights, log=chart.y_log, length=_PLOT, room=0.06)
    body = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(chart.title)}</title>",
        f"<desc>{escape(_described(chart, drawn))}</desc>",
        style,
        f'<text class="heading" x="4" y="22">{escape(heading)}</text>' if heading else "",
        *(key.drawn(first) for key in keys),
        f'<text class="axis-name" x="4" y="{top - 14}">{escape(chart.y_label)}</text>' if chart.y_label else "",
        f'<g transform="translate({_LEFT} {top})">',
        *_grid(x, y),
        f'<text class="axis-name" x="{x.length / 2:g}" y="{y.length + 42:g}" text-anchor="middle">'
        f"{escape(chart.x_label)}</text>",
        *(_level(name, value, x, y) for name, value in levels),
        *(_series(i, s, p, x, y) for i, (s, p) in enumerate(zip(chart.series, drawn, strict=True))),
        "" if every else f'<text x="{x.length / 2:g}" y="{y.length / 2:g}" text-anchor="middle">nothing to draw</text>',
        "</g></svg>",
    ]
    return "\n".join(part for part in body if part)


def _described(chart: Chart, drawn: Sequence[Sequence[ChartPoint]]) -> str:
    """What the picture shows, for those who hear it."""
    ends = (f"{s.name}, {len(p)} points, last {p[-1].y:.4g}" for s, p in zip(chart.series, drawn, strict=True) if p)
    return f"{chart.y_label} over {chart.x_label}: {'; '.join(ends) or 'no points'}."


def _grid(x: Axis, y: Axis) -> list[str]:
    parts = []
    for value, text in zip(y.ticks(), tick_texts(y.ticks(), log=y.log), strict=True):
        at = y.length - y.place(value)
        parts.append(f'<line class="grid" x2="{x.length:g}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="-8" y="{at + 4.5:.1f}" text-anchor="end">{text}</text>')
    parts.append(f'<line class="base" x2="{x.length:g}" y1="{y.length:g}" y2="{y.length:g}"/>')
    for value, text in zip(x.ticks(), tick_texts(x.ticks(), log=x.log), strict=True):
        at = x.place(value)
        parts.append(f'<line class="base" x1="{at:.1f}" x2="{at:.1f}" y1="{y.length:g}" y2="{y.length + 5:g}"/>')
        parts.append(f'<text x="{at:.1f}" y="{y.length + 20:g}" text-anchor="middle">{text}</text>')
    return parts


def _level(name: str, value: float, x: Axis, y: Axis) -> str:
    at = y.length - y.place(value)
    return (
        f'<line class="level" x2="{x.length:g}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text class="level-name" x="4" y="{at - 5:.1f}">{escape(name)}</text>'
    )


def _series(number: int, series: Series, drawn: Sequence[ChartPoint], x: Axis, y: Axis) -> str:
    at = [(x.place(p.x), y.length - y.place(p.y)) for p in drawn]
    sides = [(y.length - y.place(p.low), y.length - y.place(p.high)) for p in drawn]
    spread = any(p.high > p.low for p in drawn)
    later = " later" if number >= COLOURS else ""
    parts = [f'<g class="s{number % COLOURS}">']
    if spread and series.line and len(drawn) > 2:
        there = [f"{a:.1f},{high:.1f}" for (a, _), (_, high) in zip(at, sides, strict=True)]
        back = [f"{a:.1f},{low:.1f}" for (a, _), (low, _) in zip(at, sides, strict=True)]
        parts.append(f'<polygon class="band" points="{" ".join(there + back[::-1])}"/>')
    elif spread:
        parts += [
            f'<path class="bar" d="M{a:.1f} {low:.1f}V{high:.1f}M{a - 4:.1f} {low:.1f}h8M{a - 4:.1f} {high:.1f}h8"/>'
            for (a, _), (low, high) in zip(at, sides, strict=True)
            if low != high
        ]
    if series.line and len(at) > 1:
        parts.append(f'<polyline class="line{later}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in at)}"/>')
    kind = "dot" if not series.line or len(at) <= _FEW else "dot small"
    for p, (a, b) in zip(drawn, at, strict=True):
        tip = escape(tip_text(series.name, p))
        parts.append(f'<circle class="{kind}" cx="{a:.1f}" cy="{b:.1f}" r="4"><title>{tip}</title></circle>')
        if p.label:
            parts.append(f'<text class="label" {_beside(a, b, p.label, x)}>{escape(p.label)}</text>')
    return "".join([*parts, "</g>"])


def _beside(a: float, b: float, label: str, x: Axis) -> str:
    """To the right of a point, or to the left where there is no room."""
    if a + 7 + _LETTER * len(label) > x.length + _RIGHT:
        return f'x="{a - 7:.1f}" y="{b - 7:.1f}" text-anchor="end"'
    return f'x="{a + 7:.1f}" y="{b - 7:.1f}"'


def tip_text(name: str, p: ChartPoint) -> str:
    around = f" ({p.low:.4g} to {p.high:.4g})" if p.high > p.low else ""
    return f"{name}: {p.y:.4g}{around} at {short(p.x)}"


class _Key(NamedTuple):
    """An entry of the legend, and where it stands."""

    number: int
    name: str
    line: bool
    x: float
    row: int

    def drawn(self, top: float) -> str:
        y, later = top + 22 * self.row, " later" if self.number >= COLOURS else ""
        line = (
            f'<line class="line{later}" x1="{self.x:g}" x2="{self.x + 18:g}" y1="{y}" y2="{y}"/>' if self.line else ""
        )
        return (
            f'<g class="s{self.number % COLOURS}">{line}'
            f'<circle class="dot key-dot" cx="{self.x + 9:g}" cy="{y}" r="4"/></g>'
            f'<text class="key" x="{self.x + 26:g}" y="{y + 4.5}">{escape(self.name)}</text>'
        )


def _keys(chart: Chart) -> list[_Key]:
    """Side by side, in as many rows as they take. A series without a name has none."""
    found, x, row = list[_Key](), 4.0, 0
    for i, series in enumerate(chart.series):
        wide = round(26 + _LETTER * len(series.name) + 20)
        if x > 4 and x + wide > _WIDTH:
            x, row = 4.0, row + 1
        if series.name:
            found.append(_Key(i, series.name, series.line, x, row))
            x += wide
    return found
