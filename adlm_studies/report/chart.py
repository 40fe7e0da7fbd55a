"""Charts as SVG, drawn by matplotlib and made fit for a page: no inline styles, and points that tell their figures.

Colors in the SVG are those of the light theme. A page recolors them by CSS (`palette_css`). Values that cannot be
drawn, such as one that is not finite or has no logarithm on a logarithmic axis, are left out.
"""

import io
import re
import warnings
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from adlm.errors import optional_module
from adlm.files import write_atomically
from adlm_studies.report.sections import Chart, Series

# Okabe and Ito's colors, which differ for every kind of color vision, the last ones changed to be seen on the ground.
LIGHT = ("#0072b2", "#d98a00", "#009e73", "#d55e00", "#b8578d", "#3e9bd3", "#222222")
DARK = ("#56b4e9", "#e69f00", "#1fc79a", "#f0793a", "#db95be", "#8fb8ff", "#f0e442")
_INK, _SOFT, _GRID = ("#1d2430", "#e8ebf0"), ("#5b6575", "#a3adbc"), ("#e6e9ee", "#333b47")  # light, dark
_HUGE = 1e30  # larger values are not drawn: sums of them may not be finite
_LONGEST = 60  # characters of a name
_LEGEND = 90  # characters of a row of the legend, with its lines
_FEW = 30  # points that are shown as dots on a line; more are visible only under the pointer
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"


class ChartPoint(NamedTuple):
    """A point that can be drawn; `low` and `high` are `y` if there is no interval."""

    x: float
    y: float
    low: float
    high: float
    label: str


def palette_css() -> str:
    """The rules by which a page shows the colors of its charts in its own theme."""
    pairs = [*zip(LIGHT, DARK, strict=True), _INK, _SOFT, _GRID]
    return "".join(
        f'.chart [{what}="{light}"]{{{what}:light-dark({light},{dark})}}\n'
        for light, dark in pairs
        for what in ("fill", "stroke")
    )


