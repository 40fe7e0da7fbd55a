import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.anchors.positions import AtPositions
from adlm.data.anchored_process import FIRST, AnchoredProcess, at_the_back, at_the_front, spread
from adlm.data.loader import LoaderConfig, read_rows
from adlm.errors import ConfigError, DataError
from adlm.models.network import Vocabulary
from adlm.train.workload import known_vocabulary, row_length
from tests.conftest import batch_of
from tests.errors import raises

SMALL = AnchoredProcess(values=3, length=6, anchors=(1, 4), count=50, held_out=20, seed=3, law=5)


@st.composite
def processes(draw: st.DrawFn) -> AnchoredProcess:
    """Small enough to enumerate, with anchors anywhere and in any order."""
    values, length = draw(st.integers(2, 3)), draw(st.integers(4, 6))
    anchors = draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=3, unique=True))
    concentration, zipf = draw(st.sampled_from([0.1, 0.5, 2.0])), draw(st.sampled_from([0.0, 1.0]))
    return AnchoredProcess(values, length, tuple(anchors), concentration, zipf, draw(st.integers(0, 99)))


def all_rows(process):
    return np.array(list(itertools.product(range(process.values), repeat=process.length)))


@settings(deadline=None, max_examples=30)
@given(processes())
def test_the_entropy_and_the_marginals_are_those_of_all_rows_enumerated(process):
    law, rows = process.exact(), all_rows(process)
    nats = law.nats(rows)
    probabilities = np.exp(-nats)
    assert probabilities.sum() == pytest.approx(1)
    seen = probabilities > 0
    assert law.entropy == pytest.approx((probabilities * nats)[seen].sum())
    apart = 0.0
    for place in range(process.length):
        marginal = np.bincount(rows[:, place], probabilities, process.values)
        apart -= (marginal * np.log(marginal)).sum()
    assert law.apart == pytest.approx(apart)


def test_anchors_are_independent_and_fall_as_zipf_says():
    process = AnchoredProcess(3, 5, (0, 3), zipf=1.0)
    rows, probabilities = all_rows(process), np.exp(-process.exact().nats(all_rows(process)))
    joint = np.bincount(3 * rows[:, 0] + rows[:, 3], probabilities, 9).reshape(3, 3)
    alone = np.array([6, 3, 2]) / 11
    assert np.allclose(joint, np.outer(alone, alone))


def test_held_out_rows_cost_the_entropy_under_the_true_law():
    process = replace(SMALL, held_out=5_000)
    for split in ("valid", "test"):
        nats = process.exact().nats(process.rows(split).values(np.arange(5_000)))
        assert abs(nats.mean() - process.exact().entropy) < 5 * nats.std() / math.sqrt(5_000)


def test_rows_are_drawn_from_the_law():
    process = replace(SMALL, concentration=2.0, values=2, length=5, anchors=(1,), count=10_000)
    rows = process.rows("train").values(np.arange(10_000))
    counts = np.bincount(rows @ 2 ** np.arange(5)[::-1], minlength=32)
    expected = 10_000 * np.exp(-process.exact().nats(all_rows(process)))
    # Chi-square with 31 degrees of freedom: a standard deviation of 7.9.
    assert ((counts - expected) ** 2 / expected).sum() < 31 + 5 * 7.9


def test_other_tokens_are_independent_given_the_anchors_and_not_without_them():
    process = AnchoredProcess(3, 6, (1, 4), concentration=0.5, count=10_000)
    rows = process.rows("train").values(np.arange(10_000))
    context = 3 * rows[:, 1] + rows[:, 4]

    def dependence(chosen):
        """Chi-square of positions 0 and 5 against the product of their frequencies, and its degrees of freedom."""
        counts = np.bincount(3 * chosen[:, 0] + chosen[:, 5], minlength=9).reshape(3, 3)
        expected = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
        seen = expected > 5
        return ((counts - expected)[seen] ** 2 / expected[seen]).sum()

    given_anchors = sum(dependence(rows[context == number]) for number in range(9))
    assert given_anchors < 36 + 5 * math.sqrt(2 * 36)
    assert dependence(rows) > 300


