import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ConfigError, DataError
from adlm.evaluate.comparison import compare, comparison_table
from adlm.evaluate.result import Figure, Result, read_result
from adlm.evaluate.statistics import paired
from tests.errors import raises

PROTOCOL = {"rows": {"length": 8}, "items": "rows", "estimator": {"draws": 8}}


def result(nats, tokens=None, **changes):
    items = {"nats": list(nats), **({} if tokens is None else {"tokens": list(tokens)})}
    made = Result("perplexity", {"name": "m"}, {"name": "d", "key": "k"}, PROTOCOL, 0, {}, items)
    return replace(made, **changes)


def test_the_difference_is_that_of_means_a_token_with_the_error_of_paired_differences():
    generator = np.random.default_rng(0)
    tokens = generator.integers(5, 50, 300)
    base = tokens * generator.normal(3, 1, 300)  # items differ far more than models
    first, second = base + tokens * generator.normal(0.1, 0.2, 300), base
    found = compare(result(first, tokens), result(second, tokens)).figures
    value, error = found["difference"].value, found["difference"].error
    low, high = found["difference"].interval
    assert (found["difference"].unit, found["items"].value) == ("nats per token", 300)
    assert value == pytest.approx((first.sum() - second.sum()) / tokens.sum())
    assert value == pytest.approx(found["first"].value - found["second"].value)
    assert error < 0.1 * np.std(base / tokens) / math.sqrt(300) * 5
    assert found["z"].value == pytest.approx(value / error)
    assert low < value < high
    assert (high - low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.15)
    turned = compare(result(second, tokens), result(first, tokens)).figures
    assert (turned["difference"].value, turned["z"].value) == (-value, -found["z"].value)
    assert turned["p"] == found["p"]


def test_the_p_value_and_the_interval_hold_what_they_promise():
    """Of comparisons of equals, about 5 % are significant, and as many intervals miss 0."""
    generator = np.random.default_rng(1)
    tokens = np.full(60, 10)
    probabilities = [paired(values, tokens.astype(float))[3] for values in generator.normal(0, 3, (1500, 60))]
    assert np.mean(np.array(probabilities) < 0.05) == pytest.approx(0.055, abs=0.02)  # a normal law for 59 degrees
    pairs = generator.normal(30, 3, (60, 2, 60))
    found = [compare(result(a, tokens), result(b, tokens), resamples=200).figures["difference"] for a, b in pairs]
    assert 0 <= np.mean([not each.interval[0] <= 0 <= each.interval[1] for each in found]) < 0.16


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20))
@settings(max_examples=25, deadline=None)
def test_a_result_does_not_differ_from_itself(values):
    found = compare(result(values), result(values), resamples=100).figures
    assert found["difference"] == Figure(0, 0, interval=(0, 0))
    assert (found["z"].value, found["p"].value) == (0, 1)


def test_a_certain_difference_has_no_doubt():
    assert paired(np.full(5, 2.0), np.ones(5)) == (2, 0, math.inf, 0)


def test_the_normal_law_is_two_sided():
    values = np.array([0.0, 2.0]) + 0.96  # mean 1.96, standard error 1
    assert paired(values, np.ones(2))[3] == pytest.approx(0.05, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"data": {"name": "e", "key": "l"}}, "data"),
        ({"protocol": {**PROTOCOL, "rows": {"length": 9}}}, "protocol.rows.length"),
        ({"protocol": {**PROTOCOL, "limit": 3}}, "protocol.limit"),
        ({"task": "zero-shot"}, "task"),
        ({"items": {"nats": [1.0, 2.0], "tokens": [1, 2]}}, "nats"),
        ({"items": {"nats": [1.0, 2.0, 3.0], "tokens": [1, 2, 4]}}, "tokens"),
        ({"items": {"nats": [1.0, math.inf, 3.0], "tokens": [1, 2, 3]}}, "nats"),
        ({"items": {"words": [1.0]}}, "items"),
    ],
)
def test_what_is_not_alike_is_refused_and_named(changes, subject):
    first = result([1.0, 2.0, 3.0], [1, 2, 3])
    with raises(DataError, subject=subject):
        compare(first, replace(first, **changes))


def test_estimators_may_differ_and_what_is_allowed_may_too():
    first = result([1.0, 2.0, 4.0])
    assert compare(first, replace(first, protocol={**PROTOCOL, "estimator": {"draws": 0}}))
    other = replace(first, protocol={**PROTOCOL, "rows": {"length": 9}})
    assert compare(first, other, allow=("length",))
    assert compare(first, other, allow=("rows",))


def test_any_items_of_the_same_name_are_compared_and_sizes_are_not():
    items = {"nats ptb": [1.0, 2.0], "tokens ptb": [1, 3], "bytes ptb": [5, 9], "entropy": [4.0, 8.0]}
    other = {**items, "entropy": [2.0, 7.0], "more": [1.0, 1.0]}
    found = compare(result([], items=items), result([], items=other))
    assert found.protocol["compared"] == ["nats ptb", "entropy"]
    assert found.figures["difference ptb"] == Figure(0, 0, unit="nats per token", interval=(0, 0))
    assert found.figures["difference entropy"].value == pytest.approx(1.5)
    alone = compare(result([], items=items), result([], items=other), items=["entropy"])
    assert alone.protocol["compared"] == ["entropy"]
    with raises(DataError, subject="more"):
        compare(result([], items=items), result([], items=other), items=["more"])


@pytest.mark.parametrize("options", [{"level": 1.0}, {"resamples": 3}])
def test_an_interval_needs_a_level_and_resamples(options):
    with raises(ConfigError, subject=next(iter(options))):
        compare(result([1.0, 2.0]), result([1.0, 2.0]), **options)


def test_the_table_is_markdown():
    first, second = (
        result(nats, [4, 4], model={"name": name}) for name, nats in (("a", [1.0, 2.0]), ("b", [1.0, 1.0]))
    )
    lines = comparison_table(compare(first, second)).split("\n")
    assert lines[0] == "| | a | b | difference | z | p | 95% interval | items |"
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| nats per token | 0.375 | 0.25 | 0.12 ± 0.12 |")


def test_what_was_stored_compares_as_what_was_measured(tmp_path):
    first, second = result([1.0, 2.5], [4, 4]), result([1.0, 1.25], [4, 4])
    for name, each in (("a", first), ("b", second)):
        each.save(tmp_path / f"{name}.json")
    stored = compare(*(tmp_path / f"{name}.json" for name in "ab"), out=tmp_path / "c.json")
    assert stored.figures == compare(first, second).figures
    assert read_result(tmp_path / "c.json").figures == stored.figures
