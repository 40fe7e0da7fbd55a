"""Quality against cost: what texts are worth at each sampler and number of steps, as figures and as a picture."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlm.errors import ConfigError, optional_module
from adlm.evaluate.result import Figure

# Okabe and Ito's colours, which differ for every kind of colour vision.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
_GREY = "#555555"
_MARKS = "osD^vP*"
_PANELS = {
    "perplexity": "Generative perplexity (lower is likelier)",
    "entropy": "Entropy of a text's tokens, nats",
    "mauve": "MAUVE (higher is closer to the data)",
}


@dataclass(frozen=True)
class FrontierPoint:
    """The figures of one setting. AR models have no steps."""

    sampler: str
    steps: int | None
    figures: Mapping[str, Figure]

    @property
    def name(self) -> str:
        return self.sampler if self.steps is None else f"{self.sampler} {self.steps}"


def steps_of(text: str) -> tuple[int, ...]:
    """As numbers: 16..128 is 16, 32, 64, 128, and 16,100 is just these."""
    asked = f"asked for the steps {text!r}"
    fix = "write as in 16..1024, which doubles, or 16,64,256"
    try:
        if ".." in text:
            first, last = (int(part) for part in text.split(".."))
            found = [first * 2**i for i in range(max(0, (last // max(first, 1)).bit_length()))]
            if found and found[-1] < last:
                found.append(last)
        else:
            found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(asked, "no whole numbers", fix) from None
    if not found or min(found) < 1:
        raise ConfigError(asked, "no number of steps, or one below 1", fix)
    return tuple(dict.fromkeys(found))


def draw_frontier(
    points: Sequence[FrontierPoint], data: Mapping[str, Figure], stem: Path, *, title: str, note: str = ""
) -> tuple[Path, Path]:
    """The points as lines, a panel for each figure they have, over tokens per second. Returns the paths of svg and png.

    Args:
        data: figures of real texts, drawn as level lines.
        stem: the path of the pictures, without their endings.
        note: a line below: the protocol.
    """
    optional_module("matplotlib", extra="eval", purpose="drawing the frontier")
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    shown = [name for name in _PANELS if any(name in point.figures for point in points)]
    # Text stays text in the svg, and the same points give the same bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "adlm"}):
        canvas = Canvas(figsize=(5 * len(shown), 4.6), dpi=150, layout="constrained")
        canvas.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left", parse_math=False)
        panels = canvas.subplots(1, len(shown), squeeze=False)[0]
        for name, panel in zip(shown, panels, strict=True):
            _draw(panel, name, points, data.get(name))
        handles, labels = panels[0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=8, frameon=False, title=note or None)
        stem.parent.mkdir(parents=True, exist_ok=True)
        paths = (_beside(stem, ".svg"), _beside(stem, ".png"))
        for path in paths:
            picture = io.BytesIO()
            canvas.savefig(picture, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
            path.write_bytes(picture.getvalue())
    return paths


def _draw(panel: Any, name: str, points: Sequence[FrontierPoint], data: Figure | None) -> None:
    panel.set_title(_PANELS[name], loc="left", fontsize=10.5)
    panel.set_xlabel("tokens per second")
    panel.set_xscale("log", subs=[2, 5])
    if name == "perplexity":
        panel.set_yscale("log", subs=[2, 5])
    for axis in (panel.xaxis, *([panel.yaxis] if name == "perplexity" else [])):
        axis.set_major_formatter(_plain)
        axis.set_minor_formatter(_plain)
    panel.grid(color="#e8e8e8", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    for number, sampler in enumerate(dict.fromkeys(point.sampler for point in points)):
        there = [point for point in points if point.sampler == sampler and name in point.figures]
        x, y = (_values(there, each) for each in ("tokens_a_second", name))
        errors = [point.figures[name].error or 0.0 for point in there]
        style = {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKS[number % len(_MARKS)], "capsize": 3}
        panel.errorbar(x, y, [e if math.isfinite(e) else 0.0 for e in errors], label=sampler, **style)
        for point, a, b in zip(there, x, y, strict=True):
            if point.steps is not None:
                panel.annotate(str(point.steps), (a, b), (4, 4), textcoords="offset points", fontsize=7, color=_GREY)
    if data is not None and math.isfinite(data.value):
        panel.axhline(data.value, color=_GREY, linestyle="--", linewidth=1.2, label="the data")


def _values(points: Sequence[FrontierPoint], name: str) -> list[float]:
    return [point.figures[name].value for point in points]


def _beside(stem: Path, ending: str) -> Path:
    return stem.with_name(stem.name + ending)


def _plain(value: float, position: int | None = None) -> str:
    return f"{value:,.4g}"
