"""Infilling of held-out texts: holes, agreement, and models that see one side or both."""

import json
from dataclasses import replace

import pytest
import torch

from adlm import evaluate
from adlm.data.packing import Padded
from adlm.data.tokenizer import characters
from adlm.errors import ConfigError, DataError, OutOfRange, UnknownName
from adlm.evaluate.hole_filling import HOLES, CutText, agreement, cut_text, filled_text, sees_both_sides
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.randomness import Noise
from adlm.samplers.constraints import Choice
from adlm.text_model import TextModel
from tests.errors import raises

TEXT = "the cat sat by the mat . Then the dog ran home . the cat sat on the mat"
TOKENIZER = characters("".join(sorted(set(TEXT))))
STACK = StackConfig(width=16, heads=2, layers=2, attention="block")
SIZES = {"objective": {"corruption": {"sizes": [1, 4, 0]}}}


def model(attention="block", run=None):
    torch.manual_seed(1)
    size = 4 if attention == "block" else 0
    network = OneStageConfig(replace(STACK, attention=attention), block_size=size, shift=attention != "full")
    vocabulary = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
    built = network.build(vocabulary).eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return TextModel(built, ModelConfig(network, vocabulary, Padded(96), run=run), TOKENIZER)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in (TEXT, "too short", TEXT, TEXT)))
    return path


@pytest.mark.parametrize("kind", HOLES)
def test_a_cut_text_is_the_text_with_a_hole_of_its_kind(kind):
    cuts = [cut_text(TEXT, kind, TOKENIZER, Noise(0).fork(number)) for number in range(20)]
    for cut in cuts:
        assert cut.left + cut.missing + cut.right == TEXT
        assert cut.left.strip()
        assert cut.tokens == len(TOKENIZER.encode(cut.missing))
    words = {len(cut.missing.split()) for cut in cuts}
    assert words == {"word": {1}, "phrase": {3}, "sentence": {6}}[kind]
    assert len({cut.left for cut in cuts}) == 1 if kind == "sentence" else len({cut.left for cut in cuts}) > 5


def test_agreement_is_exact_or_by_words():
    assert agreement(" the cat sat", "the cat sat") == (1, 1)
    assert agreement("a cat ran", "the cat sat") == (0, pytest.approx(1 / 3))
    assert agreement("", "the") == (0, 0)


def test_what_stands_around_a_hole_stays_and_the_likeliest_filling_is_kept():
    cut = CutText("the cat ", "sat", " by the mat", 3)
    filling = {"sampler": "confidence", "temperature": 0.0, "tokens_per_step": 1}
    for each in (model(run=SIZES), model("full"), model("causal")):
        one, best = (filled_text(each, cut, best_of, 0, filling) for best_of in (1, 16))
        for text in (one, best):
            assert text.startswith("the cat ")
            assert text.endswith(" by the mat")
        if each.network.attention != "full":  # which has no left-to-right reading to rank by
            ranked = each.in_blocks(1) if each.block_sizes else each
            assert ranked.score(best).nats.mean <= ranked.score(one).nats.mean


def test_models_are_compared_on_the_same_holes(texts, tmp_path):
    found = [evaluate.infilling(each, texts, n=2, best_of=2) for each in (model(run=SIZES), model("causal"))]
    assert found[0].data["key"] == found[1].data["key"]
    assert [each.protocol["sees"] for each in found] == ["both sides", "the left side"]
    for result in found:
        assert result.protocol["texts"] == 2
        assert {f"exact {kind}" for kind in HOLES} < set(result.figures)
        assert all(0 <= figure.value <= 1 for figure in result.figures.values())
    again = evaluate.infilling(model(run=SIZES), texts, n=2, best_of=2, out=tmp_path / "result.json")
    assert again.figures == found[0].figures
    assert (tmp_path / "result.json").exists()


def test_what_cannot_be_measured_is_refused(texts, tmp_path):
    with raises(UnknownName, subject="letter"):
        evaluate.infilling(model("full"), texts, holes=("letter",))
    with raises(OutOfRange, subject="best_of"):
        evaluate.infilling(model("full"), texts, best_of=0)
    (short := tmp_path / "short.jsonl").write_text('{"text": "too short"}\n')
    with raises(DataError, subject=str(short)):
        evaluate.infilling(model("full"), short)


def test_the_best_of_several_fillings_needs_a_left_to_right_reading():
    text = "the cat [MASK:3] the mat"
    several = model(run=SIZES)
    assert sees_both_sides(several)
    (best,) = several.infill(text, best_of=8)
    drawn = several.fillings(text, 8)
    assert best == several.in_blocks(1).likeliest(drawn)
    two = several.infill(text, n=2, best_of=3, seed=4)
    drawn = several.fillings(text, 6, seed=4)
    assert two == [several.in_blocks(1).likeliest(drawn[i : i + 3]) for i in (0, 3)]
    with raises(ConfigError, subject="best_of"):
        model("full").infill(text, best_of=2)


def test_fillings_come_from_both_readings_in_turn():
    text, several = "the cat [MASK:3] the mat", model(run=SIZES)
    found = several.fillings(text, 5, seed=2, temperature=0.5)
    assert [each.startswith("the cat ") and each.endswith(" the mat") for each in found] == [True] * 5
    assert found[1::2] == several.infill(text, n=2, seed=2, temperature=0.5)
    # What follows the hole is not seen from left to right.
    other = several.fillings(text.replace("the mat", "no dog"), 5, seed=2, temperature=0.5)
    assert [each.removesuffix("no dog") for each in other[::2]] == [each.removesuffix("the mat") for each in found[::2]]
    assert model("full").fillings(text, 3) == model("full").infill(text, n=3)


def test_fillings_keep_to_constraints():
    found = model(run=SIZES).fillings("the [MASK] sat", 6, constraints=[Choice(("cat", "dog"))])
    assert set(found) <= {"the cat sat", "the dog sat"}
