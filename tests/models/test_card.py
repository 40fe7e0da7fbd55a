"""Cards: valid for the Hub, true to the network, silent about what is not known, and the user's once edited."""

import re

import pytest
from huggingface_hub import ModelCard

from adlm.data.packing import Wrapped
from adlm.data.tokenizer import characters
from adlm.models.card import Facts, card_text, may_replace
from adlm.models.hand_over import Continued
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.text_model import TextModel
from adlm.types import Estimate

TOKENIZER = characters(" abcdefghijklmnopqrstuvwxyz")
STACK = StackConfig(width=8, heads=2, layers=3)
NETWORKS = {
    "mdlm": OneStageConfig(STACK),
    "ar": OneStageConfig(StackConfig(width=8, heads=2, layers=3, attention="causal")),
    "adlm": TwoStageConfig(STACK, 1, Continued()),
}


def model_of(kind):
    config = ModelConfig(NETWORKS[kind], Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id), Wrapped(32))
    return TextModel(config.build().eval(), config, TOKENIZER)


def text_of(kind, facts=None):
    model = model_of(kind)
    return card_text(model.network, model.config.network, model.config.vocabulary, model.config.packing, facts)


@pytest.mark.parametrize(
    ("kind", "words", "tags"),
    [
        ("mdlm", ["masked diffusion", "| layers | 3 |"], ["adlm", "masked-diffusion"]),
        ("ar", ["left to right", "| layers | 3 |"], ["adlm", "autoregressive"]),
        ("adlm", ["anchored, in two stages", "| layers | 3 + 1 |"], ["adlm", "masked-diffusion", "anchored"]),
    ],
)
def test_a_card_states_what_the_network_is(kind, words, tags):
    text = text_of(kind)
    parameters = sum(parameter.numel() for parameter in model_of(kind).network.parameters())
    shape = ["| width | 8 |", "| heads | 2 |", f"{TOKENIZER.vocab_size} tokens", "32 tokens", f"{parameters:,}"]
    for expected in words + shape:
        assert expected in text
    metadata = ModelCard(text).data.to_dict()
    assert metadata == {"library_name": "adlm", "pipeline_tag": "text-generation", "tags": tags}


def test_a_card_says_nothing_that_was_not_given():
    text = text_of("adlm")
    for word in ("licen", "Training data", "Figures", "Notes", "None", "More Information"):
        assert word not in text


def test_what_is_given_is_in_the_card():
    figures = {"test | perplexity": Estimate(12.3456, 0.078, 64), "nats, exact": Estimate(3.5, 0.0, 0), "loss": 2.0}
    text = text_of("mdlm", Facts("mit", "en", "All of *it*.", figures, "Be kind: to it."))
    metadata = ModelCard(text).data
    assert (metadata.license, metadata.language) == ("mit", "en")
    for expected in [
        "## Training data\n\nAll of *it*.",
        "| test \\| perplexity | 12.3456 ± 0.078 | 64 |",
        "| nats, exact | 3.5 | exact |",
        "| loss | 2 |  |",
        "Be kind: to it.",
    ]:
        assert expected in text
    assert ModelCard(text_of("mdlm", Facts(licence="other\ntags: [bad]"))).data.tags == ["adlm", "masked-diffusion"]


def test_a_card_says_what_the_model_is_for_in_its_author_s_words_or_in_ours():
    assert "## Intended use\n\nTo write, fill in and score texts like those it was trained on" in text_of("adlm")
    assert "fill in" not in text_of("ar").partition("## Intended use")[2].partition("##")[0]
    text = text_of("adlm", Facts(use="For bedtime only."))
    assert "## Intended use\n\nFor bedtime only.\n\n## How to sample" in text
    assert "truth or harm" not in text


def test_the_example_in_the_card_runs(tmp_path, monkeypatch, capsys):
    model_of("adlm").save(tmp_path)
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```", (tmp_path / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    exec(code, {"__name__": "card"})
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_an_edited_card_is_kept_and_an_untouched_one_renewed(tmp_path):
    card = tmp_path / "README.md"
    model_of("mdlm").save(tmp_path)
    model_of("adlm").save(tmp_path, facts=Facts(data="Stories."))
    assert "anchored" in card.read_text(encoding="utf-8")
    assert "Stories." in card.read_text(encoding="utf-8")
    card.write_bytes(card.read_bytes().replace(b"\n", b"\r\n"))
    assert may_replace(card)  # a checkout on Windows is no edit
    edited = card.read_text(encoding="utf-8").replace("Stories.", "Stories of mine.")
    for text in (edited, "# My model\n", "", edited + "More.\n"):
        card.write_text(text, encoding="utf-8")
        model_of("mdlm").save(tmp_path)
        assert card.read_text(encoding="utf-8") == text
        assert load_model(tmp_path)[1].network == NETWORKS["mdlm"]
    card.write_bytes(b"\xff\xfe")
    save_model(tmp_path, model_of("ar").network, model_of("ar").config, TOKENIZER)
    assert card.read_bytes() == b"\xff\xfe"


def test_the_mixin_s_card_is_the_same_card():
    assert str(model_of("adlm").generate_model_card(data="Stories.")) == text_of("adlm", Facts(data="Stories."))
