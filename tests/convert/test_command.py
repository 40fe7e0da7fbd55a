import pytest
import torch
from safetensors.torch import load_file

import adlm
from adlm.cli import main
from tests.convert.official_files import save_checkpoint, tiny_weights, tokenizer_json


@pytest.fixture
def checkpoint(tmp_path):
    return save_checkpoint(tmp_path / "official.ckpt", tiny_weights(), tokenizer=tokenizer_json())


def test_a_checkpoint_becomes_a_model_and_goes_back(checkpoint, tmp_path, capsys):
    assert main(["convert", str(checkpoint), str(tmp_path / "new/model")]) == 0
    shown = capsys.readouterr().out
    assert "ADLM: 4 + 2 layers, width 48, vocabulary 39, the mask 38" in shown
    assert "weights: raw" in shown
    assert f"wrote {tmp_path / 'new/model'}" in shown
    assert adlm.load(tmp_path / "new/model").tokenizer.mask_id == 38
    back = tmp_path / "back.safetensors"
    assert main(["convert", str(tmp_path / "new/model"), str(back), "--to", "official"]) == 0
    weights, again = tiny_weights(), load_file(back)
    assert all(torch.equal(weights[key], again[key]) for key in weights.keys() | again.keys())
    assert f"wrote {back}: {len(weights)} tensors" in capsys.readouterr().out
    words = ["convert", str(back), str(tmp_path / "again"), "--tokenizer", str(tmp_path / "new/model")]
    assert main(words) == 0
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_roles.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "new/model" / name).read_bytes()


def test_nothing_is_overwritten_unasked(checkpoint, tmp_path, capsys):
    model, other, file = tmp_path / "model", tmp_path / "other", tmp_path / "official.safetensors"
    assert main(["convert", str(checkpoint), str(model)]) == 0
    before = (model / "model.safetensors").stat().st_mtime_ns
    (model / "notes.txt").write_text("mine")
    assert main(["convert", str(checkpoint), str(model)]) == 2
    assert "--force" in capsys.readouterr().err
    assert (model / "model.safetensors").stat().st_mtime_ns == before
    assert main(["convert", str(checkpoint), str(model), "--force"]) == 0
    assert (model / "model.safetensors").stat().st_mtime_ns > before
    assert (model / "notes.txt").read_text() == "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    assert main(["convert", str(checkpoint), str(other), "--force"]) == 2
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    file.write_text("mine")
    assert main(["convert", str(model), str(file), "--to", "official"]) == 2
    assert file.read_text() == "mine"
    assert main(["convert", str(model), str(file), "--to", "official", "--force"]) == 0
    assert len(load_file(file)) == len(tiny_weights())


def test_a_model_of_this_package_is_named_as_anywhere(tmp_path, capsys):
    """`box`, and a folder: written again, in the format of today."""
    assert main(["convert", "box", str(tmp_path / "copy")]) == 0
    box, copy = adlm.load("box"), adlm.load(tmp_path / "copy")
    assert copy.config == box.config
    assert all(torch.equal(a, b) for a, b in zip(copy.network.parameters(), box.network.parameters(), strict=True))
    assert main(["convert", str(tmp_path / "copy"), str(tmp_path / "again")]) == 0
    assert main(["convert", "box", str(tmp_path / "box.safetensors"), "--to", "official"]) == 2
    assert "attention" in capsys.readouterr().err
    assert main(["convert", "box", str(tmp_path / "third"), "--heads", "5"]) == 2
    assert "--heads" in capsys.readouterr().err


def test_a_refused_checkpoint_leaves_nothing_behind(checkpoint, tmp_path, capsys):
    data = bytearray(checkpoint.read_bytes())
    data[len(data) // 2] ^= 255
    checkpoint.write_bytes(data)
    assert main(["convert", str(checkpoint), str(tmp_path / "model")]) == 2
    assert "damaged" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["official.ckpt"]


def test_a_model_that_cannot_be_written_leaves_nothing_behind(checkpoint, tmp_path, monkeypatch):
    assert main(["convert", str(checkpoint), str(tmp_path / "model")]) == 0
    before = {path.name for path in tmp_path.iterdir()}

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr("adlm.convert.conversion.save_file", full)
    with pytest.raises(OSError, match="no space"):
        main(["convert", str(tmp_path / "model"), str(tmp_path / "a.safetensors"), "--to", "official"])
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.ckpt", "model"], "none.ckpt"),
        ([".", "model"], "config.json"),
        (["official.ckpt", "official.ckpt"], "official.ckpt"),
        (["official.ckpt", "model", "--tokenizer", "./none"], "./none"),
        (["official.ckpt", "model", "--weights", "ema"], "--weights"),
        (["official.ckpt", "model", "--heads", "5"], "heads"),
        (["official.ckpt", "model", "--length", "2"], "length"),
        (["model", "out.bin", "--to", "official"], "out.bin"),
        (["none", "out.safetensors", "--to", "official"], "none"),
        (["model", "out.safetensors", "--to", "official", "--mask-id", "0"], "--mask-id"),
    ],
)
def test_mistakes_are_answered(words, message, checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *words]) == 2
    assert message in capsys.readouterr().err
