import json
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from adlm.anchors.corpus import RareInCorpus, TfIdf
from adlm.anchors.rules import AnchorRule, TypeRule
from adlm.config import from_json, to_json
from adlm.data.corpus_table import TABLE, CorpusTable
from adlm.errors import ConfigError, DamagedData, DataError
from tests.anchors.batches import VOCAB, batches, marks_of
from tests.conftest import batch_of
from tests.errors import raises

MASK = VOCAB - 1
DOCUMENTS = 8
# Tables are few, since a rule reads its table from a file; batches are many.
TABLES = [
    CorpusTable(np.array(counts), np.array(documents), sum(counts), DOCUMENTS, "key", "texts (train)", MASK)
    for counts, documents in [
        ([50, 30, 10, 9, 1, 0], [8, 4, 2, 1, 1, 0]),
        ([10, 10, 10, 10, 0, 0], [1, 2, 4, 8, 0, 0]),
        ([9, 0, 0, 0, 0, 0], [8, 0, 0, 0, 0, 0]),
    ]
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tables")
    for i, table in enumerate(TABLES):
        table.write(folder / f"{i}.safetensors")
    return [folder / f"{i}.safetensors" for i in range(len(TABLES))]


which = st.integers(0, len(TABLES) - 1)


@given(batches(), which, st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.3, 1.0]))
def test_rare_types_are_those_below_the_fraction(paths, batch, i, fraction):
    table = TABLES[i]

    def rare(token: int) -> bool:
        return token != MASK and int(table.counts[token]) / table.tokens < fraction

    marks = RareInCorpus.from_table(paths[i], fraction=fraction).mark(batch)
    assert marks.tolist() == marks_of(batch, lambda row: [rare(token) for token in row])


@given(batches(), which, st.integers(0, VOCAB + 2))
def test_rare_types_are_those_beyond_the_rank(paths, batch, i, rank):
    order = sorted(range(VOCAB), key=lambda token: (-TABLES[i].counts[token], token))
    rare = [token for token in order[rank:] if token != MASK]
    rule = RareInCorpus.from_table(paths[i], rank=rank)
    assert rule.mark(batch).tolist() == marks_of(batch, lambda row: [token in rare for token in row])
    assert isinstance(rule, TypeRule)
    assert rule.types().nonzero()[:, 0].tolist() == sorted(rare)


def plain_scores(table: CorpusTable, row: list[int]) -> list[float]:
    rarity = np.log(table.documents / np.maximum(table.document_counts, 1)).tolist()
    return [Counter(row)[token] / len(row) * rarity[token] for token in row]


