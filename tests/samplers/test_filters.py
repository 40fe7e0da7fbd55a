"""Filters against slow and plain references."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ConfigError, OutOfRange
from adlm.randomness import Noise
from adlm.samplers import (
    Allowed,
    Ancestral,
    Banned,
    Canvas,
    FirstHitting,
    Forced,
    MinP,
    Ordered,
    RepetitionPenalty,
    Temperature,
    TopK,
    TopP,
)
from adlm.samplers.filters import Sites
from tests.conftest import TableModel
from tests.errors import raises
from tests.samplers.processes import MASK, VOCABULARY, inconsistent

# Few values, so that equal ones are frequent.
row_of_logits = st.lists(
    st.one_of(st.integers(-4, 4).map(float), st.just(-math.inf), st.floats(-20, 20, width=32)), min_size=2, max_size=12
).filter(lambda row: max(row) > -math.inf)


def filtered(each, row, *, tokens=(0,), position=0):
    logits = torch.tensor([row, row[::-1]], dtype=torch.float64)
    sites = Sites(torch.tensor([tokens, tokens]), torch.tensor([0, 1]), torch.tensor([position, position]))
    kept = logits.clone()
    out = each(logits, sites)
    assert torch.equal(logits, kept), "filters do not write into what they are given"
    return out[0].tolist()


def ranked(row):
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def only(row, tokens):
    return [value if token in tokens else -math.inf for token, value in enumerate(row)]


def fractions(row):
    total = math.fsum(math.exp(value) for value in row)
    return [math.exp(value) / total for value in row]


@settings(max_examples=60, deadline=None)
@given(row_of_logits, st.integers(1, 14))
def test_top_k_keeps_the_first_k_of_a_full_sort(row, k):
    assert filtered(TopK(k), row) == only(row, ranked(row)[:k])


@settings(max_examples=60, deadline=None)
@given(row_of_logits)
def test_temperature_0_takes_the_likeliest_token(row):
    assert filtered(Temperature(0.0), row) == only(row, [row.index(max(row))])


@settings(max_examples=60, deadline=None)
@given(row_of_logits, st.floats(0.05, 20))
def test_temperature_divides(row, value):
    assert filtered(Temperature(value), row) == pytest.approx([x / value for x in row])


@settings(max_examples=60, deadline=None)
@given(row_of_logits, st.floats(0.01, 0.99), st.booleans())
def test_top_p_keeps_what_a_full_sort_keeps_by_either_rule(row, p, keep_crossing):
    fraction, kept, before = fractions(row), [], 0.0
    for token in ranked(row):
        after = before + fraction[token]
        if abs(after - p) < 1e-9 or abs(before - p) < 1e-9:
            return  # rounding decides
        if not kept or (before < p if keep_crossing else after <= p):
            kept.append(token)
        before = after
    assert filtered(TopP(p, keep_crossing), row) == only(row, kept)


@pytest.mark.parametrize("keep_crossing", [True, False])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0])
def test_top_p_of_a_large_vocabulary_is_that_of_a_full_sort(spread, p, keep_crossing):
    """The sort begins with the largest few hundred and goes on only where they are not enough."""
    logits = spread * torch.randn(3, 3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = TopP(p, keep_crossing)(logits, Sites(*[torch.zeros(3, 1, dtype=torch.long)] * 3))
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    after = values.softmax(-1).cumsum(-1)
    kept = (after - values.softmax(-1) < p) if keep_crossing else after <= p
    kept[:, 0] = True
    differing = ((ours > -math.inf) != torch.zeros_like(kept).scatter(-1, order, kept)).sum()
    assert differing <= (3 if spread == 0 else 0)  # where all are equal, p may fall on a border
    numbers = ours[0].isfinite().nonzero()[:, 0]
    assert spread > 0 or torch.equal(numbers, torch.arange(len(numbers)))


def test_the_two_rules_of_top_p_differ_by_the_crossing_token():
    row = [math.log(x) for x in (0.5, 0.3, 0.15, 0.05)]
    assert filtered(TopP(0.7, keep_crossing=True), row) == only(row, [0, 1])
    assert filtered(TopP(0.7, keep_crossing=False), row) == only(row, [0])
    assert filtered(TopP(0.1, keep_crossing=False), row) == only(row, [0])
    assert filtered(TopP(1.0), row) == row


@settings(max_examples=60, deadline=None)
@given(row_of_logits, st.floats(0.001, 1))
def test_min_p_keeps_tokens_by_their_ratio_to_the_likeliest(row, p):
    fraction = fractions(row)
    ratios = [x / max(fraction) for x in fraction]
    if any(abs(ratio - p) < 1e-9 for ratio in ratios if ratio != 1):
        return
    assert filtered(MinP(p), row) == only(row, [token for token, ratio in enumerate(ratios) if ratio >= p])


@settings(max_examples=60, deadline=None)
@given(row_of_logits, st.floats(0.5, 3), st.data())
def test_the_repetition_penalty_touches_what_stands_in_the_row_once(row, penalty, data):
    present = data.draw(st.lists(st.integers(0, len(row) - 1), min_size=1, max_size=6))
    expected = [x if token not in present else x / penalty if x > 0 else x * penalty for token, x in enumerate(row)]
    assert filtered(RepetitionPenalty(penalty), row, tokens=present) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(row_of_logits, st.data())
def test_banned_and_allowed_tokens(row, data):
    some = tuple(data.draw(st.lists(st.integers(0, len(row) - 1), max_size=5)))
    assert filtered(Banned(some), row) == only(row, [token for token in range(len(row)) if token not in some])
    assert filtered(Allowed(some), row) == only(row, some)


@settings(max_examples=60, deadline=None)
@given(row_of_logits, st.data())
def test_a_forced_token_is_drawn_at_its_place_alone_even_if_it_was_excluded(row, data):
    token = data.draw(st.integers(0, len(row) - 1))
    there, elsewhere = (filtered(Forced(2, token), row, position=position) for position in (2, 1))
    assert [i for i, x in enumerate(there) if x > -math.inf] == [token]
    assert elsewhere == row


def test_filters_hold_for_what_is_written():
    process, canvas = inconsistent(), Canvas.blank(300, 3, MASK)

    def write(*filters):
        return FirstHitting(filters).sample(process.model, canvas, noise=Noise(0)).tokens

    assert not (write(Banned((1,))) == 1).any()
    assert (write(Allowed((0, 2))) != 1).all()
    assert (write(Forced(1, 2))[:, 1] == 2).all()
    assert len(write(Forced(1, 2))[:, 0].unique()) == 3
    repeated = [(write(*filters)[:, 0] == write(*filters)[:, 1]).sum() for filters in ((), (RepetitionPenalty(20.0),))]
    assert repeated[0] > repeated[1]


@pytest.mark.parametrize(
    ("filters", "names"),
    [((Allowed(()),), "Allowed"), ((Temperature(2.0), Banned((0, 1, 2))), "Temperature, Banned")],
)
def test_where_nothing_is_left_the_error_says_what_removed_it(filters, names):
    canvas = Canvas.infilling([[1, 1, 1], [1, MASK, 1]], MASK)
    for sampler in (Ancestral(filters, steps=2), Ordered(filters)):
        with raises(ConfigError, subject=names) as error:
            sampler.sample(inconsistent().model, canvas, noise=Noise(0))
        assert "position 1 of row 1" in str(error.value)


@pytest.mark.parametrize("filters", [(), (TopK(1),), (TopP(0.5),), (Banned((0,)),), (Forced(1, 1),)], ids=repr)
@pytest.mark.parametrize("nonsense", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused_with_their_place(nonsense, filters):
    def table(tokens):
        logits = torch.zeros(*tokens.shape, 4)
        logits[tokens[:, 0] == 2, 1, 0] = nonsense
        return logits

    canvas = Canvas.infilling([[1, MASK, 1], [2, MASK, 1]], MASK)
    with raises(ConfigError, subject="logits") as error:
        Ancestral(filters, steps=1).sample(TableModel(VOCABULARY, table), canvas, noise=Noise(0))
    assert "position 1 of row 1" in str(error.value)


def test_the_mask_cannot_be_forced():
    """Samplers that go on while there are blanks would never end."""
    with raises(ConfigError, subject="Forced.token"):
        Ordered((Forced(0, MASK),)).sample(inconsistent().model, Canvas.blank(1, 3, MASK), noise=Noise(0))


@pytest.mark.parametrize(
    ("make", "subject"),
    [
        (lambda: Temperature(-0.1), "temperature"),
        (lambda: Temperature(math.nan), "temperature"),
        (lambda: TopK(0), "top_k"),
        (lambda: TopP(0.0), "top_p"),
        (lambda: TopP(1.1), "top_p"),
        (lambda: MinP(1.5), "min_p"),
        (lambda: RepetitionPenalty(0.0), "repetition_penalty"),
        (lambda: filtered(Banned((7,)), [0.0, 1.0]), "tokens to ban"),
        (lambda: filtered(Allowed((-1,)), [0.0, 1.0]), "tokens to allow"),
        (lambda: filtered(Forced(0, 2), [0.0, 1.0]), "tokens to force"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(make, subject):
    with raises(OutOfRange, subject=subject):
        make()