def test_a_row_is_the_same_in_any_company():
    table = SMALL.rows("train")
    whole = table.tokens(np.arange(50))
    order = np.random.default_rng(0).permutation(50)
    assert np.array_equal(SMALL.prepare().train.tokens(order), whole[order])
    assert np.array_equal(replace(SMALL, count=4).prepare().train.tokens(np.arange(4)), whole[:4])
    assert table.tokens(np.arange(0)).shape == (0, 6)


def test_splits_and_seeds_have_different_rows_of_one_law():
    tables = [config.rows(split) for config in (SMALL, replace(SMALL, seed=4)) for split in ("train", "valid", "test")]
    rows = [table.values(np.arange(20)) for table in tables]
    for a, b in itertools.combinations(rows, 2):
        assert not np.array_equal(a, b)
    assert all(np.isfinite(SMALL.exact().nats(each)).all() for each in rows)
    assert [len(table) for table in tables[:3]] == [50, 20, 20]


def test_the_key_changes_with_whatever_changes_the_rows():
    changed = {"values": 4, "length": 7, "anchors": (1, 3), "concentration": 0.5, "zipf": 1.0, "law": 6, "seed": 4}
    configs = [SMALL, *(replace(SMALL, **{name: value}) for name, value in changed.items())]
    keys = {config.rows(split).key for config in configs for split in ("train", "valid", "test")}
    assert len(keys) == 3 * len(configs)
    assert SMALL.rows("train").key in keys


def test_where_anchors_stand_does_not_change_the_entropy():
    entropies = {
        round(replace(SMALL, anchors=place(2, 6)).exact().entropy, 9) for place in (spread, at_the_front, at_the_back)
    }
    assert len(entropies) == 1


@given(st.integers(1, 8), st.integers(8, 40))
def test_positions_are_as_many_as_asked_for_and_in_the_row(count, length):
    for placing in (spread, at_the_front, at_the_back):
        positions = placing(count, length)
        assert len(set(positions)) == count
        assert min(positions) >= 0
        assert max(positions) < length
    gaps = np.diff([-1, *spread(count, length), length])
    assert max(gaps[1:-1], default=0) - min(gaps[1:-1], default=0) <= 1


def test_rows_are_words_of_the_tokenizer_and_a_loader_reads_them():
    data = SMALL.prepare()
    batch = next(iter(LoaderConfig(10).build(data.train)))
    assert batch.tokens.min() >= FIRST
    assert batch.tokens.max() < data.tokenizer.mask_id == SMALL.vocabulary - 1
    text = data.tokenizer.decode(batch.tokens[0].numpy())
    assert data.tokenizer.encode(text).tolist() == batch.tokens[0].tolist()
    assert data.packing.length == row_length(SMALL) == 6
    assert known_vocabulary(SMALL) == Vocabulary(data.tokenizer.vocab_size, data.tokenizer.mask_id)


def test_the_rule_of_positions_marks_the_anchors_and_no_padding():
    batch = read_rows(SMALL.rows("train"), np.arange(4))
    marks = AtPositions(SMALL.anchors).mark(batch)
    assert marks.nonzero()[:, 1].tolist() == [1, 4] * 4
    padded = batch_of([[2, 3, 4, 5]], torch.tensor([[True, True, False, False]]))
    assert AtPositions((1, 2)).mark(padded).tolist() == [[False, True, False, False]]
    with raises(DataError, subject="positions"):
        AtPositions((4,)).mark(padded)
    with raises(ConfigError, subject="positions"):
        AtPositions((-1,))


@pytest.mark.parametrize(
    "settings",
    [
        {"values": 1},
        {"length": 3, "anchors": (1,)},
        {"anchors": ()},
        {"anchors": (1, 1)},
        {"anchors": (6,)},
        {"anchors": (-1,)},
        {"concentration": 0.0},
        {"count": 0},
        {"seed": -1},
        {"values": 1000, "anchors": (0, 1, 2)},
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(settings):
    with raises(ConfigError, subject=next(iter(settings))):
        replace(SMALL, **settings)
