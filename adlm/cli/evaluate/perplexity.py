"""`adlm evaluate perplexity`: bits and perplexity of held-out text."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm import evaluate
from adlm.cli.evaluate.common import BOUND, RUN, Bound, Run, bars, blocks_part, closing, likelihood_lines, say
from adlm.cli.progress import console
from adlm.distributed import joined
from adlm.evaluate import Result

_SHOWN = ("perplexity", "nats_per_token", "bits_per_byte", "bits_per_character")


def command(
    model: Annotated[str, tyro.conf.Positional],
    data: Annotated[str, tyro.conf.Positional],
    /,
    *,
    split: str | None = None,
    protocol: str | None = None,
    folder: Path | None = None,
    field: str | None = None,
    detokenizer: str | None = None,
    documents: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    stride: int | None = None,
    bound: Bound = BOUND,
    run: Run = RUN,
) -> None:
    """Measure perplexity and bits of held-out text: exact for left-to-right models, else a bound with its error.

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub.
        data: a name of the catalog (`adlm prepare --list`), hub:OWNER/NAME[:CONFIG], or a file, folder or glob. Files
            are scored as a whole, unless the names in a folder tell splits.
        split: the split to score; by default test, or the last one. Files without splits are then cut as for training.
        protocol: measure as published: lm1b, openwebtext or text8. It decides split and rows, and has to fit the model.
        folder: where the files of a catalog name are; without it they come from the Hub.
        field: the field or column that holds the text; several as in title,description; numbers, as in 2,3, if a CSV
            file has no header line.
        detokenizer: undo a corpus's tokenization, by name.
        documents: score each document on rows of its own, longer ones in windows.
        stride: with --documents: tokens from one window to the next; the overlap is context and scored once.
    """
    parts = [*([split] if split else []), *(["documents"] if documents else []), *blocks_part(bound.block_size)]
    given = run.given("perplexity", model, data, *parts)
    text: dict[str, Any] = {
        "split": split,
        "protocol": protocol,
        "folder": folder,
        "field": field,
        "detokenizer": detokenizer,
    }
    windows: dict[str, Any] = {"documents": documents, "stride": stride}
    with joined(run.device) as context, bars() as progress:
        result = evaluate.perplexity(model, data, **text, **windows, **asdict(bound), **given, progress=progress)
    if context.first:
        _show(result)
        say([*likelihood_lines(result), *closing(result, given["out"])])


def _show(result: Result) -> None:
    others = [name.removeprefix("z ") for name in result.figures if name.startswith("z ")]
    table = Table("", result.protocol["estimator"]["name"], *others)
    for name in _SHOWN:
        beside = [result.figures.get(f"{name} {other}", "") for other in others]
        table.add_row(name.replace("_", " "), str(result.figures[name]), *map(str, beside))
    if others:
        z = [f"{result.figures[f'z {other}'].value:+.2f}" for other in others]
        table.add_row("off the first, in standard errors", "", *z)
    say([f"{result.model['name']} on {result.data['name']} ({result.data['split']})"])
    console().print(table)
