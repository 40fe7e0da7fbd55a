import math
from dataclasses import replace

import numpy as np
import pytest
from adlm.evaluate.compare import compare, paired, table
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ConfigError, DataError
from adlm.evaluate.result import Figure, Result, read_result

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
    (found,) = compare(result(first, tokens), result(second, tokens))
    assert (found.item, found.per, found.count) == ("nats", "token", 300)
    assert found.value == pytest.approx((first.sum() - second.sum()) / tokens.sum())
    assert found.value == pytest.approx(found.first - found.second)
    assert found.error < 0.1 * np.std(base / tokens) / math.sqrt(300) * 5
    assert found.z == pytest.approx(found.value / found.error)
    assert found.low < found.value < found.high
    assert (found.high - found.low) / (2 * 1.96 * found.error) == pytest.approx(1, abs=0.15)
    (turned,) = compare(result(second, tokens), result(first, tokens))
    assert (turned.value, turned.z, turned.p) == (-found.value, -found.z, found.p)


def test_the_p_value_and_the_interval_hold_what_they_promise():
    """Of comparisons of equals, about 5 % are significant, and as many intervals miss 0."""
    generator = np.random.default_rng(1)
    tokens = np.full(60, 10)
    probabilities = [paired(values, tokens.astype(float))[3] for values in generator.normal(0, 3, (1500, 60))]
    assert np.mean(np.array(probabilities) < 0.05) == pytest.approx(0.055, abs=0.02)  # a normal law for 59 degrees
    pairs = generator.normal(30, 3, (60, 2, 60))
    found = [compare(result(a, tokens), result(b, tokens), resamples=200)[0] for a, b in pairs]
    assert 0 <= np.mean([not each.low <= 0 <= each.high for each in found]) < 0.16


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20))
@settings(max_examples=25, deadline=None)
def test_a_result_does_not_differ_from_itself(values):
    (found,) = compare(result(values), result(values), resamples=100)
    assert (found.value, found.z, found.p, found.low, found.high) == (0, 0, 1, 0, 0)
    assert found.per == "item"


def test_a_certain_difference_has_no_doubt():
    assert paired(np.full(5, 2.0), np.ones(5)) == (2, 0, math.inf, 0)


def test_the_normal_law_is_two_sided():
    values = np.array([0.0, 2.0]) + 0.96  # mean 1.96, standard error 1
    assert paired(values, np.ones(2))[3] == pytest.approx(0.05, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"name": "e", "key": "l"}}, r"data: d \(k\) and e \(l\)"),
        ({"protocol": {**PROTOCOL, "rows": {"length": 9}}}, "protocol.rows.length: 8 and 9"),
        ({"protocol": {**PROTOCOL, "limit": 3}}, "protocol.limit: None and 3"),
        ({"task": "zero-shot"}, "task: perplexity and zero-shot"),
        ({"items": {"nats": [1.0, 2.0], "tokens": [1, 2]}}, "3 and 2 items of nats"),
        ({"items": {"nats": [1.0, 2.0, 3.0], "tokens": [1, 2, 4]}}, "item 2 has 3 and 4 tokens"),
        ({"items": {"nats": [1.0, math.inf, 3.0], "tokens": [1, 2, 3]}}, "number 1 has 2.0 and inf"),
        ({"items": {"words": [1.0]}}, "no items that both have"),
    ],
)
def test_what_is_not_alike_is_refused_and_named(changes, message):
    first = result([1.0, 2.0, 3.0], [1, 2, 3])
    with pytest.raises(DataError, match=message):
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
    assert [(each.item, each.per) for each in found] == [("nats ptb", "token"), ("entropy", "item")]
    assert found[1].value == pytest.approx(1.5)
    assert [each.item for each in compare(result([], items=items), result([], items=other), items=["entropy"])] == [
        "entropy"
    ]
    with pytest.raises(DataError, match="no items more in both; in both: nats ptb, entropy"):
        compare(result([], items=items), result([], items=other), items=["more"])
    assert found[0].figures()["difference ptb"] == Figure(0, 0)


@pytest.mark.parametrize("options", [{"level": 1.0}, {"resamples": 3}])
def test_an_interval_needs_a_level_and_resamples(options):
    with pytest.raises(ConfigError, match="100 resamples or more"):
        compare(result([1.0, 2.0]), result([1.0, 2.0]), **options)


def test_the_table_is_markdown():
    lines = table(compare(result([1.0, 2.0], [4, 4]), result([1.0, 1.0], [4, 4])), "a", "b").split("\n")
    assert lines[0] == "| | a | b | difference | z | p | 95% interval | items |"
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| nats per token | 0.375 | 0.25 | 0.12 ± 0.12 |")


def test_what_was_stored_compares_as_what_was_measured(tmp_path):
    first, second = result([1.0, 2.5], [4, 4]), result([1.0, 1.25], [4, 4])
    for name, each in (("a", first), ("b", second)):
        each.save(tmp_path / f"{name}.json")
    stored = [read_result(tmp_path / f"{name}.json") for name in "ab"]
    assert compare(*stored) == compare(first, second)
