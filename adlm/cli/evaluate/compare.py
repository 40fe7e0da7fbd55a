"""`adlm evaluate compare`: two results of the same text, item by item."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from adlm import evaluate
from adlm.cli.evaluate.common import say
from adlm.evaluate.comparison import comparison_table


def command(
    first: Annotated[Path, tyro.conf.Positional],
    second: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    item: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    allow: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Compare two results of the same text under the same protocol: first minus second, paired item by item.

    Prints a table in Markdown: the difference with its standard error over paired items, z, the two-sided p, and a
    bootstrap interval. A bound may be compared with an exact likelihood; how far it lies above its own is not known.

    Args:
        first: a file that `adlm evaluate` wrote.
        second: another such file.
        item: compare only these numbers, as in --item nats; by default all that both have.
        allow: a part of the protocol that may differ, as in --allow rows.
        resamples: number of bootstrap resamples.
        level: level of the bootstrap interval.
        seed: seed of the bootstrap.
        out: also write the comparison to this file, as JSON.
    """
    settings: dict[str, Any] = {"resamples": resamples, "level": level, "seed": seed, "out": out}
    result = evaluate.compare(first, second, items=item, allow=allow, **settings)
    print(comparison_table(result))
    say(f"note: {note}" for note in result.notes)
