import pickle
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from adlm.anchors.rules import (
    AnchorRule,
    EveryToken,
    Given,
    NoToken,
    RandomFraction,
    RareInSequence,
    TypeRule,
    counts_in_row,
)
from adlm.config import from_json, to_json
from adlm.errors import DataError, OutOfRange
from adlm.types import Batch
from tests.anchors.batches import VOCAB, batches, marks_of
from tests.conftest import batch_of
from tests.errors import raises


@given(batches(), st.integers(0, 6))
def test_rare_tokens_are_those_a_count_finds(batch, most):
    expected = marks_of(batch, lambda row: [Counter(row)[token] <= most for token in row])
    assert RareInSequence(most).mark(batch).tolist() == expected


@given(batches())
def test_counts_in_a_row_are_those_a_counter_finds(batch):
    counts = counts_in_row(batch)
    for tokens, valid, found in zip(batch.tokens, batch.valid, counts, strict=True):
        row = tokens[valid].tolist()
        assert found[valid].tolist() == [Counter(row)[token] for token in row]


def test_given_anchors_are_those_of_the_data():
    batch = batch_of([[1, 2, 3]], torch.tensor([[True, True, False]]))
    marked = replace(batch, anchors=torch.tensor([[True, False, True]]))
    assert Given().mark(marked).tolist() == [[True, False, False]]
    with raises(DataError, subject="anchors"):
        Given().mark(batch)


@given(batches())
def test_every_token_is_every_valid_one_and_no_token_is_none(batch):
    assert torch.equal(EveryToken().mark(batch), batch.valid)
    assert torch.equal(NoToken().mark(batch), batch.valid & False)


def test_marks_equal_the_official_ones():
    expected = load_file(Path(__file__).resolve().parents[1] / "golden/adlm_tiny_expected.safetensors")
    for name, most in (("anchor_mask", 5), ("anchor_mask_threshold2", 2)):
        key = next(key for key in expected if key.endswith(f".{name}") or key == name)
        tokens = expected[key.removesuffix(name) + "x0"]
        assert torch.equal(RareInSequence(most).mark(batch_of(tokens)), expected[key].bool())


def draws(rows: list[int], length: int = 64) -> Batch:
    return replace(batch_of(torch.zeros(len(rows), length, dtype=torch.long)), sample_id=torch.tensor(rows))


def test_a_random_fraction_is_that_fraction():
    batch = draws(list(range(400)))
    for fraction in (0.0, 0.1, 0.5, 1.0):
        marks = RandomFraction(fraction, seed=3).mark(batch).double()
        deviation = (fraction * (1 - fraction) / marks.numel()) ** 0.5
        assert abs(marks.mean() - fraction) <= 4 * deviation
        if fraction == 0.5:  # positions and rows are independent
            assert abs((marks[:, 1:] == marks[:, :-1]).double().mean() - 0.5) < 4 * deviation
            assert abs((marks[1:] == marks[:-1]).double().mean() - 0.5) < 4 * deviation


@given(batches(), st.floats(0, 1), st.integers(0, 5))
def test_random_marks_of_a_row_depend_on_its_number_and_not_on_its_batch(batch, fraction, seed):
    rule = RandomFraction(fraction, seed)
    marks = rule.mark(batch)
    assert not (marks & ~batch.valid).any()
    for i in range(len(batch.tokens)):
        alone = Batch(
            tokens=batch.tokens[i:][:1],
            valid=batch.valid[i:][:1],
            index=torch.tensor([7]),
            sample_id=batch.sample_id[i:][:1],
        )
        assert torch.equal(rule.mark(alone), marks[i : i + 1])


def test_random_marks_change_with_the_seed_and_the_draw():
    rule, batch = RandomFraction(0.5, seed=1), draws([0, 1])
    marks = rule.mark(batch)
    assert not torch.equal(marks[0], marks[1])
    assert not torch.equal(marks, RandomFraction(0.5, seed=2).mark(batch))
    assert torch.equal(rule.mark(draws([0, 1], length=16)), marks[:, :16]), "padding a row moved its marks"


def test_shares_that_are_none_are_refused():
    for fraction in (-0.1, 1.1, float("nan")):
        with raises(OutOfRange, subject="fraction"):
            RandomFraction(fraction)


@dataclass(frozen=True)
class Odd(TypeRule):
    """Types with an odd number, and a record of how often the table was made."""

    name: str = ""

    def types(self):
        MADE.append(self)
        return torch.arange(VOCAB) % 2 == 1


MADE: list[TypeRule] = []


@given(batches())
def test_a_rule_over_types_marks_what_its_table_says(batch):
    assert Odd().mark(batch).tolist() == marks_of(batch, lambda row: [token % 2 == 1 for token in row])


def test_the_table_of_a_rule_over_types_is_made_once():
    rule = Odd(name="counted")
    for _ in range(3):
        rule.mark(batch_of([[0, 1]]))
    assert MADE.count(rule) == 1
    assert rule.types_on(torch.device("cpu")) is Odd(name="counted").types_on(torch.device("cpu"))
    assert pickle.loads(pickle.dumps(rule)) == rule


@pytest.mark.parametrize("token", [-1, VOCAB, VOCAB + 1000])
def test_a_token_that_a_table_does_not_know_is_named(token):
    batch = replace(batch_of([[0, 1], [1, token]]), index=torch.tensor([40, 41]))
    with raises(DataError, subject="row 41"):
        Odd().mark(batch)
    hidden = replace(batch, valid=torch.tensor([[True, True], [True, False]]))
    assert Odd().mark(hidden).tolist() == [[False, True], [True, False]]


def test_a_batch_without_tokens_has_no_marks():
    for shape in ((0, 4), (3, 0)):
        batch = batch_of(torch.zeros(shape, dtype=torch.long))
        for rule in (RareInSequence(), EveryToken(), NoToken(), RandomFraction(0.5), Odd()):
            assert rule.mark(batch).shape == shape


@pytest.mark.parametrize("rule", [RareInSequence(3), Given(), EveryToken(), NoToken(), RandomFraction(0.25, seed=9)])
def test_rules_survive_json(rule):
    assert from_json(AnchorRule, to_json(rule)) == rule