def save_svg(chart: Chart, path: Path) -> None:
    """Write a chart to a file of its own, with its title, readable on a light and on a dark ground."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rules = palette_css().replace("light-dark", "__")
    dark = re.sub(r"__\(\S+?,(\S+?)\)", r"\1", rules)
    write_atomically(path, svg(chart, heading=True, style=f"@media (prefers-color-scheme:dark){{{dark}}}") + "\n")


def points(series: Series, *, x_log: bool = False, y_log: bool = False) -> list[ChartPoint]:
    """The points that can be drawn, in their order."""
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
    """Whether a picture can hold the value. Tiny ones, but for 0, would make axes whose range is not a number."""
    if value is None or not abs(value) < _HUGE:
        return False
    return value > 1 / _HUGE if log else value == 0 or abs(value) > 1 / _HUGE


def svg(chart: Chart, *, heading: bool = False, style: str = "") -> str:
    """The chart as an element of a page that has `palette_css`."""
    optional_module("matplotlib", extra="plot", purpose="drawing charts")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawn = [points(series, x_log=chart.x_log, y_log=chart.y_log) for series in chart.series]
    picture = io.BytesIO()
    # Text stays text, and the same chart gives the same bytes.
    with rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": _clean(chart.title), "text.parse_math": False, "font.size": 10.5}
    ):
        figure = Figure(figsize=(8, 5), layout="constrained")
        _draw(figure.subplots(), chart, drawn)
        if heading:
            figure.suptitle(_clean(chart.title), x=0.01, ha="left", fontweight="bold", color=_INK[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about glyphs that its font does not have: those of the page do
            figure.savefig(picture, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    tips = {
        f"dot-{s}-{i}": tip_text(series.name, point)
        for s, series in enumerate(chart.series)
        for i, point in enumerate(drawn[s])
    }
    return _for_page(picture.getvalue(), chart.title, _described(chart, drawn), tips, style)


def _clean(text: str) -> str:
    """Text that XML can hold, and short enough for a picture."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _draw(panel: Any, chart: Chart, drawn: list[list[ChartPoint]]) -> None:
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.spines["bottom"].set_color(_SOFT[0])
    panel.grid(axis="y", color=_GRID[0], linewidth=1)
    panel.tick_params(which="both", colors=_SOFT[0], left=False)
    panel.set_axisbelow(True)
    panel.set_xlabel(_clean(chart.x_label), color=_INK[0])
    panel.set_ylabel(_clean(chart.y_label), color=_INK[0], loc="top")
    for axis, log in ((panel.xaxis, chart.x_log), (panel.yaxis, chart.y_log)):
        if log:
            axis._set_axes_scale("log", subs=[2, 5])
            axis.set_minor_formatter(_short)
        axis.set_major_formatter(_short)
    for s, (series, shown, color) in enumerate(zip(chart.series, drawn, cycle(LIGHT), strict=False)):
        _draw_series(panel, s, series, shown, color)
    # A logarithmic axis of one value has no range of its own, which a level needs.
    for log, limits, values in (
        (chart.x_log, panel.set_xlim, {point.x for shown in drawn for point in shown}),
        (chart.y_log, panel.set_ylim, {y for shown in drawn for point in shown for y in (point.low, point.high)}),
    ):
        if log and len(values) == 1:
            limits(min(values) / 10, max(values) * 10)
    for name, y in chart.levels:
        if _drawable(y, chart.y_log):
            panel.axhline(y, color=_SOFT[0], linewidth=1.25, linestyle=":")
            panel.annotate(
                _clean(name), (0.01, y), (0, 3), panel.get_yaxis_transform(), "offset points", color=_SOFT[0]
            )
    if widest := max((len(series.name) for series in chart.series), default=0):
        columns = max(1, min(3, _LEGEND // (widest + 6)))  # a wider legend would narrow the panel
        panel.legend(frameon=False, labelcolor=_INK[0], loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)
    if not any(drawn):
        panel.text(0.5, 0.5, "nothing to draw", transform=panel.transAxes, ha="center", color=_SOFT[0])


def _draw_series(panel: Any, number: int, series: Series, shown: list[ChartPoint], color: str) -> None:
    x, y = [point.x for point in shown], [point.y for point in shown]
    dashes = "--" if number >= len(LIGHT) else "-"
    line = series.line and len(shown) > 1
    style = {"linestyle": dashes if series.line else "none", "marker": "" if line else "o", "markeredgewidth": 0}
    panel.plot(x, y, color=color, linewidth=2.25, label=_clean(series.name) or "_", **style)
    if any(point.high > point.low for point in shown):
        if series.line and len(shown) > 2:
            low, high = [p.low for p in shown], [p.high for p in shown]
            panel.fill_between(x, low, high, color=color, alpha=0.16, linewidth=0, gid="band")
        else:
            reach = [[_below(p) for p in shown], [p.high - p.y for p in shown]]
            panel.errorbar(x, y, reach, fmt="none", color=color, alpha=0.75, capsize=3)
    visible = not series.line or len(shown) <= _FEW
    for i, point in enumerate(shown):
        panel.plot(point.x, point.y, "o", color=color, mew=0, alpha=1 if visible else 0, gid=f"dot-{number}-{i}")
        if point.label:
            panel.annotate(_clean(point.label), (point.x, point.y), (5, 5), textcoords="offset points", color=_SOFT[0])


def _below(point: ChartPoint) -> float:
    """How far the bar of a point reaches down: not to 0 by rounding, which a logarithmic axis does not have."""
    reach = point.y - point.low
    return min(reach, point.y * (1 - 1e-12)) if point.low > 0 else reach


def _described(chart: Chart, drawn: list[list[ChartPoint]]) -> str:
    """A description for screen readers."""
    ends = (f"{s.name}, {len(p)} points, last {p[-1].y:.4g}" for s, p in zip(chart.series, drawn, strict=True) if p)
    return f"{chart.y_label} over {chart.x_label}: {'; '.join(ends) or 'no points'}."


def tip_text(name: str, point: ChartPoint) -> str:
    """The tooltip of a point."""
    interval = f" ({point.low:.4g} to {point.high:.4g})" if point.high > point.low else ""
    return f"{name}: {point.y:.4g}{interval} at {_short(point.x)}"


def _short(value: float, position: int | None = None) -> str:
    """1.5M, 340k, 0.25."""
    unit, size = next(((u, s) for u, s in _UNITS if s <= abs(value) < 1e15), ("", 1.0))
    return f"{value / size:.4g}{unit}".replace("-", "−")


_UNITS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))


def _for_page(picture: bytes, title: str, description: str, tips: dict[str, str], style: str) -> str:
    """The SVG with presentation attributes in place of styles, which the policy of a page forbids."""
    ElementTree.register_namespace("", _SVG[1:-1])
    root = ElementTree.fromstring(re.sub(rb"<metadata>.*?</metadata>|<style.*?</style>", b"", picture, flags=re.DOTALL))
    for element in root.iter():
        for name, value in _declarations(element.attrib.pop("style", "")):
            element.set(name, value)
        if (link := element.attrib.pop(_LINK, None)) is not None:
            element.set("href", link)
        name = element.attrib.get("id", "")
        if name in tips:
            element.set("class", "dot")
            ElementTree.SubElement(element, f"{_SVG}title").text = tips[name]
        elif name == "band":
            element.set("class", "band")
        if element.tag == f"{_SVG}g":
            element.attrib.pop("id", None)
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    root.attrib.update({"class": "chart", "role": "img"})
    for tag, text in (("style", style), ("desc", description), ("title", title)):
        if text:
            child = ElementTree.Element(f"{_SVG}{tag}")
            child.text = text
            root.insert(0, child)
    return ElementTree.tostring(root, encoding="unicode")


def _declarations(style: str) -> Iterator[tuple[str, str]]:
    for part in style.split(";"):
        name, _, value = (each.strip() for each in part.partition(":"))
        if name == "font":
            yield "font-size", re.search(r"[\d.]+px", value)[0]  # type: ignore[index]
            yield "font-family", "system-ui, sans-serif"
            if "bold" in value:
                yield "font-weight", "bold"
        elif name and not name.startswith("-"):
            yield name, value
