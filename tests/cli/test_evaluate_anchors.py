import pytest
import torch

from adlm.anchors import NoToken, RareInSequence
from adlm.cli import main
from adlm.config import to_json
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import train_words
from adlm.errors import MissingExtra
from adlm.evaluate import anchor_study
from adlm.evaluate.anchor_study import trained_rule
from adlm.evaluate.result import read_result
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.text_model import TextModel

TEXT = "the cat sat on the mat. the dog sat on the log, and the 3 cats saw it. " * 20
TOKENIZER = train_words([TEXT])
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)


def saved(path, *, stages=2) -> str:
    torch.manual_seed(0)
    stack = StackConfig(width=16, heads=2, layers=1)
    config = TwoStageConfig(stack, denoiser_layers=1) if stages == 2 else OneStageConfig(stack)
    network = config.build(VOCABULARY).eval()
    for weights in network.parameters():  # blocks begin as the identity, heads at zero
        weights.data += 0.4 * torch.randn(weights.shape)
    TextModel(network, ModelConfig(config, VOCABULARY, Wrapped(16)), TOKENIZER).save(path)
    return str(path)


@pytest.fixture
def text(tmp_path) -> str:
    path = tmp_path / "cats.test.txt"
    path.write_text(TEXT)
    return str(path)


def measure(model, text, out, *options) -> int:
    return main(
        ["evaluate", "anchors", model, text, "--out", str(out), "--levels", "0.2,0.8", "--limit", "8", *options]
    )


def test_a_result_a_table_and_a_picture_are_written(tmp_path, text, capsys):
    out = tmp_path / "r.json"
    assert measure(saved(tmp_path / "model"), text, out) == 0
    result = read_result(out)
    assert result.figures["0.8, anchor tokens, denoiser: accuracy"].error > 0
    assert result.protocol["anchors"] == to_json(RareInSequence(5))
    assert set(result.protocol["trials"]) == {"truth", "noise", "unigram"}
    assert len(result.items["tokens"]) == len(result.items["nats of the denoiser"]) == 8
    page = (tmp_path / "r.md").read_text()
    assert "| 80% | anchor tokens | denoiser |" in page
    assert (tmp_path / "r.svg").read_text().startswith("<?xml")
    assert not list(tmp_path.glob("*.partial"))
    shown = capsys.readouterr().out
    assert "jackknife over rows" in shown


def test_without_matplotlib_the_figures_are_written_all_the_same(tmp_path, text, monkeypatch, capsys):
    def missing(*_, **__):
        raise MissingExtra("drawing", "it is not installed", "pip install 'adlm[plot]'")

    monkeypatch.setattr(anchor_study, "optional_module", missing)
    assert measure(saved(tmp_path / "model"), text, tmp_path / "r.json") == 0
    assert "pip install 'adlm[plot]'" in capsys.readouterr().out
    assert (tmp_path / "r.json").exists()
    assert not (tmp_path / "r.svg").exists()


def test_the_rule_is_the_one_of_training_or_the_paper_s():
    assert trained_rule({"objective": {"kind": "Anelbo", "rule": to_json(RareInSequence(2))}}) == RareInSequence(2)
    assert trained_rule({"objective": {"kind": "Nelbo"}}) == trained_rule(None) == RareInSequence(5)
    assert trained_rule({"objective": {"rule": to_json(NoToken())}}) == NoToken()


@pytest.mark.parametrize(
    ("options", "subject"),
    [(["--levels", "a"], "levels"), (["--levels", "2"], "levels"), (["--limit", "0"], "limit")],
)
def test_bad_settings_are_told(tmp_path, text, options, subject, capsys):
    assert main(["evaluate", "anchors", saved(tmp_path / "model"), text, *options]) == 2
    assert subject in capsys.readouterr().err


def test_models_of_one_stage_are_refused(tmp_path, text, capsys):
    assert measure(saved(tmp_path / "model", stages=1), text, tmp_path / "r.json") == 2
    assert "one stage" in capsys.readouterr().err
