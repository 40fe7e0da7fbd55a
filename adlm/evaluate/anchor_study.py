"""What the anchors of a two-stage model do: how well each stage predicts, and what is handed to the denoiser.

The denoiser also predicts from changed anchors (`anchor_trials.py`): if its nats stay the same when anchors tell only
how frequent tokens are, the anchors carry nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adlm.anchors import AnchorRule, RareInSequence
from adlm.config import from_json, to_json
from adlm.data.source import Source
from adlm.errors import optional_module
from adlm.evaluate.anchor_sums import (
    BINS,
    IN_CORPUS,
    IN_ROW,
    KINDS,
    LEVELS,
    MAIN,
    STAGES,
    WORDS,
    AnchorNumbers,
    Array,
    Column,
    Types,
    check_anchored,
)
from adlm.evaluate.anchor_trials import TRIALS
from adlm.evaluate.documents import open_held_out, packed_rows
from adlm.evaluate.measurement import ModelLike, Progress, check_counts, measuring, opened
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.statistics import calibration_error, jackknife, jackknife_ratio

# Okabe and Ito's colors, which differ for every kind of color vision.
_COLORS = {"anchor stage": "#E69F00", "denoiser": "#0072B2"}
_LINES = {"anchor tokens": "-", "other tokens": "--"}

Figures = Mapping[str, Figure]


def anchors(
    model: ModelLike,
    data: str | Path | Source,
    *,
    split: str | None = None,
    folder: str | Path | None = None,
    field: str | None = None,
    limit: int = 256,
    levels: Sequence[float] = LEVELS,
    batch: int = 32,
    seed: int = 0,
    out: str | Path | None = None,
    device: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Measure accuracy, nats and calibration of both stages by noise level, and what the anchors tell the denoiser.

    `anchor_tables`, `anchor_markdown` and `draw_anchors` show the result.

    Args:
        model: an anchored model, its folder, or its name on the Hugging Face Hub.
        data, split, folder, field: as for `perplexity`.
        limit: measure on this many rows only, from the first.
        levels: fractions of the tokens that are masked.
        batch: rows that a process measures at a time.
        out: write the result to this file. Partial results are kept beside it, and a second call resumes.
    """
    check_counts(limit=limit, batch=batch)
    with measuring(model, out, device, progress) as work:
        read, named = opened(model, work.context, revision)
        check_anchored(read.network)
        source, split = open_held_out(data, split, folder=folder, field=field)
        table = packed_rows(source, split, read.tokenizer, read.config.packing, limit=limit)
        rule = trained_rule(read.config.run)
        numbers = AnchorNumbers(read.network, table, Types.of(read.tokenizer, table), rule, levels=levels, seed=seed)
        about = {
            "anchors": to_json(rule),
            "levels": list(levels),
            "masking": "a fraction of each row's tokens, exact in number, with padding if it is predicted",
            "counted": "masked tokens of the text; not padding",
            "hand-over": to_json(numbers.trials.kind),
            "trials": numbers.trials.words,
            "errors": "jackknife over rows",
            "frequencies": "of the rows measured",
        }
        made_of = {"model": named, "data": table.key, "protocol": about, "seed": seed}
        found = work.each_of("anchors", len(table), numbers, width=numbers.width, batch=batch, made_of=made_of)
        about["reliability"] = {
            f"{kind}, {stage}": reliability(found, numbers.columns, kind, stage) for kind in MAIN for stage in STAGES
        }
        facts = {"name": source.name, "split": split, "key": table.key, "rows": len(table)}
        figures = anchor_figures(found, numbers.columns)
        return work.finish(Result("anchors", named, facts, about, seed, figures, _items(found, numbers.columns)))


def trained_rule(run: Mapping[str, Any] | None) -> AnchorRule:
    """The rule that a model was trained with, or the paper's."""
    objective = (run or {}).get("objective")
    if not isinstance(objective, dict) or "rule" not in objective:
        return RareInSequence()
    return from_json(AnchorRule, objective["rule"], where="config.run.objective.rule")  # type: ignore[type-abstract]


def _items(found: Array, columns: Mapping[Column, int]) -> dict[str, list[float]]:
    """For paired comparisons: the number of a row's masked tokens, all levels together, and their nats."""
    names = {
        "tokens": ("", "count"),
        "nats of the anchor stage": ("anchor stage", "nats"),
        "nats of the denoiser": ("denoiser", "nats"),
    }
    return {
        name: np.asarray(found)[
            :, [i for (_, kind, *what), i in columns.items() if kind in MAIN and tuple(what) == wanted]
        ]
        .sum(1)
        .tolist()
        for name, wanted in names.items()
    }


