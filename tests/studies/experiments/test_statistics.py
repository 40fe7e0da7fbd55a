import math
import statistics as plain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm_studies.experiments.statistics import exponential, over_runs, paired, student_t

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("freedom", "point"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (500, 1.9647)],
)
def test_students_points_are_those_of_the_tables(freedom, point):
    assert student_t(freedom) == pytest.approx(point, abs=2e-4)


@given(VALUES)
def test_an_interval_is_the_textbooks(values):
    found = over_runs(values)
    half = student_t(len(values) - 1) * plain.stdev(values) / math.sqrt(len(values))
    assert found.value == pytest.approx(plain.fmean(values), abs=1e-9)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=1e-6, abs=1e-9)
    assert found.runs == len(values)


def test_one_run_has_no_interval():
    found = over_runs([3.0], bound=True)
    assert (found.low, found.high, str(found)) == (3.0, 3.0, "≤ 3")


@given(VALUES, st.floats(-10, 10))
def test_a_shift_common_to_all_runs_is_certain_in_pairs(values, shift):
    found = paired([value + shift for value in values], values)
    assert found.value == pytest.approx(shift, abs=1e-9)
    assert found.high - found.low == pytest.approx(0, abs=1e-8)


def test_pairs_need_as_many_of_both():
    with pytest.raises(ValueError):
        paired([1.0], [1.0, 2.0])


def test_intervals_cover_the_mean_as_often_as_they_say():
    from random import Random

    random, hits = Random(0), 0
    for _ in range(2000):
        found = over_runs([random.gauss(5, 2) for _ in range(3)])
        hits += found.low <= 5 <= found.high
    assert 0.935 < hits / 2000 < 0.965


def test_a_perplexity_takes_the_ends_of_its_interval_along():
    found = exponential(over_runs([1.0, 2.0, 3.0], bound=True))
    nats = over_runs([1.0, 2.0, 3.0])
    assert (found.value, found.low, found.high) == (math.exp(2), math.exp(nats.low), math.exp(nats.high))
    assert found.bound
    assert found.runs == 3
