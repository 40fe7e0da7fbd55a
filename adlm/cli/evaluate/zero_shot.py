"""`adlm evaluate zero-shot`: perplexity on texts of other kinds."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm import evaluate
from adlm.cli.evaluate.common import BOUND, RUN, Bound, Run, bars, blocks_part, closing, likelihood_lines, names, say
from adlm.cli.progress import console
from adlm.distributed import joined
from adlm.evaluate import Result
from adlm.evaluate.zero_shot_sets import PUBLISHED


def command(
    model: Annotated[str, tyro.conf.Positional],
    /,
    *,
    sets: str | None = None,
    data_dir: Path | None = None,
    split: str | None = None,
    skip_missing: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    published: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    bound: Bound = BOUND,
    run: Run = RUN,
) -> None:
    """Measure perplexity on texts a model was not trained on, detokenized and wrapped into rows as published.

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub.
        sets: names, as in ptb,lambada; by default all: lambada, ptb, wikitext, lm1b, ag_news, pubmed, arxiv.
        data_dir: a folder with a folder per set; without it they come from the Hub.
        split: the split of every set; by default the published one, or the one that the files have; the table shows it.
        skip_missing: leave out sets that are not found, instead of stopping before anything is scored.
        published: also show published figures. They are comparable only with models trained on OpenWebText with GPT-2's
            tokens and rows of 1,024.
    """
    given = run.given("zero-shot", model, *blocks_part(bound.block_size))
    which: dict[str, Any] = {"sets": names(sets), "data_dir": data_dir, "split": split, "skip_missing": skip_missing}
    with joined(run.device) as context, bars() as progress:
        result = evaluate.zero_shot(model, **which, **asdict(bound), **given, progress=progress)
    if context.first:
        _show(result, published=published)
        say([*likelihood_lines(result), *closing(result, given["out"])])


def _show(result: Result, *, published: bool) -> None:
    """Bits are left out beside published figures: they are in the file."""
    columns = ("perplexity",) if published else ("perplexity", "bits_per_byte", "bits_per_character")
    table = Table("set", "split", *(name.replace("_", " ") for name in columns), *(PUBLISHED if published else ()))
    for name, text in result.data["sets"].items():
        theirs = [f"{figures[name]:.2f}" for figures in PUBLISHED.values()] if published else []
        table.add_row(name, text["split"], *(str(result.figures[f"{column} {name}"]) for column in columns), *theirs)
    say([f"{result.model['name']}, zero-shot"])
    console().print(table)
    if published:
        say([f"{', '.join(PUBLISHED)}: published (arXiv 2505.18456), for reference; GPT-2's tokens, rows of 1,024"])
