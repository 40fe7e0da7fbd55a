"""Two measurements of the same text, paired item by item: is one model better, and how sure is that?

The cost of an item varies far more from item to item than between two models. Paired differences are free of that, and
so have much smaller errors than the difference of two figures with an error each.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adlm.errors import ConfigError, DataError
from adlm.evaluate.result import Figure, Result, read_result
from adlm.evaluate.statistics import bootstrap_ratio, paired

SIZES = ("tokens", "characters", "bytes")
# How a figure is estimated does not decide what it estimates: an exact likelihood and a bound may be compared.
ESTIMATION = ("estimator",)
_FEW = 30


def compare(
    first: Result | str | Path,
    second: Result | str | Path,
    *,
    items: Sequence[str] = (),
    allow: Sequence[str] = (),
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
    out: str | Path | None = None,
) -> Result:
    """Compare two results pairwise: first minus second, for every kind of items that both have.

    The figures of each kind: `difference` (of nats per token if items have tokens, else of the mean over items) with
    its standard error over paired items and a bootstrap interval, `z`, the two-sided `p`, `first`, `second`, `items`.

    Args:
        first, second: results of the same text and protocol, or files that `adlm evaluate` wrote.
        items: compare only these.
        allow: parts of the protocol that may differ, besides how figures are estimated.
        resamples: of the bootstrap, over items.
        level: of its interval.
        out: write the result to this file.
    """
    if not 0 < level < 1 or resamples < 100:
        raise ConfigError(
            f"an interval needs a level between 0 and 1 and at least 100 resamples, got {level} and {resamples}",
            subject="resamples" if resamples < 100 else "level",
        )
    paths = [Path(each).stem if isinstance(each, str | Path) else "" for each in (first, second)]
    one, two = (read_result(each) if isinstance(each, str | Path) else each for each in (first, second))
    asked = f"cannot compare {_name(one)} with {_name(two)}"
    if differs := dict(_differences(one, two, {*ESTIMATION, *allow})):
        found = "; ".join(f"{name}: {values}" for name, values in differs.items())
        fix = "measure both alike, or allow parts of the protocol to differ"
        raise DataError(asked, f"not measured alike: {found}", fix, subject=next(iter(differs)))
    shared = [name for name in one.items if name in two.items and name.split(" ")[0] not in SIZES]
    if unknown := [name for name in items if name not in shared]:
        found = f"no items {', '.join(unknown)} in both; in both: {', '.join(shared) or 'none'}"
        raise DataError(f"{asked}: {found}", subject=unknown[0])
    if not (names := items or shared):
        raise DataError(f"{asked}: no items that both have", subject="items")
    figures = {
        f"{what} {name.removeprefix('nats').strip()}".strip(): figure
        for name in names
        for what, figure in _difference(one, two, name, asked, resamples, level, seed).items()
    }
    labels = [str(result.model.get("name") or path) for result, path in zip((one, two), paths, strict=True)]
    if labels[0] == labels[1] and all(paths):
        labels = paths
    protocol = {
        "difference": "first minus second, paired item by item",
        "compared": list(names),
        "allowed to differ": [*ESTIMATION, *allow],
        "resamples": resamples,
        "level": level,
        "of": dict(one.protocol),
    }
    models = {"name": " - ".join(labels), "names": labels, "first": dict(one.model), "second": dict(two.model)}
    result = Result("compare", models, dict(one.data), protocol, seed, figures, notes=_notes(one, two, figures))
    if out is not None:
        result.save(Path(out))
    return result


def comparison_table(result: Result) -> str:
    """A comparison as a Markdown table."""
    first, second = result.model["names"]
    lines = [
        f"| | {first} | {second} | difference | z | p | {result.protocol['level']:.0%} interval | items |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in result.protocol["compared"]:
        suffix = name.removeprefix("nats").strip()
        of = {what: result.figures[f"{what} {suffix}".strip()] for what in _FIGURES}
        difference, p = of["difference"], of["p"].value
        low, high = difference.interval or (difference.value, difference.value)
        cells = [
            f"{name} per token" if difference.unit == "nats per token" else name,
            *(f"{of[side].value:.5g}" for side in ("first", "second")),
            str(Figure(difference.value, difference.error)),
            f"{of['z'].value:.2f}",
            f"{p:.2g}" if p else "< 1e-300",
            f"{low:.4g} to {high:.4g}",
            f"{of['items'].value:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_FIGURES = ("difference", "z", "p", "first", "second", "items")


def _notes(one: Result, two: Result, figures: Mapping[str, Figure]) -> list[str]:
    notes = []
    bounds = ["bound" in {figure.kind for figure in result.figures.values()} for result in (one, two)]
    if bounds[0] != bounds[1]:
        notes.append("one side is a bound, the other exact: how far the bound lies above the likelihood is not known")
    few = min(int(figure.value) for name, figure in figures.items() if name.split(" ")[0] == "items")
    if few < _FEW:
        notes.append(f"{few} items: with fewer than {_FEW}, errors and p are too small")
    return notes


def _difference(
    first: Result, second: Result, name: str, asked: str, resamples: int, level: float, seed: int
) -> dict[str, Figure]:
    one, two = (np.array(result.items[name], np.float64) for result in (first, second))
    if len(one) != len(two) or len(one) < 2:
        found = f"{len(one):,} and {len(two):,} items of {name}" + (": nothing to pair" if len(one) == len(two) else "")
        raise DataError(f"{asked}: {found}", subject=name)
    kind, _, suffix = name.partition(" ")
    counted = next((size for size in (f"tokens {suffix}".strip(), "tokens") if size in first.items), "tokens")
    per_token = kind == "nats" and counted in first.items and counted in second.items
    sizes = np.array(first.items[counted], np.float64) if per_token else np.ones(len(one))
    if per_token and list(first.items[counted]) != list(second.items[counted]):
        pairs = zip(first.items[counted], second.items[counted], strict=False)
        where = next((f"item {i} has {a:g} and {b:g} tokens" for i, (a, b) in enumerate(pairs) if a != b), "too few")
        raise DataError(f"{asked}: items do not line up: {where}", subject=counted)
    values = one - two
    if wrong := np.flatnonzero(~np.isfinite(values)).tolist():
        at = wrong[0]
        found = f"{len(wrong)} items that are not finite: number {at} has {one[at]} and {two[at]}"
        raise DataError(f"{asked}: {found}", subject=name)
    value, error, z, p = paired(values, sizes)
    ends = bootstrap_ratio(values, sizes, resamples, level, seed)
    unit = "nats per token" if per_token else ""
    means = [Figure(float(each.sum() / sizes.sum()), unit=unit) for each in (one, two)]
    found_figures = (Figure(value, error, unit=unit, interval=ends), Figure(z), Figure(p), *means)
    return dict(zip(_FIGURES, (*found_figures, Figure(len(one), kind="exact")), strict=True))


def _differences(first: Result, second: Result, allowed: set[str]) -> Iterator[tuple[str, str]]:
    """The parts of two results that are not alike, by name, with both values."""
    if first.task != second.task:
        yield "task", f"{first.task} and {second.task}"
    if first.data.get("key") != second.data.get("key"):
        keys = [f"{result.data.get('name')} ({str(result.data.get('key'))[:12]})" for result in (first, second)]
        yield "data", " and ".join(keys)
    yield from _unequal(first.protocol, second.protocol, allowed, "protocol")


def _unequal(
    one: Mapping[str, Any], two: Mapping[str, Any], allowed: set[str], where: str
) -> Iterator[tuple[str, str]]:
    """The parts in which two nested records differ, by their names."""
    for name in dict.fromkeys((*one, *two)):
        mine, theirs = one.get(name), two.get(name)
        if mine == theirs or name in allowed:
            continue
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            yield from _unequal(mine, theirs, allowed, f"{where}.{name}")
        else:
            yield f"{where}.{name}", f"{mine} and {theirs}"


def _name(result: Result) -> str:
    return f"{result.model.get('name') or 'no model'} on {result.data.get('name')}"
