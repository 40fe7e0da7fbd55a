"""Standard errors of figures that are made of sums over items, and are no plain means: ratios, calibration errors."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def jackknife(table: Array, of: Callable[[Array], Array]) -> tuple[float, float]:
    """A figure of the column sums of `table` [items, width], and its error by leaving out one item after the other.

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


def ratio(table: Array) -> tuple[float, float]:
    """The sum of the first column over that of the second."""
    return jackknife(table, lambda sums: sums[..., 0] / sums[..., 1])
