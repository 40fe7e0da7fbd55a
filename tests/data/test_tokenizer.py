import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models

from adlm.data.tokenizer import characters, load_tokenizer, train_bpe, train_words, with_roles
from adlm.errors import ConfigError, DataError, OutOfRange
from tests.errors import raises

BPE = train_bpe(["the quick brown fox jumps over the lazy dog"] * 5, 280)


@given(st.text())
def test_byte_level_bpe_gives_any_text_back(text):
    assert BPE.decode(BPE.encode(text)) == text


def test_a_written_mask_or_end_token_is_plain_text():
    for text in ("a [MASK] b", "a <|endoftext|> b"):
        ids = BPE.encode(text)
        assert BPE.decode(ids) == text
        assert BPE.mask_id not in ids
        assert BPE.roles.eos_id not in ids


def test_a_tokenizer_without_a_mask_gets_one_appended():
    assert BPE.mask_id == BPE.vocab_size - 1 == BPE.backend.get_vocab_size()
    assert BPE.token(BPE.mask_id) == "[MASK]"


def test_words_keep_the_space_before_them():
    words = train_words(["Once upon a time, there was a fox."])
    assert words.decode(words.encode("Once upon a time, there was a fox.")) == "Once upon a time, there was a fox."
    assert [words.token(i) for i in words.encode("Once upon")] == ["Once", " upon"]


@given(st.text(alphabet=" abcxyzé!\U0001f600", max_size=40))
def test_the_character_table_equals_the_tokenizer_it_stands_for(text):
    tokenizer = characters()
    assert tokenizer.encode(text).tolist() == tokenizer.backend.encode(text).ids


def test_text8_has_27_characters_and_three_special_tokens():
    tokenizer = characters()
    assert tokenizer.vocab_size == 30
    assert tokenizer.decode(tokenizer.encode("the quick fox")) == "the quick fox"


def test_saving_and_loading_keeps_ids_and_roles(tmp_path):
    BPE.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.roles == BPE.roles
    assert loaded.fingerprint == BPE.fingerprint
    assert np.array_equal(loaded.encode("the fox"), BPE.encode("the fox"))


def test_tokenizers_travel_to_worker_processes():
    assert pickle.loads(pickle.dumps(BPE)).fingerprint == BPE.fingerprint


def test_a_changed_vocabulary_changes_the_fingerprint():
    other = train_bpe(["the quick brown fox jumps over the lazy cat"] * 5, 280)
    assert other.fingerprint != BPE.fingerprint


def test_gpt2_from_its_two_files(shared, tmp_path):
    for name in ("encoder.json", "vocab.bpe"):
        shutil.copy(shared / "data/vocab" / name, tmp_path / name)
    gpt2 = load_tokenizer(tmp_path)
    assert (gpt2.vocab_size, gpt2.mask_id, gpt2.roles.eos_id) == (50258, 50257, 50256)
    assert gpt2.encode("Hello world").tolist() == [15496, 995]


def test_bert_from_vocab_txt_keeps_its_own_mask(shared):
    bert = load_tokenizer(shared / "data/vocab/bert-base-uncased-vocab.txt")
    assert (bert.vocab_size, bert.mask_id, bert.roles.bos_id, bert.roles.eos_id, bert.roles.pad_id) == (
        30522, 103, 101, 102, 0,
    )  # fmt: skip
    assert bert.encode("Hello World").tolist() == [7592, 2088]


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(DataError):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError):
        load_tokenizer(tmp_path)
    with pytest.raises(DataError):
        load_tokenizer("no/such-tokenizer")
    with raises(OutOfRange, subject="vocab_size"):
        train_bpe(["a"], 100)
    with raises(DataError, subject="text"):
        train_bpe([], 300)
    with raises(ConfigError, subject="eos"):
        with_roles(Backend(models.WordLevel({"a": 0}, unk_token="a")))
