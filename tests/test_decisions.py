"""Probabilities of options in holes: the chain rule within an option, passes that options share, both readings."""

from dataclasses import replace

import pytest
import torch

from adlm.data.packing import Padded
from adlm.data.tokenizer import characters
from adlm.errors import ConfigError
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.samplers.constraints import Choice
from adlm.text_model import TextModel
from tests.errors import raises

TOKENIZER = characters("abcde ")
STACK = StackConfig(width=16, heads=2, layers=1)


def model(attention="full", run=None):
    network = OneStageConfig(replace(STACK, attention=attention), block_size=4 if attention == "block" else 0,
                             shift=attention != "full")  # fmt: skip
    vocabulary = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
    torch.manual_seed(1)
    built = network.build(vocabulary).eval()
    for weight in built.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return TextModel(built, ModelConfig(network, vocabulary, Padded(32), run=run), TOKENIZER)


def log_p(model, text, position, letter):
    """log p of a letter at a position of a text in which _ is a blank."""
    mask = TOKENIZER.mask_id
    ids = [token for part in text.split("_") for token in (*TOKENIZER.encode(part, first=False).tolist(), mask)][:-1]
    row, counts = model.rows.finished(ids)
    tokens = torch.tensor([row[: sum(counts)]])
    wanted = torch.zeros_like(tokens, dtype=torch.bool)
    wanted[0, position + len(model.rows.begin)] = True
    with torch.no_grad():
        logits = model.network.logits(model.network.features(tokens, output_mask=wanted).final)[0].double()
    logits[mask] = -torch.inf
    return float(logits.log_softmax(-1)[TOKENIZER.encode(letter, first=False)[0]])


def test_tokens_of_an_option_are_given_those_before_them():
    masked = model()
    (found,) = masked.decide("a[MASK]e", [Choice(("bc", "dd"))])
    logs = [
        log_p(masked, f"a{'_'}_e", 1, each[0]) + log_p(masked, f"a{each[0]}_e", 2, each[1]) for each in ("bc", "dd")
    ]
    expected = torch.tensor(logs).softmax(-1).tolist()
    assert found.probabilities == pytest.approx(expected, abs=1e-5)
    assert found.mass == pytest.approx(sum(map(torch.tensor(logs).exp().tolist().__getitem__, (0, 1))), abs=1e-5)
    assert found.best == ("bc", "dd")[expected.index(max(expected))]


def test_other_holes_are_blank():
    masked = model()
    found = masked.decide("a[MASK]c[MASK]", [Choice(("b", "d")), Choice(("d", "e"))])
    expected = torch.tensor([log_p(masked, "a_c_", 3, each) for each in "de"]).softmax(-1).tolist()
    assert found[1].probabilities == pytest.approx(expected, abs=1e-5)


def test_options_of_one_token_share_a_pass(monkeypatch):
    masked, rows = model(), []
    plain = masked.network.features
    monkeypatch.setattr(
        masked.network, "features", lambda tokens, *a, **k: rows.append(len(tokens)) or plain(tokens, *a, **k)
    )
    masked.decide("a[MASK]c", [Choice(tuple("abcde"))])
    assert rows == [1]


def test_options_of_different_lengths_are_normalized_together():
    (found,) = model().decide("a[MASK]c", [Choice(("b", "bd", "bde"))])
    assert sum(found.probabilities) == pytest.approx(1)
    assert min(found.probabilities) > 0


def test_a_model_with_both_readings_sees_what_follows_and_one_from_left_to_right_is_refused():
    several = model("block", run={"objective": {"corruption": {"sizes": [1, 4, 0]}}})
    choice = [Choice(("b", "d"))]
    assert several.decide("a[MASK]c", choice) != several.decide("a[MASK]e", choice)
    with raises(ConfigError, subject="text"):
        model("causal").decide("a[MASK]c", choice)
    assert len(model("causal").decide("a[MASK]", choice)) == 1


@pytest.mark.parametrize("count", [0, 2])
def test_one_choice_per_hole(count):
    with raises(ConfigError, subject="constraints"):
        model().decide("a[MASK]c", [Choice(("b", "d"))] * count)
