"""`adlm evaluate anchors`: what the anchors of a two-stage model do."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm import evaluate
from adlm.cli.evaluate.common import RUN, Run, bars, names, say
from adlm.cli.progress import console
from adlm.distributed import joined
from adlm.errors import ConfigError, MissingExtra
from adlm.evaluate import Result
from adlm.evaluate.anchor_study import anchor_lines, anchor_markdown, anchor_tables, draw_anchors
from adlm.evaluate.anchor_sums import LEVELS


def command(
    model: Annotated[str, tyro.conf.Positional],
    data: Annotated[str, tyro.conf.Positional],
    /,
    *,
    split: str | None = None,
    folder: Path | None = None,
    field: str | None = None,
    limit: int = 256,
    levels: str = ",".join(map(str, LEVELS)),
    batch: int = 32,
    plot: Path | None = None,
    run: Run = RUN,
) -> None:
    """Measure how well both stages of a two-stage model predict, and what the anchors tell the denoiser.

    Tables in Markdown and a chart are written next to the result.

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub.
        data: a name of the catalog (`adlm prepare --list`), hub:OWNER/NAME[:CONFIG], or a file, folder or glob.
        split: the split to score, as in `adlm evaluate perplexity`.
        folder: where the files of a catalog name are; without it they come from the Hub.
        field: the field or column that holds the text.
        limit: measure on this many rows only.
        levels: fractions of the tokens that are masked, separated by commas.
        batch: rows that a process computes at a time.
        plot: the chart, .svg or .png; by default next to the result.
    """
    given = run.given("anchors", model, data, *([split] if split else []))
    text: dict[str, Any] = {"split": split, "folder": folder, "field": field, "limit": limit, "batch": batch}
    with joined(run.device) as context, bars() as progress:
        result = evaluate.anchors(model, data, levels=_levels(levels), **text, **given, progress=progress)
    if context.first:
        _show(result, given["out"], plot or given["out"].with_suffix(".svg"))


def _levels(text: str) -> list[float]:
    try:
        return [float(part) for part in names(text)]
    except ValueError as error:
        raise ConfigError(f"no noise levels: {error}", fix="write 0.1,0.5,0.9", subject="levels") from None


def _show(result: Result, out: Path, plot: Path) -> None:
    levels = result.protocol["levels"]
    for each in anchor_tables(result.figures, levels):
        shown = Table(*each.header, title=each.title)
        for row in each.rows:
            shown.add_row(*row)
        console().print(shown)
    page = out.with_suffix(".md")
    page.write_text(anchor_markdown(result), encoding="utf-8")
    try:
        draw_anchors(result.figures, levels, plot, f"{result.model['name']} on {result.data['name']}")
        where = f"written to {out}, {page.name} and {plot.name}"
    except MissingExtra as error:
        where = f"written to {out} and {page.name}; no picture: {error.fix}"
    say([*anchor_lines(result), where])
