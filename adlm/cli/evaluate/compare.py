"""`adlm evaluate compare`: two results of the same text, item by item."""

from pathlib import Path
from typing import Annotated

import tyro

from adlm.cli.progress import console
from adlm.evaluate.compare import ESTIMATION, compare, table
from adlm.evaluate.result import Result, read_result

_FEW = 30


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
    bootstrap interval. A bound may be compared with an exact likelihood; how far it lies above its own, nobody knows.

    Args:
        first: a file that `adlm evaluate` wrote.
        second: another.
        item: compare these numbers alone, as in --item nats; by default all that both have.
        allow: a part of the protocol that may differ, as in --allow rows.
        resamples: of the bootstrap.
        level: of its interval.
        seed: of the bootstrap.
        out: also write the comparison to this file, as JSON.
    """
    one, two = read_result(first), read_result(second)
    found = compare(one, two, items=item, allow=allow, resamples=resamples, level=level, seed=seed)
    names = [str(result.model.get("name") or path.stem) for result, path in ((one, first), (two, second))]
    if names[0] == names[1]:
        names = [path.stem for path in (first, second)]
    shown = table(found, *names)
    print(shown)
    kinds = [{figure.kind for figure in result.figures.values()} for result in (one, two)]
    if ("bound" in kinds[0]) != ("bound" in kinds[1]):
        note = "one side is a bound, the other exact: the difference is that of what is known, not of the models"
        console().print(note, highlight=False, soft_wrap=True)
    if (few := min(each.count for each in found)) < _FEW:
        note = f"{few} items: with fewer than {_FEW}, errors and p promise more than they hold"
        console().print(note, highlight=False, soft_wrap=True)
    if out is not None:
        figures = {name: figure for each in found for name, figure in each.figures().items()}
        protocol = {
            "difference": "first minus second, paired item by item",
            "allowed to differ": [*ESTIMATION, *allow],
            "resamples": resamples,
            "level": level,
            "of": dict(one.protocol),
        }
        models = {"name": " - ".join(names), "first": dict(one.model), "second": dict(two.model)}
        Result("compare", models, dict(one.data), protocol, seed, figures).save(out)
