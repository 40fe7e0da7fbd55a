import math
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ConfigError
from adlm_studies.reasoning.answers import (
    Accuracy,
    PairedOutcomes,
    accuracy,
    last_sentence,
    marks,
    number_in,
    paired,
    same_number,
    truth_in,
)
from adlm_studies.reasoning.problem import Problem
from adlm_studies.reasoning.tasks import make_task
from tests.errors import raises


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She has 3 left.\n#### 18", "18"),
        ("#### 1,080 and then 5 more", "1080"),
        ("so $1,234.50.", "1234.50"),
        ("a loss of -$20", "-20"),
        ("a loss of $-20", "-20"),
        ("it is −7 degrees", "-7"),
        ("grows by 12.5%", "12.5"),
        ("<<16-3=13>>", "13"),
        ("that is 16-3", "3"),
        ("that is 16 - 3", "3"),
        ("(2+3)-4", "4"),
        ("flight AB-19", "19"),
        ("half is .5", ".5"),
        ("3, 4", "4"),
        ("2,000,000 people", "2000000"),
        ("12 #### nothing", None),
        ("no number", None),
        ("", None),
    ],
)
def test_the_number_is_that_after_the_mark_or_else_the_last(text, number):
    assert number_in(text) == number


@settings(deadline=None)
@given(st.decimals(-(10**9), 10**9, places=2), st.booleans(), st.sampled_from(["#### {}", "it costs {} now", "{}%."]))
def test_any_number_is_read_back_with_and_without_commas(value, commas, around):
    written = f"{value:,}" if commas else str(value)
    assert Decimal(number_in(around.format(written)) or "nan") == value


@settings(deadline=None)
@given(st.text())
def test_no_writing_makes_the_readers_fail(text):
    for task in map(make_task, ("gsm8k", "prosqa", "prontoqa", "arithmetic", "graph")):
        found = task.parse_answer(text)
        assert task.is_correct(found, Problem("?", (), "18", ())) in (True, False)


def test_numbers_are_compared_as_decimals_and_not_as_text_or_floats():
    assert same_number("18.0", "18")
    assert same_number(".50", "0.5")
    assert same_number("1" + "0" * 30, "1" + "0" * 30 + ".0")
    assert not same_number("1" + "0" * 30, "1" + "0" * 29 + "1")
    assert not same_number("0.1", "0.1000000000000000055")
    assert not same_number(None, "0")


def test_the_last_truth_value_counts():
    assert truth_in("True or false? Max is not wooden. false") == "False"
    assert truth_in("Max is wooden.\nTrue") == "True"
    assert truth_in("untrue, falsehood") is None


def test_the_last_sentence_is_the_answer_however_it_is_spaced():
    assert last_sentence("Tom is a terpus. Every terpus is a lempus.\n### Tom  is a lempus") == "Tom is a lempus."
    assert last_sentence("Tom is a lempus. ") == "Tom is a lempus."
    assert last_sentence(" .. ") is None


def test_wilsons_interval_is_the_published_one():
    low, high = Accuracy(8, 10).interval
    assert (low, high) == pytest.approx((0.49016, 0.94332), abs=1e-5)  # Brown, Cai and DasGupta 2001 give the formula
    assert Accuracy(0, 20).interval == pytest.approx((0, 0.16113), abs=1e-5)
    assert Accuracy(0, 0).interval == (0, 1)


@settings(deadline=None)
@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_ends_of_wilsons_interval_solve_its_equation(counts):
    result = Accuracy(*counts)
    low, high = result.interval
    assert 0 <= low <= result.fraction <= high <= 1
    for end in (low, high):
        if 1e-9 < end < 1 - 1e-9:
            z = abs(result.fraction - end) / math.sqrt(end * (1 - end) / result.count)
            assert z == pytest.approx(1.959964, abs=1e-4)


def test_mcnemars_test_is_the_exact_binomial_one():
    assert PairedOutcomes(50, 0, 5, 45).p == pytest.approx(2 / 32)
    assert PairedOutcomes(50, 9, 1, 40).p == pytest.approx(2 * 11 / 1024)
    assert PairedOutcomes(50, 3, 3, 40).p == 1
    assert PairedOutcomes(10, 0, 0, 10).p == 1
    assert PairedOutcomes(0, 900, 700, 0).p < 1e-5


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_a_comparison_is_the_difference_of_the_shares_and_turns_round_with_the_methods(pairs):
    first, second = ([pair[i] for pair in pairs] for i in (0, 1))
    there, back = paired(first, second), paired(second, first)
    assert sum(there) == len(pairs)
    assert there.difference == pytest.approx(accuracy(first).fraction - accuracy(second).fraction)
    assert there.p == back.p
    assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]))
    assert there.interval[0] <= there.interval[1]


def test_the_interval_of_a_difference_covers_it_about_as_often_as_it_says():
    covered = total = 0.0
    n, probabilities = 30, (0.5, 0.2, 0.1, 0.2)
    for first in range(n + 1):
        for second in range(n + 1 - first):
            rest = n - first - second
            weight = math.factorial(n) / math.prod(map(math.factorial, (first, second, rest)))
            weight *= (
                probabilities[1] ** first * probabilities[2] ** second * (probabilities[0] + probabilities[3]) ** rest
            )
            low, high = PairedOutcomes(rest, first, second, 0).interval
            total += weight
            covered += weight * (low <= probabilities[1] - probabilities[2] <= high)
    assert total == pytest.approx(1)
    assert covered == pytest.approx(0.95, abs=0.02)


def test_marks_are_given_by_the_task():
    problems = [Problem("?", (), "18", ()), Problem("?", (), "5", ())]
    assert marks(make_task("gsm8k"), ["<<9*2=18>> #### 18.0", "six"], problems) == [True, False]


def test_unequal_numbers_of_answers_are_refused():
    with raises(ConfigError, subject="texts"):
        marks(make_task("gsm8k"), ["18"], [])
    with raises(ConfigError, subject="marks of the first"):
        paired([True], [])
