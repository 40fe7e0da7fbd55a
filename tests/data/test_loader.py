from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adlm.data.loader import Loader, LoaderConfig, permuted, read_rows
from adlm.data.packing import Padded, Wrapped
from adlm.data.prepare import prepare
from adlm.data.tokenizer import characters
from adlm.errors import ConfigError, DataError
from tests.conftest import Texts
from tests.errors import raises


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    texts = Texts(tuple(chr(97 + i % 26) * (1 + i % 9) for i in range(103)))
    packing = Padded(12, begin=False, crop=True)
    return prepare(texts, "train", characters(), packing, cache=tmp_path_factory.mktemp("data"))


def take(loader: Loader, count: int):
    return [batch for batch, _ in zip(loader, range(count), strict=False)]


@given(st.integers(1, 5000), st.integers(0, 2**64))
def test_a_permutation_hits_every_row_once(size, key):
    assert sorted(permuted(np.arange(size), size, key)) == list(range(size))


def test_permutations_are_spread_evenly():
    # Over many keys every row should come first about equally often: chi-square with 9 degrees of freedom.
    firsts = Counter(int(permuted(np.arange(1), 10, key)[0]) for key in range(5000))
    statistic = sum((firsts[i] - 500) ** 2 / 500 for i in range(10))
    assert statistic < 30


def test_an_epoch_gives_every_row_once_and_the_next_another_order(shards):
    batches = take(LoaderConfig(10, seed=3).build(shards), 20)
    first, second = (torch.cat([b.index for b in batches[i : i + 10]]) for i in (0, 10))
    assert len(set(first.tolist())) == 100
    assert first.tolist() != second.tolist()
    assert torch.cat([b.sample_id for b in batches]).tolist() == list(range(200))


def test_without_shuffling_rows_come_in_their_order(shards):
    assert take(LoaderConfig(10, shuffle=False).build(shards), 1)[0].index.tolist() == list(range(10))


def test_ranks_share_the_batches_of_one(shards):
    config = LoaderConfig(10, seed=1)
    whole = take(config.build(shards), 12)
    parts = [take(config.build(shards, rank=rank, world_size=2), 12) for rank in range(2)]
    for step, batch in enumerate(whole):
        for name in ("tokens", "valid", "index", "sample_id"):
            joined = torch.cat([getattr(part[step], name) for part in parts])
            assert torch.equal(joined, getattr(batch, name))


@pytest.mark.parametrize("workers", [0, 2])
def test_state_is_exact_in_the_middle_of_an_epoch(shards, workers):
    config = LoaderConfig(10, seed=1, workers=workers)
    whole = take(LoaderConfig(10, seed=1).build(shards), 17)
    first = config.build(shards)
    iterator = iter(first)
    for _ in range(7):  # workers have read further ahead than this
        next(iterator)
    resumed = config.build(shards)
    resumed.load_state_dict(first.state_dict())
    for batch, expected in zip(take(resumed, 10), whole[7:], strict=True):
        assert torch.equal(batch.tokens, expected.tokens)
        assert torch.equal(batch.sample_id, expected.sample_id)


def test_padding_is_not_valid_unless_it_is_to_be_predicted(shards):
    batch = take(LoaderConfig(10, shuffle=False).build(shards), 1)[0]
    assert batch.valid.sum(-1).tolist() == [2 + i % 9 for i in range(10)]  # letters and the end token


def test_documents_are_told_apart_where_the_packing_says_so(tmp_path):
    source = Texts(("abc", "de", "f", "abcdef"))
    rows = {}
    for packing in (Wrapped(8), Wrapped(8, apart=True), Wrapped(8, framed=True, apart=True)):
        shards = prepare(source, "train", characters("abcdef"), packing, cache=tmp_path)
        rows[packing] = read_rows(shards, np.arange(1))
    plain, apart, framed = rows.values()
    assert plain.documents is None
    assert torch.equal(plain.tokens, apart.tokens)
    assert apart.documents[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 2]  # abc| de| f
    assert framed.documents[0].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]  # |abc| de|
    assert apart.segments is apart.documents or torch.equal(apart.segments, apart.documents)
    with raises(ConfigError, subject="apart"):
        Wrapped(8, separated=False, apart=True)


def test_given_positions_reach_the_batch(shards):
    class FirstGiven(type(shards)):
        def frozen(self, rows):
            return np.arange(self.length) < np.ones((len(rows), 1))

    assert read_rows(shards, np.arange(3)).frozen is None
    batch = read_rows(FirstGiven(shards.folder, shards.manifest), np.arange(3))
    assert batch.frozen.sum(-1).tolist() == [1, 1, 1]
    assert batch.scored.sum(-1).tolist() == [1, 2, 3]  # letters after the first, and the end token


def test_a_changed_setting_does_not_resume(shards):
    state = LoaderConfig(10).build(shards).state_dict()
    with raises(ConfigError, subject="batch"):
        LoaderConfig(5).build(shards).load_state_dict(state)
    with raises(ConfigError, subject="data"):
        LoaderConfig(10).build(shards).load_state_dict({**state, "data": "other"})


def test_impossible_batches_are_refused(shards):
    with raises(ConfigError, subject="batch"):
        LoaderConfig(5).build(shards, world_size=2)
    with pytest.raises(DataError, match=f"from {shards.folder.name}\n.*the data has 103 rows"):
        LoaderConfig(104).build(shards)
