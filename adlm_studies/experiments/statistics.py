"""Means over a few independent runs, with the intervals that so few allow."""

import math
from collections.abc import Sequence
from functools import cache

from adlm_studies.report.sections import Interval


def over_runs(values: Sequence[float], *, bound: bool = False) -> Interval:
    """The mean of independent runs with its 95 % interval by Student's t; of a single run the value alone."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, mean, mean, bound)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = student_t(n - 1) * spread / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, bound, n)


def paired(values: Sequence[float], others: Sequence[float]) -> Interval:
    """The mean of `values - others` over runs that share a seed: data order, noise and held-out rows are the
    same."""
    return over_runs([a - b for a, b in zip(values, others, strict=True)])


def significant(difference: Interval | None) -> bool:
    """Whether several runs leave 0 out of its interval."""
    return difference is not None and difference.runs > 1 and (difference.low > 0 or difference.high < 0)


def interval_note(seeds: int) -> str:
    """The meaning of ±, for the note of a table."""
    return (
        f"± is a 95 % interval over {seeds} seeds (Student's t)" if seeds > 1 else "One seed, so there are no intervals"
    )


def exponential(nats: Interval) -> Interval:
    """A perplexity from nats per token; the interval's ends go with it."""
    value, low, high = (math.exp(min(x, 700.0)) for x in (nats.value, nats.low, nats.high))
    return Interval(value, low, high, nats.bound, nats.runs)


@cache
def student_t(freedom: int) -> float:
    """The 97.5 % point of Student's t: 12.71 for one degree of freedom, 4.30 for two, 1.96 for many.

    By bisection on the distribution function, whose sum over angles is exact (Abramowitz and Stegun, 26.7.3 and 4).
    """
    low, high = 0.0, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return low


def _within(t: float, freedom: int) -> float:
    """The probability that |T| is below t."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
