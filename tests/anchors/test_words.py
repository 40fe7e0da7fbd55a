import json
import pickle

import torch
from hypothesis import given
from hypothesis import strategies as st

from adlm.anchors.rules import AnchorRule
from adlm.anchors.words import ContentWords, is_content_word
from adlm.config import from_json, to_json
from adlm.data.tokenizer import train_bpe, train_words
from adlm.errors import ConfigError
from tests.anchors.batches import VOCAB, batches, marks_of
from tests.conftest import batch_of
from tests.errors import raises

TEXT = "The cat sat on the mat, and the other cat's hat didn't fit: 42 cats!"
TOKENIZER = train_words([TEXT])


def test_content_words_are_those_the_function_names():
    asked = []

    def short(text: str) -> bool:
        asked.append(text)
        return len(text.strip()) == 3

    ids = torch.from_numpy(TOKENIZER.encode(TEXT))[None]
    marks = ContentWords.from_tokenizer(TOKENIZER, short).mark(batch_of(ids))
    words = [TOKENIZER.token(i) for i in ids[0].tolist()]
    assert marks[0].tolist() == [len(word.strip()) == 3 for word in words]
    assert {" cat", " the", "The"} <= {word for word, mark in zip(words, marks[0], strict=True) if mark}
    assert len(asked) == TOKENIZER.vocab_size, "the function is asked once a type"


def test_tokens_with_a_role_are_no_content():
    rule = ContentWords.from_tokenizer(train_bpe([TEXT], 300), lambda text: True)
    roles = train_bpe([TEXT], 300).roles
    left_out = {roles.mask_id, roles.eos_id, roles.bos_id, roles.pad_id}
    assert {i for i, chosen in enumerate(rule.types().tolist()) if not chosen} == left_out


def test_function_words_marks_and_space_are_no_content_by_default():
    assert not any(map(is_content_word, ["", " ", "\n\n", " the", "The", ",", " --", "'s", "’t", " WITH"]))
    assert all(map(is_content_word, [" cat", "Cat", " 1984", "ing", " naïve", " кот", "猫"]))


@given(batches(), st.lists(st.booleans(), min_size=VOCAB, max_size=VOCAB))
def test_marks_are_those_of_the_table(batch, chosen):
    rule = ContentWords.from_types(torch.tensor(chosen))
    assert rule.mark(batch).tolist() == marks_of(batch, lambda row: [chosen[token] for token in row])


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_content_words_are_a_value(chosen):
    rule = ContentWords.from_types(torch.tensor(chosen))
    assert rule.types().tolist() == chosen
    same = from_json(AnchorRule, json.loads(json.dumps(to_json(rule))))
    assert same == rule
    assert hash(same) == hash(rule)
    assert pickle.loads(pickle.dumps(rule)) == rule
    other = ContentWords.from_types(~torch.tensor(chosen))
    assert other != rule
    assert repr(rule) == f"ContentWords({sum(chosen)} of {len(chosen)} types)"


def test_a_damaged_table_is_refused():
    for size, bits in ((9, "AA=="), (0, ""), (8, "no base64!"), (8, "é")):
        with raises(ConfigError, subject="bits"):
            ContentWords(size, bits)
