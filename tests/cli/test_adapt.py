"""`adlm adapt` as a user types it."""

import adlm
from adlm.cli import main
from tests.adapt.models import left_to_right


def test_a_model_is_adapted_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    left_to_right().save(tmp_path / "ar")
    words = ["adapt", "ar", "--to", "block:4", "--data", "self:60", "--steps", "3", "--rows", "4", "--device", "cpu"]
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "BlockMasking" in said
    assert not (tmp_path / "runs").exists()
    assert main([*words, "--sizes", "1", "4", "0"]) == 0
    said = capsys.readouterr().out
    for part in ("blocks of 4", "whole rows", "source, left to right", 'adlm.load("runs/ar-block-4")'):
        assert part in said, part
    assert adlm.load(tmp_path / "runs" / "ar-block-4").block_sizes == (1, 4, 0)


def test_mistakes_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    left_to_right().save(tmp_path / "ar")
    for words in (["--to", "diffusion", "--data", "self:60"], ["--to", "block:4"]):
        assert main(["adapt", "ar", *words]) == 2
        assert capsys.readouterr().err.startswith("adlm: ")
