"""Calibration of decisions: groups of words, questions, and figures that tell a calibrated model from others."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch

from adlm import evaluate
from adlm.cli import main
from adlm.data.packing import Padded
from adlm.data.tokenizer import characters
from adlm.errors import ConfigError, DataError, OutOfRange
from adlm.evaluate.decision_calibration import calibration_figures, frequent_groups
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.text_model import TextModel
from tests.errors import raises

TEXTS = ["the cat sat by a mat", "the dog sat by a log", "It is the cat's mat", "a dog ran"] * 3
TOKENIZER = characters("".join(sorted(set("".join(TEXTS)))))
GROUPS = [("cat", "dog"), ("sat", "ran")]


def model(attention="full", fresh=True):
    stack = StackConfig(width=16, heads=2, layers=1, attention=attention)
    network = OneStageConfig(stack, shift=attention != "full")
    vocabulary = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
    torch.manual_seed(1)
    built = network.build(vocabulary).eval()
    if not fresh:
        torch.nn.init.normal_(built.head.weight, std=0.3)
    return TextModel(built, ModelConfig(network, vocabulary, Padded(64)), TOKENIZER)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS, "the #"]))
    return path


def simulated(sharpness, n=4000):
    """Confidences, whether right and nats of a model whose log-odds are the true ones times `sharpness`."""
    draw = np.random.default_rng(0)
    odds = draw.normal(0, 2, n)
    true, said = (1 / (1 + np.exp(-scale * odds)) for scale in (1, sharpness))
    first = draw.random(n) < true
    p = np.where(first, said, 1 - said)
    return np.maximum(said, 1 - said), ((said > 0.5) == first).astype(float), -np.log(p)


def test_a_calibrated_model_is_told_from_one_that_is_too_sure_or_too_unsure():
    figures = {sharpness: calibration_figures(*simulated(sharpness), seed=0) for sharpness in (0.5, 1, 2)}
    for sharpness, found in figures.items():
        low, high = found["ece if calibrated"].interval
        assert (low <= found["ece"].value <= high) == (sharpness == 1)
        counts = {name: figure.value for name, figure in found.items() if name.startswith("count ")}
        assert list(counts) == [f"count 0.{i}-{'1.0' if i == 9 else f'0.{i + 1}'}" for i in range(5, 10)]
        assert sum(counts.values()) == 4000
    gap = {sharpness: found["confidence"].value - found["accuracy"].value for sharpness, found in figures.items()}
    assert gap[0.5] < -0.03 < gap[1] < 0.03 < gap[2]
    assert figures[1]["nats_per_decision"].value < min(figures[s]["nats_per_decision"].value for s in (0.5, 2))
    assert 0 < figures[1]["ece"].error < 0.02


def test_words_are_grouped_by_frequency():
    assert frequent_groups(iter(TEXTS), 2, 4) == [("a", "by"), ("dog", "mat")]
    # "cat's", words that begin a text and those with a capital are none.
    assert {word for group in frequent_groups(iter(TEXTS), 1, 99) for word in group} == {
        "a", "by", "dog", "mat", "sat", "cat", "is", "log", "ran", "the",
    }  # fmt: skip


def test_a_model_that_knows_nothing_gives_all_options_of_one_length_the_same(texts):
    found = evaluate.decisions(model(), texts, choices=GROUPS, n=99)
    assert found.protocol["questions"] == 9  # the third text has no word of a group
    assert found.figures["confidence"].value == pytest.approx(0.5, abs=1e-6)
    assert found.figures["nats_per_decision"].value == pytest.approx(math.log(2), abs=1e-5)
    assert set(found.items["correct"]) <= {0, 1}


def test_models_that_see_one_side_or_both_are_asked_the_same(texts, tmp_path):
    both, left = (evaluate.decisions(model(each, fresh=False), texts, choices=GROUPS) for each in ("full", "causal"))
    assert both.data["key"] == left.data["key"]
    assert [each.protocol["sees"] for each in (both, left)] == ["both sides", "the left side"]
    assert both.items["nats"] != left.items["nats"]
    again = evaluate.decisions(model(fresh=False), texts, choices=GROUPS, out=tmp_path / "result.json")
    assert again.figures == both.figures
    assert evaluate.read_result(tmp_path / "result.json").figures == both.figures
    assert evaluate.decisions(model(fresh=False), texts, choices=GROUPS, seed=1).data["key"] != both.data["key"]


def test_what_cannot_be_measured_is_refused(texts):
    for groups in ([], [("cat",)], [("cat", "dog"), ("dog", "ran")], [("cat", "a dog")], [("cat", "do-g")]):
        with raises(ConfigError, subject="choices"):
            evaluate.decisions(model(), texts, choices=groups)
    with raises(OutOfRange, subject="options"):
        evaluate.decisions(model(), texts, options=1)
    with raises(DataError, subject=str(texts)):
        evaluate.decisions(model(), texts, choices=[("tac", "god")])


def test_the_command_shows_the_table(texts, tmp_path, capsys):
    model(fresh=False).save(tmp_path / "model")
    asked = ["evaluate", "decisions", tmp_path / "model", texts, "--n", "6", "--out", tmp_path / "r.json"]
    assert main([*map(str, asked), "--choices", "cat,dog", "--choices", "sat, ran"]) == 0
    result, shown = evaluate.read_result(tmp_path / "r.json"), capsys.readouterr().out
    assert result.protocol["groups"] == [list(group) for group in GROUPS]
    assert f"expected calibration error {result.figures['ece']}" in shown
    assert "6 questions; 2 groups of words; the model sees both sides" in shown
    assert Counter(result.items["correct"])[1.0] / 6 == pytest.approx(result.figures["accuracy"].value)
    assert main([*map(str, asked), "--options", "2", "--words", "8"]) == 0
    assert len(evaluate.read_result(tmp_path / "r.json").protocol["groups"]) == 4
