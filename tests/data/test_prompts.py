import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.data.loader import LoaderConfig
from adlm.data.prompts import Prompts
from adlm.data.tokenizer import characters, load_tokenizer, train_bpe
from adlm.errors import ConfigError, DataError, OutOfRange, UnknownName
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.objectives.likelihood import table_perplexity
from adlm.text_model import TextModel
from tests.errors import raises

TOKENIZER = characters()
ROLES = TOKENIZER.roles
EXAMPLES = [("two and two", "four"), ("sky", "blue"), ("", "yes")]


def written(path, examples=EXAMPLES, names=("prompt", "response")):
    path.write_text("".join(json.dumps(dict(zip(names, example, strict=True))) + "\n" for example in examples))
    return str(path)


@pytest.fixture
def config(tmp_path) -> Prompts:
    return Prompts(written(tmp_path / "train.jsonl"), "characters", 20)


def rows_of(table):
    return np.arange(len(table))


def test_a_row_is_prompt_response_end_and_padding(config):
    table = config.prepare().train
    (row,) = table.tokens(np.array([1]))
    expected = [ROLES.bos_id, *TOKENIZER.encode("skyblue"), ROLES.eos_id]
    assert row.tolist() == expected + [ROLES.pad_id] * (20 - len(expected))
    assert table.frozen(np.array([1])).nonzero()[1].tolist() == [0, 1, 2, 3]
    assert table.valid(np.array([1])).nonzero()[1].tolist() == list(range(9))
    assert table.lengths(rows_of(table)).tolist() == [17, 9, 5]
    assert table.scored_lengths(rows_of(table)).tolist() == [5, 5, 4]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.text("ab ", max_size=9), st.text("ab ", min_size=1, max_size=9)), min_size=1, max_size=9),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", " b"]),
)
def test_what_is_given_and_what_is_learned_share_the_text(tmp_path_factory, examples, begin, end, padding, separator):
    path = written(tmp_path_factory.mktemp("data") / "train.jsonl", examples)
    data = Prompts(path, "characters", 24, begin=begin, end=end, padding=padding, separator=separator).prepare()
    batch = next(iter(LoaderConfig(len(examples), shuffle=False).build(data.train)))
    before, after = data.packing.frame(data.tokenizer.roles)
    for row, (prompt, response) in enumerate(examples):
        tokens, fixed, scored = batch.tokens[row], batch.frozen[row], batch.scored[row]
        assert tokens[fixed].tolist() == before + TOKENIZER.encode(prompt + separator).tolist()
        learned = [*TOKENIZER.encode(response), *after]
        rest = [ROLES.pad_id] * (24 - int(fixed.sum()) - len(learned))
        assert tokens[~fixed].tolist() == learned + rest
        assert tokens[scored].tolist() == learned + rest * padding
    scored = data.train.scored_lengths(rows_of(data.train))
    assert scored.tolist() == [len(response) + end for _, response in examples]


def test_rows_are_read_in_any_order_and_from_workers(config):
    table = config.prepare().train
    assert np.array_equal(table.tokens(np.array([2, 0, 2])), table.tokens(rows_of(table))[[2, 0, 2]])
    batches = [next(iter(LoaderConfig(2, workers=workers).build(table))) for workers in (0, 1)]
    assert torch.equal(batches[0].tokens, batches[1].tokens)
    assert torch.equal(batches[0].frozen, batches[1].frozen)


def test_a_prompt_has_the_tokens_it_has_when_the_model_is_used(tmp_path):
    train_bpe(["the cat sat on the mat"] * 9, 280).save(tmp_path / "model")
    path = written(tmp_path / "train.jsonl", [("the c", "at"), ("on the", " mat")])
    data = Prompts(path, str(tmp_path / "model"), 24).prepare()
    tokenizer = load_tokenizer(tmp_path / "model")
    assert len(tokenizer.encode("the cat")) < len(tokenizer.encode("the c")) + len(tokenizer.encode("at"))
    for row, prompt in enumerate(["the c", "on the"]):
        rows = np.array([row])
        given = data.train.tokens(rows)[data.train.frozen(rows)]
        assert given.tolist() == [tokenizer.roles.bos_id, *tokenizer.encode(prompt)]


def test_a_trained_model_goes_on_from_prompts_in_the_rows_it_saw(config):
    data = config.prepare()
    vocabulary = Vocabulary(data.tokenizer.vocab_size, data.tokenizer.mask_id)
    network = OneStageConfig(StackConfig(width=8, heads=2, layers=1)).build(vocabulary)
    model = TextModel(network, ModelConfig(OneStageConfig(), vocabulary, data.packing), data.tokenizer)
    assert model.generate("sky")[0].startswith("sky")
    ids, counts = model.rows.finished(TOKENIZER.encode("skyblue").tolist())
    assert ids == data.train.tokens(np.array([1]))[0].tolist()
    assert counts == data.train.valid(np.array([1]))[0].tolist()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", [False, True])
def test_a_perplexity_is_that_of_the_responses(config, padding, causal):
    data = replace(config, padding=padding).prepare()
    vocabulary = Vocabulary(data.tokenizer.vocab_size, data.tokenizer.mask_id)
    model = OneStageConfig(StackConfig(width=8, heads=2, layers=1, attention="causal" if causal else "full")).build(
        vocabulary
    )  # uniform
    result = table_perplexity(model, data.train, draws=2)
    positions = np.array([3, 11, 15]) * padding + np.array([5, 5, 4])  # padding, then response and end
    nats = np.log(vocabulary.size - 1) * positions
    assert result.nats_per_row.mean == pytest.approx(nats.mean(), rel=1e-4)
    assert result.nats_per_token.mean == pytest.approx(nats.sum() / 14, rel=1e-4)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "json"])
