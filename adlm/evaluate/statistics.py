"""Standard errors and intervals of figures that are made of sums over items."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_AT_A_TIME = 1 << 22  # numbers that a bootstrap holds in memory


def ratio(values: Array, sizes: Array) -> tuple[float, float]:
    """sum(values) / sum(sizes) and its standard error over items, infinite for a single item.

    By the delta method: the spread of values - ratio * sizes. Longer items cost more, which is no error of the figure.
    """
    total, n = float(sizes.sum()), len(values)
    value = float(values.sum()) / total
    if n < 2 or not math.isfinite(value):
        return value, math.inf
    spread = values - value * sizes
    return value, math.sqrt(n / (n - 1) * float((spread**2).sum())) / total


def paired(values: Array, sizes: Array) -> tuple[float, float, float, float]:
    """sum(values) / sum(sizes) of paired differences: the value, its standard error, z and the two-sided p."""
    value, error = ratio(values, sizes)
    z = value / error if error > 0 else math.copysign(math.inf, value) if value else 0.0
    return value, error, z, math.erfc(abs(z) / math.sqrt(2))


def jackknife(table: Array, of: Callable[[Array], Array]) -> tuple[float, float]:
    """A figure of the column sums of `table` [items, width], and its error by leaving out one item at a time.

    Args:
        of: sums [..., width] -> figure [...].
    """
    total, n = table.sum(0), len(table)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(of(total))
        if n < 2:
            return value, math.inf
        others = of(total - table)
    others = others[np.isfinite(others)]
    return value, float(np.sqrt((n - 1) * others.var())) if len(others) > 1 else math.inf


def jackknife_ratio(table: Array) -> tuple[float, float]:
    """The sum of the first column over that of the second, with its jackknife error."""
    return jackknife(table, lambda sums: sums[..., 0] / sums[..., 1])


def calibration_error(sums: Array) -> Array:
    """The sum over bins of |confidence - accuracy| * fraction, from [..., confidence of each bin, correct, count].

    Args:
        sums: [..., 2 * bins + 1], sums over items; the count is that of all bins.
    """
    bins = sums.shape[-1] // 2
    gap: Array = np.abs(sums[..., :bins] - sums[..., bins : 2 * bins]).sum(-1) / sums[..., -1]
    return gap


def bootstrap_ratio(values: Array, sizes: Array, resamples: int, level: float, seed: int) -> tuple[float, float]:
    """The interval of sum(values) / sum(sizes) over sets of as many items, drawn with replacement."""
    generator, n = np.random.Generator(np.random.Philox(seed)), len(values)
    found: list[Array] = []
    at_a_time = max(1, _AT_A_TIME // n)
    for start in range(0, resamples, at_a_time):
        drawn = generator.integers(n, size=(min(at_a_time, resamples - start), n))
        found.append(values[drawn].sum(-1) / sizes[drawn].sum(-1))
    return interval(np.concatenate(found), level)


def interval(values: Array, level: float) -> tuple[float, float]:
    """The central part of a sample that holds a fraction `level` of it."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
