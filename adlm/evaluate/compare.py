"""Two measurements of the same text, paired item by item: is one model better, and how sure is that?

What an item costs varies far more from item to item than between two models. Paired differences are free of that, and
so have much smaller errors than the difference of two figures with an error each.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.errors import ConfigError, DataError
from adlm.evaluate.perplexity import ratio
from adlm.evaluate.result import Figure, Result

SIZES = ("tokens", "characters", "bytes")
# How a figure is estimated does not decide what it estimates: an exact likelihood and a bound may be compared.
ESTIMATION = ("estimator",)
_AT_A_TIME = 1 << 22


@dataclass(frozen=True)
class Difference:
    """First minus second: of nats per token where items have tokens, else of the mean over items.

    Args:
        item: the name of the numbers that were compared.
        per: what totals are divided by: "token" or "item".
        error: standard error, from the spread of paired differences.
        p: two-sided, by the normal law.
        low, high: bootstrap interval.
        level: of the interval.
    """

    item: str
    per: str
    first: float
    second: float
    value: float
    error: float
    z: float
    p: float
    low: float
    high: float
    level: float
    count: int

    def figures(self) -> dict[str, Figure]:
        suffix = self.item.removeprefix("nats").strip()
        names = {"difference": Figure(self.value, self.error), "z": Figure(self.z), "p": Figure(self.p)}
        names |= {"low": Figure(self.low), "high": Figure(self.high)}
        return {f"{name} {suffix}".strip(): figure for name, figure in names.items()}


def compare(
    first: Result,
    second: Result,
    *,
    items: Sequence[str] = (),
    allow: Sequence[str] = (),
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> list[Difference]:
    """Every kind of items that both have, compared; refused where they are not of the same text and protocol.

    Args:
        items: compare these alone.
        allow: parts of the protocol that may differ, beside how figures are estimated.
        resamples: of the bootstrap, over items.
        level: of its interval.
    """
    if not 0 < level < 1 or resamples < 100:
        raise ConfigError(
            f"asked for an interval of level {level} from {resamples} resamples",
            "no level, or too few",
            "give a level between 0 and 1, and 100 resamples or more",
        )
    asked = f"asked to compare {_name(first)} with {_name(second)}"
    if differs := list(_differences(first, second, {*ESTIMATION, *allow})):
        fix = "measure both alike; what may differ in the protocol can be named by --allow"
        raise DataError(asked, "not measured alike: " + "; ".join(differs), fix)
    shared = [name for name in first.items if name in second.items and name.split(" ")[0] not in SIZES]
    if unknown := [name for name in items if name not in shared]:
        have = ", ".join(shared) or "none"
        raise DataError(asked, f"no items {', '.join(unknown)} in both; in both: {have}", "name some that both have")
    if not (names := items or shared):
        raise DataError(asked, "no items that both have", "compare results that hold a number for each item")
    return [_difference(first, second, name, asked, resamples, level, seed) for name in names]


def table(differences: Sequence[Difference], first: str, second: str) -> str:
    """As Markdown."""
    lines = [
        f"| | {first} | {second} | difference | z | p | {differences[0].level:.0%} interval | items |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in differences:
        unit = f"{each.item} a token" if each.per == "token" else each.item
        cells = [f"{each.first:.5g}", f"{each.second:.5g}", str(Figure(each.value, each.error)), f"{each.z:.2f}"]
        cells += [f"{each.p:.2g}" if each.p else "< 1e-300", f"{each.low:.4g} to {each.high:.4g}", f"{each.count:,}"]
        lines.append(f"| {unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def paired(values: NDArray[np.float64], sizes: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """sum(values) / sum(sizes) of paired differences: the value, its standard error, z and the two-sided p."""
    value, error = ratio(values, sizes)
    z = value / error if error > 0 else math.copysign(math.inf, value) if value else 0.0
    return value, error, z, math.erfc(abs(z) / math.sqrt(2))


def _difference(
    first: Result, second: Result, name: str, asked: str, resamples: int, level: float, seed: int
) -> Difference:
    one, two = (np.array(result.items[name], np.float64) for result in (first, second))
    if len(one) != len(two) or len(one) < 2:
        found = f"{len(one):,} and {len(two):,} items of {name}" + (": nothing to pair" if len(one) == len(two) else "")
        raise DataError(asked, found, "measure both on the same two or more items")
    kind, _, suffix = name.partition(" ")
    counted = next((size for size in (f"tokens {suffix}".strip(), "tokens") if size in first.items), "tokens")
    per_token = kind == "nats" and counted in first.items and counted in second.items
    sizes = np.array(first.items[counted], np.float64) if per_token else np.ones(len(one))
    if per_token and list(first.items[counted]) != list(second.items[counted]):
        pairs = zip(first.items[counted], second.items[counted], strict=False)
        where = next((f"item {i} has {a:g} and {b:g} tokens" for i, (a, b) in enumerate(pairs) if a != b), "too few")
        raise DataError(asked, f"items do not line up: {where}", "measure both on the same text")
    values = one - two
    if wrong := np.flatnonzero(~np.isfinite(values)).tolist():
        position = wrong[0]
        found = f"{len(wrong)} items that are not finite: number {position} has {one[position]} and {two[position]}"
        raise DataError(asked, found, "look at these items: one of the models gives them no probability")
    value, error, z, p = paired(values, sizes)
    low, high = _bootstrap(values, sizes, resamples, level, seed)
    means = [float(each.sum() / sizes.sum()) for each in (one, two)]
    per = "token" if per_token else "item"
    return Difference(name, per, means[0], means[1], value, error, z, p, low, high, level, len(one))


def _bootstrap(
    values: NDArray[np.float64], sizes: NDArray[np.float64], resamples: int, level: float, seed: int
) -> tuple[float, float]:
    """The quantiles of the figure over sets of as many items, drawn with replacement."""
    generator, n = np.random.Generator(np.random.Philox(seed)), len(values)
    found: list[NDArray[np.float64]] = []
    at_a_time = max(1, _AT_A_TIME // n)
    for start in range(0, resamples, at_a_time):
        drawn = generator.integers(n, size=(min(at_a_time, resamples - start), n))
        found.append(values[drawn].sum(-1) / sizes[drawn].sum(-1))
    low, high = np.quantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _differences(first: Result, second: Result, allowed: set[str]) -> Iterator[str]:
    if first.task != second.task:
        yield f"task: {first.task} and {second.task}"
    if first.data.get("key") != second.data.get("key"):
        keys = [f"{result.data.get('name')} ({str(result.data.get('key'))[:12]})" for result in (first, second)]
        yield f"data: {' and '.join(keys)}"
    yield from _unequal(first.protocol, second.protocol, allowed, "protocol")


def _unequal(one: Mapping[str, Any], two: Mapping[str, Any], allowed: set[str], where: str) -> Iterator[str]:
    """The parts in which two nested records differ, by their names."""
    for name in dict.fromkeys((*one, *two)):
        mine, theirs = one.get(name), two.get(name)
        if mine == theirs or name in allowed:
            continue
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            yield from _unequal(mine, theirs, allowed, f"{where}.{name}")
        else:
            yield f"{where}.{name}: {mine} and {theirs}"


def _name(result: Result) -> str:
    return f"{result.model.get('name') or 'no model'} on {result.data.get('name')}"
