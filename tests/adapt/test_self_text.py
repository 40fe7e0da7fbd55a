"""Texts that a model samples itself: the same however often the job stops, and a floor for any model."""

import json

import numpy as np
import pytest

from adlm.adapt import open_left_to_right
from adlm.adapt.self_text import sample_self, self_data, self_texts
from adlm.data.packing import Padded
from adlm.errors import ConfigError, OutOfRange
from tests.adapt.models import left_to_right
from tests.convert.test_llama2c import files as llama2c  # noqa: F401
from tests.errors import raises


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_texts_are_resumed_by_parts_and_a_larger_number_begins_alike(tmp_path):
    model = left_to_right()
    sample_self(model, tmp_path / "a", 100, length=16)
    before = contents(tmp_path / "a")
    assert {"part-000000.jsonl", "part-000001.jsonl", "train.jsonl", "valid.jsonl"} < set(before)
    made = "".join(before[f"part-00000{part}.jsonl"] for part in (0, 1)).splitlines()[:100]
    written = [line for line in made if json.loads(line)["response"]]
    assert before["valid.jsonl"].splitlines() == written[19::20]
    assert sorted([*before["train.jsonl"].splitlines(), *written[19::20]]) == sorted(written)
    (tmp_path / "a" / "part-000001.jsonl").unlink()
    (tmp_path / "a" / "train.jsonl").unlink()
    log = []
    sample_self(model, tmp_path / "a", 100, length=16, log=log.append)
    assert contents(tmp_path / "a") == before
    assert len(log) == 1
    sample_self(model, tmp_path / "b", 40, length=16)
    assert before["train.jsonl"].startswith(contents(tmp_path / "b")["train.jsonl"])
    assert len(set(self_texts(tmp_path / "a"))) > 60
    sample_self(model, tmp_path / "c", 40, length=16, seed=1)
    assert contents(tmp_path / "c")["part-000000.jsonl"] != before["part-000000.jsonl"]


def test_a_text_that_has_not_ended_has_no_end_token(tmp_path):
    model = left_to_right()
    model.save(tmp_path / "model")
    sample_self(model, tmp_path / "self", 60, length=8)
    table = self_data(tmp_path / "self", str(tmp_path / "model"), Padded(8, begin=False)).prepare().train
    tokens = table.tokens(np.arange(len(table)))
    lengths, end = table.lengths(np.arange(len(table))), model.tokenizer.roles.eos_id
    texts = [json.loads(line)["response"] for line in (tmp_path / "self" / "train.jsonl").read_text().splitlines()]
    for row, length, text in zip(tokens, lengths, texts, strict=True):
        assert (end in row[:length]) == (len(text) < 8)
    assert {len(text) < 8 for text in texts} == {True, False}


def test_texts_of_another_model_or_too_few_are_refused(tmp_path):
    model = left_to_right()
    with raises(OutOfRange, subject="data"):
        sample_self(model, tmp_path, 3, length=16)
    sample_self(model, tmp_path, 20, length=16)
    with raises(ConfigError, subject=str(tmp_path)):
        sample_self(model, tmp_path, 20, length=12)


@pytest.mark.parametrize("count", [20, 64])
def test_no_more_texts_are_used_than_asked_for(tmp_path, count):
    sample_self(left_to_right(), tmp_path, count, length=8)
    assert len(list(self_texts(tmp_path))) <= count


def test_rows_begin_as_texts_do_for_tokenizers_that_put_a_space_first(llama2c, tmp_path):  # noqa: F811
    model = open_left_to_right(llama2c[0])
    model.save(tmp_path / "model")
    sample_self(model, tmp_path / "self", 20, length=8)
    table = self_data(tmp_path / "self", str(tmp_path / "model"), Padded(8, begin=False)).prepare().train
    texts = [json.loads(line)["response"] for line in (tmp_path / "self" / "train.jsonl").read_text().splitlines()]
    assert len(table) == len(texts)
    for row, text in zip(table.tokens(np.arange(len(table))), texts, strict=True):
        ids = model.tokenizer.encode(text)[:8]
        assert row[: len(ids)].tolist() == ids.tolist()
