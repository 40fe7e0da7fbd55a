"""`adlm evaluate stories`: exact measures on generated stories."""

from typing import Annotated, Any

import tyro
from rich.table import Table

from adlm import evaluate
from adlm.cli.evaluate.common import RUN, Run, bars, blocks_part, closing, say
from adlm.cli.progress import console
from adlm.cli.sample import options_of
from adlm.distributed import joined
from adlm.evaluate import Result


def command(
    model: Annotated[str, tyro.conf.Positional],
    /,
    *,
    stories: int = 1000,
    samples: int = 200,
    draws: int = 8,
    sampler: str | None = None,
    steps: int | None = None,
    block_size: int | None = None,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    batch: int = 64,
    run: Run = RUN,
) -> None:
    """Measure how far a model of generated stories is from the true process, and what is wrong with its samples.

    Args:
        model: the folder of a model, or its name on the Hugging Face Hub.
        stories: number of fresh stories to score.
        samples: stories that the model writes. They are written next to the result, as .samples.jsonl.
        draws: noise levels per story, for bounds.
        sampler: by name, as in `adlm sample`.
        steps: number of sampler steps.
        block_size: write, and score if the model reads blocks, in blocks of this many tokens.
        set: any option of the sampler, as in --set temperature=0.8.
        batch: stories that a process scores at a time.
    """
    options = options_of(set, {"steps": steps, "block_size": block_size})
    given = run.given("stories", model, *blocks_part(block_size))
    counts: dict[str, Any] = {"count": stories, "samples": samples, "draws": draws, "batch": batch}
    with joined(run.device) as context, bars() as progress:
        result = evaluate.stories(model, sampler=sampler, **counts, **given, progress=progress, **options)
    if context.first:
        _show(result)
        say(closing(result, given["out"]))


def _show(result: Result) -> None:
    table = Table("", "", title=f"{result.model['name']} on stories", show_header=False)
    for name, figure in result.figures.items():
        table.add_row(name, f"{figure} {figure.unit}".strip())
    console().print(table)
    about = result.protocol
    say(
        [
            f"{about['text']}; length {about['length of a story']}; likelihood: {about['likelihood']}; ≤ marks a bound",
            f"log-likelihood of flawless: by the grammar; its own stories have {-result.figures['entropy'].value:.2f}",
            f"{about['samples']:,} samples by {about['sampler']['kind']}; ± one standard error {about['errors']}",
        ]
    )
