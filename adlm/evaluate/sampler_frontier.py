"""Quality against cost: the figures of texts at each sampler and number of steps, and a picture of them."""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlm.config import to_json
from adlm.data.source import Source
from adlm.errors import ConfigError, optional_module
from adlm.evaluate.generated_text import open_bench, sampled, samples_file, speed
from adlm.evaluate.judge import Judge
from adlm.evaluate.measurement import ModelLike, Progress, check_counts, measuring, opened
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.text_figures import figures

# Okabe and Ito's colors, which differ for every kind of color vision.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
_GREY = "#555555"
_MARKS = "osD^vP*"
_PANELS = {
    "perplexity": "Generative perplexity (lower is likelier)",
    "entropy": "Entropy of a text's tokens, nats",
    "mauve": "MAUVE (higher is closer to the data)",
}


@dataclass(frozen=True)
class FrontierPoint:
    """The figures of one sampler at one number of steps. AR models have no steps."""

    sampler: str
    steps: int | None
    figures: Mapping[str, Figure]

    @property
    def name(self) -> str:
        return self.sampler if self.steps is None else f"{self.sampler} {self.steps}"


def frontier(
    model: ModelLike,
    *,
    steps: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024),
    samplers: Sequence[str] = ("ancestral", "remdm-loop", "confidence"),
    ar: ModelLike | None = None,
    references: str | Path | Source | None = None,
    split: str | None = None,
    folder: str | Path | None = None,
    field: str | None = None,
    n: int = 1000,
    judge: Judge | str | None = None,
    length: int | None = None,
    begin: bool = False,
    mauve: bool = True,
    clusters: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    device: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
    **options: object,
) -> Result:
    """Measure generative perplexity, entropy, MAUVE and speed of a masked model over samplers and steps.

    Figures are named "SAMPLER STEPS FIGURE"; `frontier_points` gives them by point. Speeds are those of this machine,
    with whatever else runs on it.

    Args:
        model: a masked model, its folder, or its name on the Hugging Face Hub.
        samplers: by name; each gets every number of steps.
        ar: a left-to-right model for comparison.
        n: texts per point, and references.
        options: for all samplers, that of the AR model too, as in top_p=0.9.
        references, split, folder, field, judge, length, begin, mauve, clusters, seed, out: as for `generation`.
    """
    check_counts(n=n, length=length, steps=min(steps, default=1))
    if not samplers or not steps:
        missing = "steps" if samplers else "samplers"
        raise ConfigError(f"a frontier needs {missing}", subject=missing)
    with measuring(model, out, device, progress) as work:
        writer, named = opened(model, work.context, revision)
        # All settings are made before anything is written, so that a wrong one shows at once.
        plan = [
            (f"{name} {number}", writer, named, writer.sampler(name, **{**options, "steps": number}))
            for name in samplers
            for number in steps
        ]
        other = None
        if ar is not None:
            left, other = opened(ar, work.context)
            plan.append(("AR", left, other, left.sampler(None, **options)))
        bench = open_bench(
            work, judge, references, split, folder, field, length=length, begin=begin, mauve=mauve, seed=seed
        )
        bench.check(n, clusters)
        real = bench.references(n)
        about: dict[str, Any] = {**bench.judge.protocol, "texts": n, "samplers": {}, "ar": other}
        own = {} if real is None else figures(real)
        found = {f"references {name}": figure for name, figure in own.items()}
        items: dict[str, list[float]] = {}
        for label, each, subject, sampler in plan:
            path = samples_file(work.out, *label.split())
            samples = sampled(work, each, sampler, n, seed, subject["weights"], label, path)
            judged = bench.judged(samples.texts, label)
            measured, how = bench.measured(judged, real, clusters)
            measured["tokens_per_second"] = speed(each, samples)
            found |= {f"{label} {name}": figure for name, figure in measured.items()}
            about["samplers"] |= {label: to_json(sampler)}
            about |= how
            items |= {f"nats {label}": judged.nats.tolist(), f"tokens {label}": judged.tokens.tolist()}
        notes = bench.notes(n) if bench.with_mauve else []
        return work.finish(Result("frontier", named, bench.data, about, seed, found, items, notes=notes))


def frontier_points(result: Result) -> list[FrontierPoint]:
    """The points of a frontier, in the order in which they were measured."""
    return list(_points(result))


def _points(result: Result) -> Iterator[FrontierPoint]:
    for label in result.protocol["samplers"]:
        name, _, number = label.partition(" ")
        yield FrontierPoint(name, int(number) if number else None, figures_of(result, label))


def figures_of(result: Result, label: str) -> dict[str, Figure]:
    """The figures whose names begin with a label, without it."""
    start = f"{label} "
    return {name.removeprefix(start): each for name, each in result.figures.items() if name.startswith(start)}


def draw_frontier(
    points: Sequence[FrontierPoint], data: Mapping[str, Figure], stem: Path, *, title: str, note: str = ""
) -> tuple[Path, Path]:
    """Draw the points over tokens per second, one panel per figure. Returns the paths of the svg and the png.

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
        x, y = (_values(there, each) for each in ("tokens_per_second", name))
        errors = _errors([point.figures[name] for point in there])
        style = {"color": _COLORS[number % len(_COLORS)], "marker": _MARKS[number % len(_MARKS)], "capsize": 3}
        panel.errorbar(x, y, errors, label=sampler, **style)
        for point, a, b in zip(there, x, y, strict=True):
            if point.steps is not None:
                panel.annotate(str(point.steps), (a, b), (4, 4), textcoords="offset points", fontsize=7, color=_GREY)
    if data is not None and math.isfinite(data.value):
        panel.axhline(data.value, color=_GREY, linestyle="--", linewidth=1.2, label="the data")


def _errors(figures: Sequence[Figure]) -> list[list[float]]:
    """[2, points]: how far the error bars reach down and up: intervals, or one standard error."""
    ends = []
    for figure in figures:
        error = figure.error if figure.error is not None and math.isfinite(figure.error) else 0.0
        low, high = figure.interval or (figure.value - error, figure.value + error)
        ends.append((figure.value - low, high - figure.value))
    return [list(side) for side in zip(*ends, strict=True)]


def _values(points: Sequence[FrontierPoint], name: str) -> list[float]:
    return [point.figures[name].value for point in points]


def _beside(stem: Path, ending: str) -> Path:
    return stem.with_name(stem.name + ending)


def _plain(value: float, position: int | None = None) -> str:
    return f"{value:,.4g}"
