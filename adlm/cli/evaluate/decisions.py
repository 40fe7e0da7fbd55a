"""`adlm evaluate decisions`: whether options to which a model gives probability p are right as often."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm import evaluate
from adlm.cli.evaluate.common import RUN, Run, bars, closing, names, say
from adlm.cli.progress import console
from adlm.distributed import joined
from adlm.evaluate import Result


def command(
    model: Annotated[str, tyro.conf.Positional],
    data: Annotated[str, tyro.conf.Positional],
    /,
    *,
    n: int = 300,
    choices: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    options: int = 4,
    words: int = 200,
    split: str | None = None,
    folder: Path | None = None,
    field: str | None = None,
    run: Run = RUN,
) -> None:
    """Measure how well the probabilities of decisions are calibrated: which of a few words stood at a hidden place?

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub.
        data: held-out text, named as in `adlm evaluate perplexity`.
        n: number of texts, with one question each.
        choices: a group of words to decide between, as in --choices he,she --choices big,little. By default the most
            frequent words, grouped by rank.
        options: words per group, by default.
        words: number of the most frequent words that are grouped.
        split: the split to score; by default test, or the last one.
        folder: where the files of a catalog name are; without it they come from the Hub.
        field: the field or column that holds the text.
    """
    given = run.given("decisions", model, data, *([split] if split else []))
    text: dict[str, Any] = {"split": split, "folder": folder, "field": field}
    groups = [names(group) for group in choices] or None
    with joined(run.device) as context, bars() as progress:
        result = evaluate.decisions(
            model, data, choices=groups, options=options, words=words, n=n, **text, **given, progress=progress
        )
    if context.first:
        _show(result)
        say(closing(result, given["out"]))


def _show(result: Result) -> None:
    figures, about = result.figures, result.protocol
    table = Table("confidence", "decisions", "mean", "right", title=f"{result.model['name']} on {result.data['name']}")
    for bin_ in (name.removeprefix("count ") for name in figures if name.startswith("count ")):
        columns = (figures[f"{name} {bin_}"] for name in ("count", "confidence", "accuracy"))
        table.add_row(bin_, *map(str, columns))
    console().print(table)
    say(
        [
            f"accuracy {figures['accuracy']}, mean confidence {figures['confidence']}, "
            f"{figures['nats_per_decision']} nats per decision",
            f"expected calibration error {figures['ece']}; of a calibrated model {figures['ece if calibrated']}",
            f"{about['questions']} questions; {len(about['groups'])} groups of words; the model sees {about['sees']}",
        ]
    )
