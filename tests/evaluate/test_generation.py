"""Figures of texts against plain computation, and samples that survive interruptions."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import DataError
from adlm.evaluate.judge import Judged
from adlm.evaluate.text_figures import (
    copies,
    copy_figures,
    distinct,
    figures,
    generative_perplexity,
    hashed_ngrams,
    repetition,
    token_entropy,
)
from adlm.evaluate.texts import CHUNK, draw_references, read_texts, write_samples
from tests.errors import raises

ROWS = st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=6)


def arrays(rows):
    return [np.array(row, np.int64) for row in rows]


def grams(row, n):
    return [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]


def test_perplexity_weighs_tokens_and_not_texts():
    found = generative_perplexity(np.array([2.0, 30.0]), np.array([1, 9]))
    assert found.value == pytest.approx(math.exp(3.2))


def test_the_error_of_the_perplexity_is_the_spread_of_repeated_draws():
    rng = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(400):
        tokens = rng.integers(5, 50, 60)
        nats = tokens * rng.normal(2, 0.3, 60) + rng.normal(0, 1, 60)
        found = generative_perplexity(nats, tokens)
        values.append(found.value)
        errors.append(found.error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.1)


def test_nothing_to_score_has_no_perplexity():
    with raises(DataError, subject="texts"):
        generative_perplexity(np.zeros(2), np.zeros(2, np.int64))


def test_entropy_is_0_for_one_word_and_the_logarithm_for_all_different():
    assert token_entropy(np.zeros(7, np.int64)) == 0
    assert token_entropy(np.arange(7)) == pytest.approx(math.log(7))
    assert token_entropy(np.array([0, 0, 1])) == pytest.approx(-(2 / 3 * math.log(2 / 3) + math.log(1 / 3) / 3))


@settings(deadline=None)
@given(ROWS, st.integers(1, 4))
def test_distinct_and_repetition_are_those_of_the_ngrams_themselves(rows, n):
    everything = [gram for row in rows for gram in grams(row, n)]
    found = distinct(arrays(rows), n)
    assert math.isnan(found) if not everything else found == len(set(everything)) / len(everything)
    for row in rows:
        if own := grams(row, n):
            assert repetition(np.array(row), n) == pytest.approx(1 - len(set(own)) / len(own))


@settings(deadline=None)
@given(st.lists(st.integers(0, 60_000), min_size=3, max_size=40), st.integers(1, 3))
def test_hashes_are_equal_where_ngrams_are(row, n):
    hashes, own = hashed_ngrams(np.array(row), n).tolist(), grams(row, n)
    assert len(hashes) == len(own)
    assert len(set(zip(hashes, own, strict=True))) == len(set(own)) == len(set(hashes))


@settings(max_examples=50, deadline=None)
@given(ROWS, st.lists(ROWS, max_size=3), st.integers(2, 5))
def test_copies_are_those_of_a_plain_search(rows, training, n):
    seen = {gram for documents in training for document in documents for gram in grams(document, n)}
    found = copies(arrays(rows), (arrays(documents) for documents in training), n=n)
    for row, fraction, longest in zip(rows, found.fraction, found.longest, strict=True):
        hits = [gram in seen for gram in grams(row, n)]
        assert math.isnan(fraction) if not hits else fraction == pytest.approx(np.mean(hits))
        runs = [len(run) for run in "".join("x" if hit else " " for hit in hits).split()]
        assert longest == (max(runs) + n - 1 if runs else 0)


def test_a_whole_copy_is_as_long_as_it_is():
    text = np.arange(100)
    found = copies([text[20:60], text[::-1].copy()], [[text]])
    assert found.fraction.tolist() == [1, 0]
    assert found.longest.tolist() == [40, 0]
    assert copy_figures(found)["longest_copy_of_all"].value == 40


def test_no_ngram_reaches_from_one_document_into_the_next():
    found = copies([np.arange(16)], [[np.arange(8), np.arange(8, 16)]])
    assert found.fraction[0] == pytest.approx(2 / 9)


def test_figures_take_empty_texts_for_what_they_are():
    rows = arrays([[], [1], [1, 2, 1, 2, 1, 2]])
    found = figures(Judged(rows, np.array([0.0, 0.0, 5.0]), np.array([0, 0, 5]), np.zeros((3, 0), np.float32), 1))
    assert found["perplexity"].value == pytest.approx(math.e)
    assert found["tokens"].value == pytest.approx(7 / 3)
    assert (found["empty"].value, found["cut"].value) == (1, 1)
    assert found["repetition_4"].value == pytest.approx(1 / 3)
    assert found["entropy"].value == pytest.approx(math.log(2) / 2)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 5))
def test_references_are_drawn_once_and_fewer_are_the_first_of_more(count, seed):
    documents = [f"text {i}" if i % 5 else " \n" for i in range(60)]
    drawn = draw_references(documents, count, seed=seed)
    assert len(set(drawn)) == count
    assert set(drawn) <= {text for text in documents if text.strip()}
    assert draw_references(iter(documents), 48, seed=seed)[:count] == drawn


def test_every_document_is_drawn_as_often_as_any_other():
    documents = [str(i) for i in range(10)]
    counts = np.zeros(10)
    for seed in range(2000):
        for text in draw_references(documents, 3, seed=seed):
            counts[int(text)] += 1
    # 600 each, with a standard deviation of about 20.5.
    assert np.abs(counts - 600).max() < 85


def test_more_references_than_there_are_texts_are_refused():
    with raises(DataError, subject="references"):
        draw_references(["a", " "], 2)


class Writer:
    def __init__(self, stop_after=None):
        self.calls, self.stop_after = [], stop_after

    def __call__(self, n, seed):
        if len(self.calls) == self.stop_after:
            raise KeyboardInterrupt
        self.calls.append((n, seed))
        return [f"text {i} of {seed}\n" for i in range(n)]


def test_writing_goes_on_after_the_last_whole_chunk(tmp_path):
    count, path = 3 * CHUNK + 5, tmp_path / "new" / "samples.jsonl"
    whole = write_samples(Writer(), count, path=tmp_path / "whole.jsonl", seed=2).texts
    with pytest.raises(KeyboardInterrupt):
        write_samples(Writer(stop_after=2), count, path=path, seed=2)
    with path.open("a") as file:
        file.write('{"text": "half a li')
    again = Writer()
    assert write_samples(again, count, path=path, seed=2).texts == whole
    assert again.calls == [(CHUNK, (2 << 20) + 2), (5, (2 << 20) + 3)]
    assert read_texts(path) == whole
    assert len(set(whole)) == count


def test_more_texts_begin_with_the_fewer_and_fewer_write_nothing(tmp_path):
    path = tmp_path / "samples.jsonl"
    few = write_samples(Writer(), CHUNK + 3, path=path).texts
    more = write_samples(Writer(), 2 * CHUNK, path=path).texts
    assert more[: CHUNK + 3] == few
    none = Writer()
    assert write_samples(none, 10, path=path).texts == few[:10]
    assert none.calls == []
    assert len(read_texts(path)) == 10


@pytest.mark.parametrize("change", [{"seed": 1}, {"made_of": {"steps": 2}}])
def test_texts_of_other_settings_are_replaced(tmp_path, change):
    path, again = tmp_path / "samples.jsonl", Writer()
    write_samples(Writer(), 5, path=path)
    write_samples(again, 5, path=path, **change)
    assert len(again.calls) == 1
    assert len(read_texts(path)) == 5


def test_seconds_are_those_of_writing_also_after_an_interruption(tmp_path):
    path = tmp_path / "samples.jsonl"
    first = write_samples(Writer(), 5, path=path)
    assert first.seconds > 0
    assert write_samples(Writer(), 5, path=path).seconds == pytest.approx(first.seconds)


def test_texts_come_a_line_or_an_object_each(tmp_path):
    (tmp_path / "a.txt").write_text("one\r\n\ntwo\n")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "one\ntwo", "x": 1}) + "\n" + json.dumps({"text": ""}) + "\n")
    assert read_texts(tmp_path / "a.txt") == ["one", "two"]
    assert read_texts(tmp_path / "a.jsonl") == ["one\ntwo", ""]
    assert read_texts(tmp_path / "a.jsonl", 1) == ["one\ntwo"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("none.txt", None), ("a.txt", "\n \n"), ("a.jsonl", '{"x": 1}\n')],
)
def test_files_without_texts_are_refused(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_text(content)
    with raises(DataError, subject=str(tmp_path / name)):
        read_texts(tmp_path / name)