def test_every_form_of_file_gives_the_same_rows(tmp_path, config, ending):
    records = [dict(zip(("q", "a"), example, strict=True)) for example in EXAMPLES]
    lines = json.dumps(records) if ending == "json" else "\n\n".join(map(json.dumps, records))
    path = tmp_path / f"data.{ending}"
    path.write_bytes(gzip.compress(lines.encode()) if ending.endswith("gz") else lines.encode())
    table = Prompts(str(path), "characters", 20, prompt="q", response="a").prepare().train
    assert table.key == config.prepare().train.key


def test_the_key_changes_with_whatever_changes_a_row(tmp_path, config):
    train_bpe(["some text"] * 9, 280).save(tmp_path / "other")
    changes = [
        {"length": 21},
        {"padding": True},
        {"begin": False},
        {"end": False},
        {"separator": " "},
        {"tokenizer": str(tmp_path / "other")},
        {"train": written(tmp_path / "split.jsonl", [("two and", " twofour"), *EXAMPLES[1:]])},
        {"train": written(tmp_path / "fewer.jsonl", EXAMPLES[:2])},
    ]
    keys = {replace(config, **change).prepare().train.key for change in [{}, *changes]}
    assert len(keys) == 1 + len(changes)
    assert config.prepare().train.key in keys


def test_held_out_examples_are_optional(tmp_path, config):
    assert config.prepare().valid is None
    data = replace(config, valid=written(tmp_path / "held-out.jsonl", EXAMPLES[:1])).prepare()
    assert (data.valid.name, len(data.valid)) == ("held-out.jsonl", 1)


def test_rows_that_are_too_long_are_refused_with_a_length_that_holds_them_all(config):
    with raises(DataError, subject="length") as caught:
        replace(config, length=8).prepare()
    assert "length=17" in caught.value.fix
    assert len(replace(config, length=17).prepare().train) == 3


def test_rows_that_are_too_long_can_be_dropped_and_are_counted(config):
    seen = []
    data = replace(config, length=8, too_long="drop").prepare(watch=lambda *counts: seen.append(counts))
    assert len(data.train) == 1
    assert data.train.name == "train.jsonl without 2 that are too long"
    assert seen == [(3, 25, 1)]
    with raises(DataError, subject="length"):
        replace(config, length=4, too_long="drop").prepare()


def test_a_cut_response_has_no_end(tmp_path, config):
    table = replace(config, length=14, too_long="cut").prepare().train
    (row,) = table.tokens(np.array([0]))
    assert row.tolist() == [ROLES.bos_id, *TOKENIZER.encode("two and twofo")]
    assert table.scored_lengths(rows_of(table)).tolist() == [2, 5, 4]
    with raises(DataError, subject=f"{config.train}, line 1"):
        replace(config, length=12, too_long="cut").prepare()


@pytest.mark.parametrize(
    ("lines", "subject"),
    [
        (['{"prompt": "a", "response": "b"}', "no json"], "{path}, line 2"),
        (['{"prompt": "a", "response": "b"}', "", '{"prompt": "a"}'], "response"),
        (['{"input": "a", "output": "b"}'], "prompt"),
        (['{"prompt": ["a"], "response": "b"}'], "prompt"),
        (['{"prompt": null, "response": "b"}'], "prompt"),
        (['{"prompt": "a", "response": 4}'], "response"),
        (['"a"'], "{path}, line 1"),
        (['{"prompt": "a", "response": "b"}', '{"prompt": "a", "response": ""}'], "{path}, line 2"),
        (['{"prompt": "a", "response": "\\ud800"}'], "response"),
        ([""], "{path}"),
        ([], "{path}"),
    ],
)
def test_bad_examples_are_named(tmp_path, lines, subject):
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines))
    with raises(DataError, subject=subject.format(path=path)):
        Prompts(str(path), "characters", 16).prepare()


def test_files_that_are_not_one_are_refused(tmp_path, config):
    with raises(DataError, subject=str(tmp_path / "trains.jsonl")):
        replace(config, train=str(tmp_path / "trains.jsonl")).prepare()
    written(tmp_path / "more.jsonl")
    with raises(DataError, subject=str(tmp_path)):
        replace(config, train=str(tmp_path)).prepare()
    with gzip.open(tmp_path / "whole.jsonl.gz", "wt") as file:
        file.write(json.dumps({"prompt": "a", "response": "b"}) * 99)
    (tmp_path / "cut.jsonl.gz").write_bytes((tmp_path / "whole.jsonl.gz").read_bytes()[:-9])
    with raises(DataError, subject=str(tmp_path / "cut.jsonl.gz")):
        replace(config, train=str(tmp_path / "cut.jsonl.gz")).prepare()


def test_settings_that_mean_nothing_are_refused(config):
    with raises(UnknownName, name="dropp"):
        replace(config, too_long="dropp")
    with raises(OutOfRange, subject="length"):
        replace(config, length=3)
    with raises(ConfigError, subject="bpe:300"):
        replace(config, tokenizer="bpe:300").prepare()


def test_real_examples_become_rows(shared):
    folder = shared / "data"
    config = Prompts(
        str(folder / "gsm8k" / "test.jsonl"), str(folder / "vocab"), 512, prompt="question", response="answer"
    )
    data = config.prepare()
    assert len(data.train) == 1319
    rows = np.array([0])
    given, tokens = data.train.frozen(rows)[0], data.train.tokens(rows)[0]
    assert data.tokenizer.decode(tokens[given]).startswith("Janet’s ducks lay 16 eggs per day.")
    assert data.tokenizer.decode(tokens[~given]).endswith("#### 18")
