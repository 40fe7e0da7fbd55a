"""How a difference between two models changes with tokens and size, with uncertainty."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm_studies.experiments.statistics import student_t
from adlm_studies.report.sections import Interval

TOKENS, SIZE = 1, 2  # the axes, by their column


@dataclass(frozen=True, eq=False)
class Trend:
    """A plane by least squares: difference = c0 + c1 log10(tokens / tokens_0) + c2 log10(size / size_0).

    Args:
        around: (tokens_0, size_0), where the first coefficient is the difference.
        freedom: points less coefficients.
    """

    around: tuple[float, float]
    coefficients: NDArray[np.float64]
    covariance: NDArray[np.float64]
    freedom: int

    def at(self, tokens: float, size: float) -> Interval:
        """The difference expected there."""
        return self._of(np.array([1.0, *_logs(tokens, size, self.around)]))

    def slope(self, axis: int) -> Interval:
        """The change for ten times the tokens or the size."""
        return self._of(np.eye(3)[axis])

    def turn(self, axis: int) -> Interval | None:
        """Where on an axis through `around` the difference is 0, with its 95 % interval (Fieller's); None if that
        interval is not bounded, that is, if the slope cannot be told from 0."""
        t2 = student_t(self.freedom) ** 2
        a, b = self.coefficients[0], self.coefficients[axis]
        v = self.covariance
        square, half, rest = b * b - t2 * v[axis, axis], a * b - t2 * v[0, axis], a * a - t2 * v[0, 0]
        if square <= 0:
            return None
        root = math.sqrt(max(0.0, half * half - square * rest))
        value, low, high = (
            self.around[axis - 1] * 10**x for x in (-a / b, (-half - root) / square, (root - half) / square)
        )
        return Interval(value, low, high, runs=self.freedom + 3)

    def _of(self, x: NDArray[Any]) -> Interval:
        value = float(x @ self.coefficients)
        half = student_t(self.freedom) * math.sqrt(float(x @ self.covariance @ x))
        return Interval(value, value - half, value + half, runs=self.freedom + 3)


def fit_trend(points: Sequence[tuple[float, float, float]], around: tuple[float, float]) -> Trend | None:
    """Through points (tokens, size, difference), one for each seed; None if they do not fix a plane and its error."""
    if len(points) < 4:
        return None
    x = np.array([[1.0, *_logs(tokens, size, around)] for tokens, size, _ in points])
    y = np.array([difference for _, _, difference in points])
    if np.linalg.matrix_rank(x) < x.shape[1]:
        return None
    inverse = np.linalg.inv(x.T @ x)
    coefficients = inverse @ x.T @ y
    freedom = len(points) - x.shape[1]
    variance = float(((y - x @ coefficients) ** 2).sum()) / freedom
    return Trend(around, coefficients, inverse * variance, freedom)


def _logs(tokens: float, size: float, around: tuple[float, float]) -> tuple[float, float]:
    return math.log10(tokens / around[0]), math.log10(size / around[1])
