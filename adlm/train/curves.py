"""The curves of a run: `curves.png`, drawn from `metrics.jsonl`.

A run of any length becomes at most a few thousand bins of consecutive steps. Of losses the mean is drawn; of gradient
norms the minimum and maximum too, since spikes are what one looks for.
"""

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlm.errors import MissingExtra, optional_module
from adlm.files import write_atomically
from adlm.train.callbacks import Callback
from adlm.train.metrics import METRICS, each_metric
from adlm.train.run_folder import writing

if TYPE_CHECKING:
    from adlm.train.trainer import Trainer

CURVES = "curves.png"
_NUMBERS = ("step", "steps", "tokens", "skipped", "loss", "bound", "grad_norm", "lr")
_BINS = 2000
_SMOOTH = 0.02  # of the run: width of the window behind the strong lines

# Okabe and Ito's colors, which differ for every kind of color vision.
_BLUE, _ORANGE, _GREEN, _RED, _GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#555555"

Array = NDArray[np.float64]


class DrawCurves(Callback):
    """Draws the curves of a run when it is finished, which takes seconds."""

    def on_end(self, trainer: "Trainer") -> None:
        try:
            draw_curves(trainer.out, trainer.run_config.name)
        except MissingExtra as error:
            trainer.log(f"no curves were drawn: {error.fix}")


class _Curve(NamedTuple):
    """One number's mean, minimum and maximum in each bin; nan if there is none."""

    mean: Array
    low: Array
    high: Array


def draw_curves(folder: Path, name: str | None = None) -> Path | None:
    """Draw the run in `folder` so far. Returns the picture's path; None before the first step.

    Args:
        name: for the title; the folder's by default.
    """
    optional_module("matplotlib", extra="plot", purpose="drawing the curves of a run")
    from matplotlib.figure import Figure

    curves, validations = _read(folder / METRICS)
    if not len(curves["step"].mean):
        return None
    # A figure of its own, without pyplot: no window, no state that another part of the process could see.
    figure = Figure(figsize=(12, 7), dpi=150, layout="constrained")
    title = name or folder.resolve().name
    figure.suptitle(title, fontsize=15, fontweight="bold", x=0.01, ha="left", parse_math=False)
    done, steps, tokens = (curves[each].high[-1] for each in ("step", "steps", "tokens"))
    progress = f"{done:,.0f} of {steps:,.0f} steps, {_short(tokens)} tokens"
    figure.text(0.99, 0.985, progress, ha="right", va="top", color=_GREY)
    _draw(figure, curves, validations)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    path = folder / CURVES
    with writing(str(path), path):
        write_atomically(path, picture.getvalue())
    return path


def _read(path: Path) -> tuple[dict[str, _Curve], list[dict[str, Any]]]:
    """Every number's curve, and the records of validations."""
    records, validations = each_metric(path), []

    def steps() -> Iterator[list[Any]]:
        for record in records:
            if "validation" in record:
                validations.append(record)
            else:
                yield [record.get(name) for name in _NUMBERS]

    with path.open("rb") as lines:
        width = 1 + sum(1 for _ in lines) // _BINS
    bins = np.array(list(_binned(steps(), width))).reshape(-1, 3, len(_NUMBERS))
    return {name: _Curve(*bins[:, :, i].T) for i, name in enumerate(_NUMBERS)}, validations


def _binned(rows: Iterable[list[Any]], width: int) -> Iterator[Array]:
    """[3, numbers]: mean, least and greatest of every `width` rows; what is not a number is left out."""
    rows = iter(rows)
    while chunk := list(itertools.islice(rows, width)):
        table = np.ma.masked_invalid(np.array(chunk, np.float64))
        yield np.stack([found.filled(np.nan) for found in (table.mean(0), table.min(0), table.max(0))])


def _smoothed(values: Array) -> Array:
    """A mean over neighbors, weighted by a Gaussian; what is missing has no weight."""
    width = max(1.0, _SMOOTH * len(values) / 2)
    reach = int(3 * width) if len(values) > 10 else 0
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    there = np.isfinite(values)
    total = np.convolve(np.where(there, values, 0.0), kernel)[reach : reach + len(values)]
    weight = np.convolve(there.astype(float), kernel)[reach : reach + len(values)]
    return np.where(there, total / np.where(weight > 0, weight, 1.0), np.nan)


