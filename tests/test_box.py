"""The model that comes with the package: small, whole, and good for a first sentence."""

from pathlib import Path

import pytest

import adlm
from adlm.cli import main
from adlm.models.two_stage import TwoStage
from tests.errors import raises

BOX = Path(adlm.__file__).parent / "box"


@pytest.fixture(scope="module")
def box():
    return adlm.load("box")


def test_it_is_an_anchored_model_of_twenty_megabytes_at_most(box):
    assert isinstance(box.network, TwoStage)
    assert sum(path.stat().st_size for path in BOX.iterdir()) <= 20_000_000
    numbers = sum(parameter.numel() for parameter in box.network.parameters())
    assert (BOX / "model.safetensors").stat().st_size < 2.1 * numbers  # two bytes each


def test_its_card_has_its_figures_and_its_source_and_no_path_of_a_machine():
    card = (BOX / "README.md").read_text(encoding="utf-8")
    for words in ("stories15M", "MIT", "CDLA-Sharing-1.0", "nats per token", "the source", "left to right"):
        assert words in card
    assert "MIT License" in (BOX / "LICENSE").read_text(encoding="utf-8")
    for path in BOX.iterdir():
        content = path.read_bytes()
        assert b"/tmp" not in content
        assert b"/home" not in content
        assert b"/root" not in content


def test_one_network_is_read_in_four_ways(box):
    assert {0, 1} < set(box.block_sizes)
    for size in (1, 4, 0):
        (text,) = box.generate("Once upon a time", seed=1, block_size=size, max_new_tokens=12, sampler="confidence")
        assert text.startswith("Once upon a time")
    (text,) = box.generate("Once upon a time", seed=1, max_new_tokens=12, sampler="draft-and-verify", block_size=4)
    assert text.startswith("Once upon a time")


def test_it_writes_the_same_sentences_for_the_same_seed(box):
    texts = box.generate(n=2, seed=0)
    assert texts == box.generate(n=2, seed=0)
    assert all(len(text.split()) > 8 for text in texts)
    assert texts[0] != texts[1]


def test_it_finds_english_likelier_than_the_same_words_shuffled(box):
    text = "Once upon a time, there was a little girl named Lily. She loved to play in the park."
    words = text.split()
    shuffled = " ".join(words[i] for i in (5, 11, 2, 16, 9, 0, 13, 7, 3, 14, 1, 10, 6, 17, 4, 12, 8, 15))
    assert box.score(text).nats.mean < box.score(shuffled).nats.mean - 10


def test_the_name_works_where_a_model_is_expected(capsys):
    assert main(["infill", "box", "Once upon a time, there was a little [MASK] named Lily.", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("Once upon a time, there was a little ")
    assert main(["sample", "--n", "1", "--prompt", "Tom and his mom"]) == 0
    assert capsys.readouterr().out.startswith("Tom and his mom")


def test_a_folder_of_that_name_is_another_model(tmp_path, monkeypatch, box):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "box").mkdir()
    assert adlm.load("box").config == box.config
    with raises(adlm.AdlmError, subject="config.json"):
        adlm.load("./box")
