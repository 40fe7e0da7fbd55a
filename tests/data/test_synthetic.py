import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.data.loader import LoaderConfig
from adlm.data.synthetic import Synthetic
from adlm.data.tokenizer import load_tokenizer
from adlm.errors import ConfigError

SMALL = Synthetic(vocabulary=200, length=32, count=50, seed=3)


@settings(deadline=None)
@given(st.integers(5, 3000), st.integers(4, 64), st.integers(1, 40), st.integers(0, 2**64 - 1))
def test_rows_are_words_of_the_tokenizer_at_any_size(vocabulary, length, count, seed):
    data = Synthetic(vocabulary, length, count, seed).prepare()
    assert data.tokenizer.vocab_size == vocabulary
    assert data.tokenizer.mask_id == vocabulary - 1
    assert data.packing.length == length
    for table in (data.train, data.valid):
        tokens = table.tokens(np.arange(len(table)))
        assert tokens.shape == (len(table), length)
        text = data.tokenizer.decode(tokens[-1])
        assert text.split() == [f"w{index}" for index in tokens[-1]]
        assert np.array_equal(data.tokenizer.encode(text), tokens[-1])
        assert 2 <= tokens.min() <= tokens.max() < vocabulary - 1  # neither special nor the mask
        assert table.valid(np.arange(len(table))).all()
    assert (len(data.train), len(data.valid)) == (count, math.ceil(count / 10))


def test_a_row_is_the_same_in_any_company():
    table = SMALL.prepare().train
    whole = table.tokens(np.arange(50))
    order = np.random.default_rng(0).permutation(50)
    assert np.array_equal(SMALL.prepare().train.tokens(order), whole[order])
    assert np.array_equal(replace(SMALL, count=4).prepare().train.tokens(np.arange(4)), whole[:4])
    assert table.tokens(np.arange(0)).shape == (0, 32)


def test_rows_splits_and_seeds_are_different():
    train, valid, *_ = SMALL.prepare()
    other = replace(SMALL, seed=4).prepare().train
    rows = np.concatenate([train.tokens(np.arange(50)), valid.tokens(np.arange(5)), other.tokens(np.arange(50))])
    assert len(np.unique(rows, axis=0)) == 105


def test_the_key_changes_with_whatever_changes_the_rows():
    changed = [replace(SMALL, **{name: 60}) for name in ("vocabulary", "length", "count", "seed")]
    tables = [table for config in (SMALL, *changed) for table in config.prepare()[:2]]
    assert len({table.key for table in tables}) == len(tables)
    assert SMALL.prepare().train.key == tables[0].key


def test_frequencies_fall_as_those_of_words_do():
    tokens = Synthetic(vocabulary=1003, length=1000, count=100).prepare().train.tokens(np.arange(100))
    counts = np.bincount(tokens.ravel(), minlength=1003)[2:1002]
    expected = tokens.size / np.arange(1, 1001) / (1 / np.arange(1, 1001)).sum()
    # Chi-square of 1000 words: 999 degrees of freedom, a standard deviation of 45.
    assert abs(((counts - expected) ** 2 / expected).sum() - 999) < 5 * 45


def test_the_tokenizer_can_be_stored(tmp_path):
    tokenizer = SMALL.prepare().tokenizer
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint
    assert tokenizer.encode("w17 never w2").tolist() == [17, 1, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_reads_it(workers):
    loader = LoaderConfig(10, workers=workers).build(SMALL.prepare().train)
    batch = next(iter(loader))
    assert torch.equal(batch.tokens, torch.from_numpy(SMALL.prepare().train.tokens(batch.index.numpy())))
    assert batch.frozen is None


@pytest.mark.parametrize(
    "sizes", [{"vocabulary": 4}, {"length": 3}, {"count": 0}, {"seed": -1}], ids=lambda sizes: next(iter(sizes))
)
def test_sizes_that_mean_nothing_are_refused(sizes):
    with pytest.raises(ConfigError):
        Synthetic(**sizes)
