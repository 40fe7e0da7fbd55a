"""`adlm evaluate generation`: the quality of a model's texts, or of those in a file."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm import evaluate
from adlm.cli.evaluate.common import REFERENCES, RUN, References, Run, bars, blocks_part, closing, say, text_lines
from adlm.cli.progress import console
from adlm.cli.sample import options_of
from adlm.distributed import joined
from adlm.evaluate import Result


def command(
    model: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    *,
    texts: Path | None = None,
    training: str | None = None,
    sampler: str | None = None,
    steps: int | None = None,
    block_size: int | None = None,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    measured: References = REFERENCES,
    run: Run = RUN,
) -> None:
    """Measure generative perplexity, entropy, variety, repetition, copies and MAUVE of texts and of references.

    Texts are written next to the result.

    Args:
        model: the folder of a model that writes the texts, or its name on the Hugging Face Hub.
        texts: measure the texts of this file instead: .jsonl with a "text" in each object, or one per line.
        training: text that the model was trained on, named as references are; its split train is searched for what
            texts share with it.
        sampler: by name, as in `adlm sample`; by default the model's own.
        steps: number of sampler steps.
        block_size: write from left to right in blocks of this many tokens, as in `adlm sample`.
        set: any option of the sampler, as in --set eta=0.02.
    """
    options = options_of(set, {"steps": steps, "block_size": block_size})
    parts = [*filter(None, (sampler, str(steps or ""))), *blocks_part(block_size)]
    given = run.given("generation", model or str(texts), *parts)
    source: dict[str, Any] = {"texts": texts, "training": training, "sampler": sampler}
    with joined(run.device) as context, bars() as progress:
        result = evaluate.generation(model, **source, **asdict(measured), **given, progress=progress, **options)
    if context.first:
        _show(result)
        say([*text_lines(result.protocol), *closing(result, given["out"])])


def _show(result: Result) -> None:
    found = result.figures
    beside = any(name.startswith("references ") for name in found)
    table = Table("", result.model["name"], *(["references"] if beside else []))
    for name, figure in found.items():
        if not name.startswith("references "):
            real = [str(found.get(f"references {name}", ""))] if beside else []
            table.add_row(name.replace("_", " "), str(figure), *real)
    console().print(table)