def _draw(figure: Any, curves: dict[str, _Curve], validations: list[dict[str, Any]]) -> None:
    top = ["training", "validation"] if validations else ["training", "training"]
    panels = figure.subplot_mosaic([top, ["grad_norm", "lr"]], height_ratios=[5, 3], sharex=True)
    steps, tokens = curves["step"], curves["tokens"]
    ratio = tokens.mean[-1] / steps.mean[-1]
    for name, panel in panels.items():
        panel.grid(color="#e8e8e8", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.xaxis.set_major_formatter(_short)
        panel.xaxis.get_major_locator().set_params(integer=True)
        if name in ("grad_norm", "lr"):
            panel.set_xlabel("steps")
        elif ratio > 0:
            _second(panel.secondary_xaxis, "top", (lambda x: x * ratio, lambda x: x / ratio), "tokens")
    _training(panels["training"], curves)
    if validations:
        _validation(panels["validation"], validations)
    _gradient(panels["grad_norm"], curves)
    _title(panels["lr"], "Learning rate", pad=8)
    panels["lr"].plot(steps.mean, curves["lr"].mean, color=_BLUE, linewidth=2, marker=_dot(steps.mean))
    panels["lr"].yaxis.set_major_formatter(_short)
    panels["lr"].set_ylim(bottom=0)
    panels["lr"].set_xlim(0, steps.high[-1] * 1.02)


def _training(panel: Any, curves: dict[str, _Curve]) -> None:
    loss, bound, steps = curves["loss"], curves["bound"], curves["step"].mean
    if not np.isfinite(bound.mean).any():
        shown = {"loss": (loss, _BLUE)}
    elif np.allclose(loss.mean, bound.mean, equal_nan=True):
        shown = {"loss, which is the clean bound": (loss, _BLUE)}
    else:
        shown = {"loss": (loss, _BLUE), "clean bound": (bound, _ORANGE)}
    lines = [_line(panel, steps, curve, _smoothed(curve.mean), color, label) for label, (curve, color) in shown.items()]
    _title(panel, "Training", pad=30)
    panel.set_ylabel("nats per token")
    _focus(panel, steps, lines, loss.mean[0])
    panel.legend(frameon=False, loc="upper right")


def _validation(panel: Any, validations: list[dict[str, Any]]) -> None:
    steps = np.array([record["step"] for record in validations], np.float64)
    found = [record["validation"] for record in validations]
    nats = np.array([each["nats"]["mean"] for each in found], np.float64)
    errors = np.array([each["nats"]["error"] for each in found], np.float64)
    panel.errorbar(steps, nats, np.nan_to_num(errors), color=_GREEN, linewidth=2, marker="o", markersize=5, capsize=3)
    best = [i for i, each in enumerate(found) if each["best"]]
    if best:
        i = best[-1]
        error = f" ± {errors[i]:.3f}" if np.isfinite(errors[i]) else ""
        label = f"best: {nats[i]:.3f}{error} at step {steps[i]:,.0f}"
        style = {"color": _RED, "markeredgecolor": "white", "linestyle": "none", "zorder": 5}
        panel.plot(steps[i], nats[i], marker="*", markersize=20, label=label, **style)
        panel.legend(frameon=False)
    _title(panel, "Validation: clean bound on held-out text", pad=30)
    panel.set_ylabel("nats per token")
    _focus(panel, steps, [nats - np.nan_to_num(errors), nats + np.nan_to_num(errors)], nats[0])
    if np.nanmax(nats, initial=0) < 50:  # beyond, a perplexity says nothing
        _second(panel.secondary_yaxis, "right", (np.exp, lambda y: np.log(np.maximum(y, 1e-9))), "perplexity")


def _gradient(panel: Any, curves: dict[str, _Curve]) -> None:
    steps, skipped = curves["step"].mean, curves["skipped"].high
    gradient = _Curve(*(np.where(values > 0, values, np.nan) for values in curves["grad_norm"]))  # 0 has no logarithm
    panel.fill_between(steps, gradient.low, gradient.high, color=_GREEN, alpha=0.25, linewidth=0)
    # Smoothed as it is drawn, in logarithms: a spike does not lift its neighborhood.
    _line(panel, steps, gradient, np.exp(_smoothed(np.log(gradient.mean))), _GREEN, "")
    panel.set_yscale("log", subs=[2, 5])
    panel.yaxis.set_major_formatter(_short)
    panel.yaxis.set_minor_formatter(_short)
    _title(panel, "Gradient norm before clipping", pad=8)
    missed = np.flatnonzero(np.diff(skipped, prepend=0) > 0)
    if len(missed):
        style = {"color": _RED, "linestyle": "none", "clip_on": False, "transform": panel.get_xaxis_transform()}
        count = f"{skipped[-1]:,.0f} {'step' if skipped[-1] == 1 else 'steps'} skipped: not finite"
        panel.plot(steps[missed], np.zeros(len(missed)), marker="x", markersize=7, label=count, **style)
        panel.legend(frameon=False, loc="upper right")


def _line(panel: Any, steps: Array, curve: _Curve, smooth: Array, color: str, label: str) -> Array:
    """Faint: every bin. Strong: smoothed; returned."""
    panel.plot(steps, curve.mean, color=color, alpha=0.3, linewidth=0.7)
    there = smooth[np.isfinite(smooth)]
    label = f"{label}: {there[-1]:.3f}" if label and len(there) else label
    panel.plot(steps, smooth, color=color, linewidth=2, marker=_dot(steps), label=label, zorder=3)
    return smooth


def _dot(steps: Array) -> str:
    """A mark, where there are too few points for a line to show them."""
    return "o" if len(steps) < 10 else ""


def _focus(panel: Any, steps: Array, lines: list[Array], start: float) -> None:
    """Let the panel show what has happened since the first tenth of the run, and say where it came from."""
    later = np.stack(lines)[:, steps >= steps[-1] / 10]
    if not np.isfinite(later).any():
        return
    low, high = np.nanmin(later), np.nanmax(later)
    room = 0.12 * (high - low)
    if start > high + 2 * room > high:
        panel.set_ylim(low - 2 * room, high + room)
        panel.annotate(f"↑ from {start:.2f}", (0.13, 0.98), xycoords="axes fraction", va="top", color=_GREY)


def _title(panel: Any, text: str, pad: float) -> None:
    panel.set_title(text, loc="left", fontweight="bold", fontsize=11.5, y=1.0, pad=pad)


def _second(make: Callable[..., Any], side: str, functions: tuple[Any, Any], label: str) -> None:
    """A second scale for the same lines."""
    scale = make(side, functions=functions)
    if side == "top":
        scale.xaxis.set_major_formatter(_short)
        scale.set_xlabel(label, color=_GREY, loc="right")
    else:
        scale.yaxis.set_major_formatter(_short)
        scale.set_ylabel(label, color=_GREY)
    scale.tick_params(colors=_GREY)
    scale.spines[side].set_visible(False)


def _short(value: float, position: int | None = None) -> str:
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