def anchor_figures(table: Array, columns: Mapping[Column, int]) -> dict[str, Figure]:
    """Figures from the sums of rows, named "LEVEL, KIND, STAGE: WHAT". Kinds that do not occur at a level are left out.

    `gain over unigram` is by how much the denoiser's nats rise if the anchors tell it only how frequent tokens are.
    """
    figures: dict[str, Figure] = {}

    def add(level: float, kind: str, stage: str, what: str, found: tuple[float, float], unit: str = "") -> None:
        name = ", ".join(filter(None, (f"{level:g}", kind, stage)))
        figures[f"{name}: {what}"] = Figure(*found, unit=unit)

    def of(*names: Column) -> Array:
        return table[:, [columns[name] for name in names]]

    for level in dict.fromkeys(name[0] for name in columns):
        for kind in KINDS:
            count: Column = (level, kind, "", "count")
            if not of(count).sum():
                continue
            for stage in STAGES:
                add(
                    level,
                    kind,
                    stage,
                    "nats",
                    jackknife_ratio(of((level, kind, stage, "nats"), count)),
                    "nats per token",
                )
                add(level, kind, stage, "accuracy", jackknife_ratio(of((level, kind, stage, "correct"), count)))
                add(level, kind, stage, "probability", jackknife_ratio(of((level, kind, stage, "probability"), count)))
            if kind not in MAIN:
                continue
            add(level, kind, "", "agreement", jackknife_ratio(of((level, kind, "", "agree"), count)))
            for stage in STAGES:
                bins = [
                    (level, kind, stage, f"bin {i} {what}") for what in ("confidence", "correct") for i in range(BINS)
                ]
                add(level, kind, stage, "calibration error", jackknife(of(*bins, count), calibration_error))
            for trial in TRIALS[1:]:
                nats = jackknife_ratio(of((level, kind, trial, "nats"), count))
                add(level, kind, f"denoiser told {trial}", "nats", nats, "nats per token")
            gain = of((level, kind, "unigram", "nats"), (level, kind, "denoiser", "nats"), count)
            found = jackknife(gain, lambda sums: (sums[..., 0] - sums[..., 1]) / sums[..., 2])
            add(level, kind, "denoiser", "gain over unigram", found, "nats per token")
    return figures


def reliability(table: Array, columns: Mapping[Column, int], kind: str, stage: str) -> list[tuple[float, float, int]]:
    """Mean confidence, accuracy and tokens of each bin of confidence that is not empty, over all levels."""
    found = []
    for i in range(BINS):
        count, confidence, correct = (
            sum(
                table[:, position].sum()
                for name, position in columns.items()
                if name[1:] == (kind, stage, f"bin {i} {what}")
            )
            for what in ("count", "confidence", "correct")
        )
        if count:
            found.append((float(confidence / count), float(correct / count), int(count)))
    return found


class AnchorTable(NamedTuple):
    """A table of figures, as text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [f"**{self.title}**", "", _line(self.header), "|---" * len(self.header) + "|"]
        return "\n".join([*lines, *map(_line, self.rows)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def anchor_markdown(result: Result) -> str:
    """The page of an anchor study: what was measured, and its tables."""
    title = f"{result.model['name']} on {result.data['name']} ({result.data['split']})"
    lines = "\n".join(f"- {line}" for line in anchor_lines(result))
    tables = anchor_tables(result.figures, result.protocol["levels"])
    return "\n\n".join([f"# Anchors of {title}", lines, *(table.markdown() for table in tables)]) + "\n"


def anchor_lines(result: Result) -> list[str]:
    """The findings of an anchor study, in words."""
    told = [f"told {trial}: {words}" for trial, words in result.protocol["trials"].items()]
    return [f"{result.data['rows']:,} rows; ± one standard error, by a jackknife over rows", *told]


def anchor_tables(figures: Figures, levels: Sequence[float]) -> list[AnchorTable]:
    """The tables of an anchor study: accuracy of each stage, the denoiser's nats by hand-over, and kinds of word."""

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
            "Nats of the denoiser, by what it is handed", ("masked", "tokens", *TRIALS, "gain over unigram"), trials
        ),
        AnchorTable("Probability of the true token", ("tokens", "stage", *map(masked, levels)), kinds),
    ]


def draw_anchors(figures: Figures, levels: Sequence[float], path: Path, title: str = "") -> None:
    """Draw accuracy and nats over the noise level: both stages, anchors and other tokens."""
    optional_module("matplotlib", extra="plot", purpose="drawing what anchors do")
    from matplotlib.figure import Figure as Picture

    # Without pyplot: no window, and no state that other parts of the process could see.
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
                color=_COLORS[stage],
                linestyle=_LINES[kind],
                marker="o",
                markersize=4,
                capsize=2,
                label=f"{stage}, {kind}",
            )
