import re

import pytest
import torch

from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import characters, train_bpe, train_words
from adlm.errors import ConfigError
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.samplers import Ancestral, Ordered, PerStep, Remasking
from adlm.samplers.constraints import Choice, Digits, Pattern
from adlm.text_model import TextModel
from tests.conftest import TableModel
from tests.errors import raises

TEXT = "the cat sat on the mat."
CORPUS = [f"{TEXT} the dog sat on the log. 7 red 42 blue green cats"]
WORDS = train_words(CORPUS)
ROWS = [Wrapped(16), Wrapped(16, framed=True), Padded(16, predict_padding=True), Padded(16)]


def network_model(tokenizer, rows, *, causal=False):
    stack = StackConfig(width=16, heads=2, layers=1, attention="causal" if causal else "full")
    config = ModelConfig(OneStageConfig(stack), Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), rows)
    torch.manual_seed(0)
    network = config.build().eval()
    torch.nn.init.normal_(network.head.weight)
    return TextModel(network, config, tokenizer)


def knowing_model(rows, text=TEXT):
    """Sure of one text at its positions in a row."""
    model = network_model(WORDS, rows)
    ids, _ = model.rows.finished(WORDS.encode(text).tolist())
    logits = torch.zeros(64, WORDS.vocab_size)
    logits[torch.arange(len(ids)), torch.tensor(ids)] = 50.0
    table = TableModel(model.config.vocabulary, lambda tokens: logits[: tokens.shape[1]].expand(len(tokens), -1, -1))
    return TextModel(table, model.config, WORDS)


@pytest.mark.parametrize("rows", ROWS, ids=repr)
def test_open_lengths_are_found_by_a_model_that_knows_them(rows):
    model = knowing_model(rows)
    for text in (
        "the [MASK:1-5] the mat.",
        "the cat [MASK:1-4] mat.",
        "[MASK:1-3] sat on [MASK:1-4].",
        "the[MASK:3] the[MASK].",
    ):
        assert model.infill(text, n=2) == [TEXT] * 2


@pytest.mark.parametrize("rows", ROWS, ids=repr)
def test_what_stands_around_holes_stays_and_constraints_hold(rows):
    model = network_model(WORDS, rows)
    constraints = [None, Choice(("red", "cats")), Digits(), Pattern(" [a-o]+ [a-o]+")]
    texts = model.infill("the [MASK:2] sat [MASK] on [MASK] the[MASK:2].", n=20, constraints=constraints)
    for text in texts:
        assert re.fullmatch(r"the .+ sat (red|cats) on (7|42) the [a-o]+ [a-o]+\.", text), text
    assert len({*texts}) > 1


@pytest.mark.parametrize("sampler", [Ancestral(steps=2), Ordered(pace=PerStep(3)), Remasking(steps=4)], ids=repr)
def test_patterns_hold_with_every_tokenizer_and_sampler(sampler):
    regex = "[a-z]{2,6}-[0-9]{2}"
    for tokenizer in (
        train_bpe(["on the mat 12-34 abc"] * 9, 290),
        characters("abcdefghijklmnopqrstuvwxyz0123456789- "),
    ):
        model = network_model(tokenizer, Wrapped(24))
        for text in model.infill("at [MASK:6-8] or", n=8, sampler=sampler, constraints=[Pattern(regex)]):
            assert re.fullmatch(f"at {regex} or", text)


def test_a_text_follows_the_seed_alone_and_in_a_batch():
    model = network_model(WORDS, Wrapped(16))
    text, constraints = "the [MASK:1-3] sat [MASK].", [None, Choice(("on the log", "red"))]
    texts = model.infill(text, n=5, seed=1, constraints=constraints)
    assert texts == model.infill(text, n=5, seed=1, constraints=constraints)
    assert texts[:2] == model.infill(text, n=2, seed=1, constraints=constraints)
    assert texts != model.infill(text, n=5, seed=2, constraints=constraints)


def test_a_choice_gives_the_hole_its_length():
    model = knowing_model(Wrapped(16), "the blue green cats sat on")
    options = Choice(("red", "blue green", "dog on the log"))
    assert model.infill("the [MASK] cats sat on", constraints=[options]) == ["the blue green cats sat on"]
    assert model.infill("the [MASK:1] cats sat on", constraints=[options]) == ["the red cats sat on"]


def test_no_hole_ends_the_text():
    model = network_model(WORDS, Wrapped(16))
    torch.nn.init.zeros_(model.network.head.weight)
    with torch.no_grad():
        model.network.head.bias[WORDS.roles.eos_id] = 20.0
    for text in model.infill("the[MASK:3] mat.", n=5):
        assert text.endswith(" mat.")


def test_options_name_the_sampler():
    model = network_model(WORDS, Wrapped(16))
    cold = {"sampler": "confidence", "temperature": 0.0}
    assert len({*model.infill("the [MASK:3] mat.", n=4, **cold)}) == 1


def test_what_cannot_be_filled_is_refused():
    model = network_model(WORDS, Wrapped(16))
    with raises(ConfigError, subject="text"):
        model.infill("the [MASK:16]")
    with raises(ConfigError, subject="text"):
        model.infill("the [MASK:2-20]")
    with raises(ConfigError, subject="[MASK:2]"):
        model.infill("the [MASK:2]", constraints=[Pattern("x")])
    with raises(ConfigError, subject="constraints"):
        model.infill("the [MASK]", constraints=[])
    with raises(ConfigError, subject="lengths"):
        network_model(WORDS, Wrapped(16), causal=True).infill("the [MASK:2-3].")


def test_a_left_to_right_model_fills_holes_at_the_end_alone():
    model = network_model(WORDS, Wrapped(16), causal=True)
    for text in model.infill("the cat [MASK] [MASK]", n=5, constraints=[Choice(("sat",)), Digits()]):
        assert re.fullmatch("the cat sat (7|42)", text)
    for text in ("the [MASK] sat", "[MASK] [MASK]."):
        with raises(ConfigError, subject="text"):
            model.infill(text)


def test_unknown_words_are_named_and_not_dropped():
    model = network_model(WORDS, Wrapped(16))
    for call in (model.generate, model.score, lambda text: model.infill(text + "[MASK]")):
        with raises(ConfigError, subject="dragon"):
            call("the dragon sat")
        with raises(ConfigError, subject="  "):
            call("the  cat sat")
    with raises(ConfigError, subject="dragon"):
        model.generate("the", suffix=" dragon")
    with raises(ConfigError, subject="é"):
        network_model(characters("abc "), Wrapped(16)).generate("abé")
