"""`adlm evaluate anchors`: what the anchors of a two-stage model do."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.table import Table

from adlm.anchors import AnchorRule, RareInSequence
from adlm.cli.evaluate.perplexity import check_counts, partial_file, progress, result_path
from adlm.cli.progress import console
from adlm.config import from_json, to_json
from adlm.data.catalog import open_source
from adlm.distributed import joined
from adlm.errors import ConfigError, MissingExtra
from adlm.evaluate.anchor_report import draw_anchors, report_tables
from adlm.evaluate.anchors import (
    LEVELS,
    MAIN,
    STAGES,
    AnchorNumbers,
    Types,
    anchor_figures,
    check_anchored,
    reliability,
)
from adlm.evaluate.documents import packed_rows
from adlm.evaluate.result import Result
from adlm.evaluate.work import each_of, weights_checksum
from adlm.text_model import load


def command(
    model: Annotated[str, tyro.conf.Positional],
    data: Annotated[str, tyro.conf.Positional],
    /,
    *,
    split: str = "test",
    folder: Path | None = None,
    rows: int = 256,
    levels: str = ",".join(map(str, LEVELS)),
    batch: int = 32,
    seed: int = 0,
    out: Path | None = None,
    plot: Path | None = None,
    device: str = "auto",
    revision: str | None = None,
) -> None:
    """What the anchors of a two-stage model do: how well both stages predict, and what is handed over between them.

    Beside the result as JSON come its tables as Markdown and a picture.

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub.
        data: a name of the catalog (`adlm prepare --list`), hub:OWNER/NAME[:CONFIG], or a file, folder or glob.
        split: of the data.
        folder: where the files of a catalog name are; without it they come from the Hub.
        rows: measure on the first so many.
        levels: fractions of the tokens that are masked, with commas between them.
        batch: rows that a process takes at a time.
        seed: of the masks.
        out: the result, as JSON; by default in runs/evaluate.
        plot: the picture, .svg or .png; by default beside the result.
        device: auto, cpu, cuda or mps.
        revision: of a model on the Hub.
    """
    check_counts(rows=rows, batch=batch)
    fractions = _levels(levels)
    with joined(device) as world:
        read = load(model, revision=revision)
        check_anchored(read.network.to(world.device))
        table = packed_rows(open_source(data, folder=folder), split, read.tokenizer, read.config.packing, limit=rows)
        rule = trained_rule(read.config.run)
        numbers = AnchorNumbers(read.network, table, Types.of(read.tokenizer, table), rule, levels=fractions, seed=seed)
        about = {
            "anchors": to_json(rule),
            "levels": fractions,
            "masking": "a fraction of each row's tokens, its number exact, padding among them where it is predicted",
            "counted": "masked tokens of the text; not padding",
            "hand-over": to_json(numbers.trials.kind),
            "trials": numbers.trials.words,
            "errors": "jackknife over rows",
            "frequencies": "of the rows measured",
        }
        named = {"name": model, "weights": weights_checksum(read.network)}
        out = out or result_path("anchors", model, data, split)
        partial = partial_file(out, "anchors")
        with progress("anchors", table, world) as watch:
            found = each_of(
                len(table),
                numbers,
                width=numbers.width,
                batch=batch,
                world=world,
                partial=partial,
                made_of={"model": named, "data": table.key, "protocol": about, "seed": seed},
                watch=watch,
            )
        if not world.first:
            return
        about["reliability"] = {
            f"{kind}, {stage}": reliability(found, numbers.columns, kind, stage) for kind in MAIN for stage in STAGES
        }
        facts = {"name": data, "split": split, "key": table.key, "rows": len(table)}
        result = Result(
            "anchors", named, facts, about, seed, anchor_figures(found, numbers.columns), _items(found, numbers)
        )
        result.save(out)
        partial.unlink(missing_ok=True)
        _show(result, fractions, out, plot or out.with_suffix(".svg"))


def trained_rule(run: dict[str, Any] | None) -> AnchorRule:
    """The rule that a model was trained with, or the paper's."""
    objective = (run or {}).get("objective")
    if not isinstance(objective, dict) or "rule" not in objective:
        return RareInSequence()
    return from_json(AnchorRule, objective["rule"], where="config.run.objective.rule")  # type: ignore[type-abstract]


def _levels(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"asked for the noise levels {text!r}", str(error), "write as in --levels 0.1,0.5,0.9"
        ) from None


def _items(found: Any, numbers: AnchorNumbers) -> dict[str, list[float]]:
    """For paired comparisons: nats of a row's masked tokens, all levels together, and how many they are."""
    chosen = {
        name: [
            position for (_, kind, *what), position in numbers.columns.items() if kind in MAIN and what == output_mask
        ]
        for name, output_mask in (
            ("tokens", ["", "count"]),
            ("nats of the anchor stage", ["anchor stage", "nats"]),
            ("nats of the denoiser", ["denoiser", "nats"]),
        )
    }
    return {name: np.asarray(found)[:, positions].sum(1).tolist() for name, positions in chosen.items()}


def _show(result: Result, levels: list[float], out: Path, plot: Path) -> None:
    tables = report_tables(result.figures, levels)
    for each in tables:
        shown = Table(*each.header, title=each.title)
        for row in each.rows:
            shown.add_row(*row)
        console().print(shown)
    about = result.protocol
    told = [f"told {trial}: {words}" for trial, words in about["trials"].items()]
    lines = [f"{result.data['rows']:,} rows; ± one standard error, by a jackknife over rows", *told]
    title = f"{result.model['name']} on {result.data['name']} ({result.data['split']})"
    text = "\n\n".join(
        [f"# Anchors of {title}", "\n".join(f"- {line}" for line in lines), *(t.markdown() for t in tables)]
    )
    out.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
    try:
        draw_anchors(result.figures, levels, plot, title)
        lines.append(f"written to {out}, {out.with_suffix('.md').name} and {plot.name} beside it")
    except MissingExtra as error:
        lines.append(f"written to {out} and {out.with_suffix('.md').name}; no picture: {error.fix}")
    for line in lines:
        console().print(line, highlight=False, markup=False, soft_wrap=True)
