"""Tokenizers that would make a text huge are refused before they do."""

import json

import pytest

from adlm.data.tokenizer import characters, load_tokenizer, train_bpe
from adlm.errors import DataError
from tests.errors import raises


def replaced(by: str, times: int) -> dict:
    return {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": by}] * times,
    }


@pytest.mark.parametrize("normalizer", [replaced("a" * 100, 1), replaced("aa", 40), replaced("a", 100)])
@pytest.mark.parametrize("in_folder", [True, False])
def test_a_normalizer_that_multiplies_text_is_refused(tmp_path, normalizer, in_folder):
    description = json.loads(characters().backend.to_str()) | {"normalizer": normalizer}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(description))
    with raises(DataError, subject="normalizer"):
        load_tokenizer(tmp_path if in_folder else file)


def test_usual_normalizers_are_read(tmp_path):
    description = json.loads(train_bpe(["a b c"], 300).backend.to_str())
    usual = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁▁"},
        {"type": "NFKC"},
    ]
    description["normalizer"] = {"type": "Sequence", "normalizers": usual}
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    assert load_tokenizer(tmp_path).encode("a").size
