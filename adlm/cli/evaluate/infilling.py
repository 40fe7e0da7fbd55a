"""`adlm evaluate infilling`: words, phrases and sentences that a model restores in held-out texts."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm import evaluate
from adlm.cli.evaluate.common import RUN, Run, bars, closing, say
from adlm.cli.progress import console
from adlm.cli.sample import options_of
from adlm.distributed import joined
from adlm.evaluate import Result


def command(
    model: Annotated[str, tyro.conf.Positional],
    data: Annotated[str, tyro.conf.Positional],
    /,
    *,
    n: int = 100,
    best_of: int = 8,
    split: str | None = None,
    folder: Path | None = None,
    field: str | None = None,
    sampler: str | None = None,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    run: Run = RUN,
) -> None:
    """Measure how often a model restores a word, a phrase of three words or a sentence cut from a held-out text.

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub.
        data: held-out text, named as in `adlm evaluate perplexity`.
        n: number of texts.
        best_of: fillings to choose from, by the likelihood of the whole text read from left to right.
        split: the split to score; by default test, or the last one.
        folder: where the files of a catalog name are; without it they come from the Hub.
        field: the field or column that holds the text.
        sampler: by name, as in `adlm infill`; by default the most certain blank first, with its most likely token.
        set: any option of the sampler, as in --set temperature=0.8.
    """
    given = run.given("infilling", model, data, *([split] if split else []))
    text: dict[str, Any] = {"split": split, "folder": folder, "field": field}
    options = options_of(set, {})
    with joined(run.device) as context, bars() as progress:
        result = evaluate.infilling(
            model, data, n=n, best_of=best_of, sampler=sampler, **text, **given, progress=progress, **options
        )
    if context.first:
        _show(result)
        say(closing(result, given["out"]))


def _show(result: Result) -> None:
    table = Table("hole", "exact", "F1 of words", title=f"{result.model['name']} on {result.data['name']}")
    for kind in (name.removeprefix("exact ") for name in result.figures if name.startswith("exact ")):
        table.add_row(kind, str(result.figures[f"exact {kind}"]), str(result.figures[f"words {kind}"]))
    console().print(table)
    about = result.protocol
    say([f"{about['texts']} texts; the best of {about['best of']} fillings; the model sees {about['sees']}"])
