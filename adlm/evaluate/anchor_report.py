"""What anchors do, for people: tables and a picture from the figures of `anchor_figures`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adlm.errors import optional_module
from adlm.evaluate.anchors import IN_CORPUS, IN_ROW, MAIN, STAGES, WORDS
from adlm.evaluate.hand_over_trials import TRIALS
from adlm.evaluate.result import Figure

# Okabe and Ito's colours, which differ for every kind of colour vision.
_COLOURS = {"anchor stage": "#E69F00", "denoiser": "#0072B2"}
_LINES = {"anchor tokens": "-", "other tokens": "--"}

Figures = Mapping[str, Figure]


class AnchorTable(NamedTuple):
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _line(self.header), "|---" * len(self.header) + "|"]
        return "\n".join([*lines, *map(_line, self.rows)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def report_tables(figures: Figures, levels: Sequence[float]) -> list[AnchorTable]:
    """How well each stage predicts; what the denoiser makes of other hand-overs; which kinds are decided first."""

    def cell(level: float, kind: str, stage: str, what: str) -> str:
        name = ", ".join(filter(None, (f"{level:g}", kind, stage)))
        found = figures.get(f"{name}: {what}")
        return "" if found is None else str(found)

    def masked(level: float) -> str:
        return f"{level:.0%}"

    measures = ("accuracy", "nats", "calibration error")
    both = [
        [
            masked(level),
            kind,
            stage,
            *(cell(level, kind, stage, what) for what in measures),
            cell(level, kind, "", "agreement"),
        ]
        for level in levels
        for kind in MAIN
        for stage in STAGES
    ]
    trials = [
        [
            masked(level),
            kind,
            cell(level, kind, "denoiser", "nats"),
            *(cell(level, kind, f"denoiser told {trial}", "nats") for trial in TRIALS[1:]),
            cell(level, kind, "denoiser", "gain over unigram"),
        ]
        for level in levels
        for kind in MAIN
    ]
    kinds = [
        [kind, stage, *(cell(level, kind, stage, "probability") for level in levels)]
        for kind in (*WORDS, *IN_ROW, *IN_CORPUS)
        for stage in STAGES
        if any(cell(level, kind, stage, "probability") for level in levels)
    ]
    return [
        AnchorTable("Both stages", ("masked", "tokens", "stage", *measures, "agreement of the stages"), both),
        AnchorTable(
            "Nats of the denoiser, by what it is told", ("masked", "tokens", *TRIALS, "gain over unigram"), trials
        ),
        AnchorTable("Probability of the true token", ("tokens", "stage", *map(masked, levels)), kinds),
    ]


def draw_anchors(figures: Figures, levels: Sequence[float], path: Path, title: str = "") -> None:
    """Accuracy and nats against the noise level: both stages, anchors and other tokens."""
    optional_module("matplotlib", extra="plot", purpose="drawing what anchors do")
    from matplotlib.figure import Figure as Picture

    # A figure of its own, without pyplot: no window, no state that another part of the process could see.
    picture = Picture(figsize=(11, 4.2), dpi=150, layout="constrained")
    picture.suptitle(title, fontsize=12, x=0.01, ha="left", parse_math=False)
    for panel, what, label in zip(
        picture.subplots(1, 2), ("accuracy", "nats"), ("accuracy", "nats per token"), strict=True
    ):
        _panel(panel, figures, levels, what)
        panel.set(xlabel="fraction of tokens masked", ylabel=label)
    picture.axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path)


def _panel(panel: Any, figures: Figures, levels: Sequence[float], what: str) -> None:
    panel.grid(color="#e8e8e8", linewidth=0.8)
    panel.spines[["top", "right"]].set_visible(False)
    for kind in MAIN:
        for stage in STAGES:
            found = {level: figures.get(f"{level:g}, {kind}, {stage}: {what}") for level in sorted(levels)}
            here = {level: figure for level, figure in found.items() if figure is not None}
            panel.errorbar(
                list(here),
                [figure.value for figure in here.values()],
                yerr=[figure.error or 0.0 for figure in here.values()],
                color=_COLOURS[stage],
                linestyle=_LINES[kind],
                marker="o",
                markersize=4,
                capsize=2,
                label=f"{stage}, {kind}",
            )