@given(batches(), which, st.integers(0, 100))
@example(batch_of([[3]]), 0, 1)
@example(batch_of([[9, 9, 3]], torch.tensor([[False, False, True]])), 0, 50)
@example(batch_of([[1, 3]], torch.tensor([[False, False]])), 0, 50)
def test_tf_idf_marks_the_highest_scores_of_each_row(paths, batch, i, percent):
    def highest(row: list[int]) -> list[bool]:
        scores = plain_scores(TABLES[i], row)
        output_mask = -(-percent * len(row) // 100)  # ceil(share * length), in integers
        cut = sorted(scores, reverse=True)[output_mask - 1] if output_mask else np.inf
        return [score > 0 and score >= cut for score in scores]

    marks = TfIdf.from_table(paths[i], fraction=percent / 100).mark(batch)
    assert marks.tolist() == marks_of(batch, highest)


@given(batches(), which, st.sampled_from([-1.0, 0.0, 0.05, 0.2, 1.0, 3.0]))
def test_tf_idf_marks_the_scores_above_a_threshold(paths, batch, i, above):
    marks = TfIdf.from_table(paths[i], above=above).mark(batch)
    floor = max(above, 0)
    assert marks.tolist() == marks_of(batch, lambda row: [s > floor for s in plain_scores(TABLES[i], row)])


def test_tf_idf_prefers_what_is_frequent_here_and_rare_elsewhere(paths):
    # Type 0 is in every document, 3 and 4 in one of eight: 3 stands here twice.
    batch = batch_of([[0, 3, 0, 4, 3, 0, 0, 1]])
    rule = TfIdf.from_table(paths[0], fraction=0.25)
    assert rule.mark(batch)[0].nonzero()[:, 0].tolist() == [1, 4]
    assert rule.scores(batch)[0, 1].item() == pytest.approx(2 / 8 * np.log(8))


def test_marks_of_a_row_do_not_depend_on_its_batch_or_padding(paths):
    row = [0, 3, 0, 4, 3, 0, 0, 1]
    other = [5, 5, 5, 5, 4, 4, 4, 4]
    rules = [TfIdf.from_table(paths[0], fraction=0.4), RareInCorpus.from_table(paths[0], rank=2)]
    for rule in rules:
        alone = rule.mark(batch_of([row]))[0]
        assert torch.equal(rule.mark(batch_of([other, row]))[1], alone)
        padded = batch_of([[7, 7, *row, 7]], torch.tensor([[False] * 2 + [True] * 8 + [False]]))
        assert torch.equal(rule.mark(padded)[0, 2:-1], alone)


def test_a_batch_without_tokens_has_no_marks(paths):
    for shape in ((0, 4), (3, 0)):
        for rule in (TfIdf.from_table(paths[0], fraction=0.5), RareInCorpus.from_table(paths[0], rank=2)):
            assert rule.mark(batch_of(torch.zeros(shape, dtype=torch.long))).shape == shape


def test_corpus_rules_are_values(paths):
    for rule in (
        RareInCorpus.from_table(paths[0], fraction=0.1),
        RareInCorpus.from_table(paths[0], rank=3),
        TfIdf.from_table(paths[0], fraction=0.1),
        TfIdf.from_table(paths[0], above=0.01),
    ):
        same = from_json(AnchorRule, json.loads(json.dumps(to_json(rule))))
        assert same == rule
        assert hash(same) == hash(rule)
        assert pickle.loads(pickle.dumps(rule)) == rule


def test_a_rule_is_made_from_a_prepared_folder_and_found_from_any_other(tmp_path, monkeypatch):
    TABLES[0].write(tmp_path / TABLE)
    monkeypatch.chdir(tmp_path)
    rule = TfIdf.from_table(".", fraction=0.5)
    monkeypatch.chdir("/")
    assert rule == TfIdf.from_table(tmp_path, fraction=0.5)
    assert rule.checksum == TABLES[0].checksum


def test_a_rule_refuses_another_table_than_its_own(tmp_path):
    path = tmp_path / TABLE
    TABLES[0].write(path)
    rules = [RareInCorpus.from_table(path, rank=2), TfIdf.from_table(path, fraction=0.5)]
    TABLES[1].write(path)
    for rule in rules:
        with pytest.raises(DamagedData) as caught:
            rule.mark(batch_of([[0]]))
        assert TABLES[0].checksum[:12] in caught.value.fix
    path.unlink()
    for rule in rules:
        with raises(DataError):
            rule.mark(batch_of([[0]]))


def test_a_token_that_the_table_does_not_know_is_named(paths):
    for rule in (RareInCorpus.from_table(paths[0], rank=2), TfIdf.from_table(paths[0], fraction=0.5)):
        with raises(DataError, subject="row 0"):
            rule.mark(batch_of([[0, VOCAB]]))


@pytest.mark.parametrize(
    ("rule", "thresholds", "subject"),
    [
        (RareInCorpus, {}, "RareInCorpus"),
        (RareInCorpus, {"fraction": 0.1, "rank": 3}, "RareInCorpus"),
        (RareInCorpus, {"fraction": 1.5}, "fraction"),
        (RareInCorpus, {"rank": -1}, "rank"),
        (TfIdf, {}, "TfIdf"),
        (TfIdf, {"fraction": -0.5}, "fraction"),
    ],
)
def test_thresholds_that_mean_nothing_are_refused(rule, thresholds, subject):
    with raises(ConfigError, subject=subject):
        rule(table="table", checksum="", **thresholds)
