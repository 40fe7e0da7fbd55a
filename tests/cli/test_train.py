"""`adlm train` as a user types it."""

import pytest

import adlm
from adlm.cli import main
from adlm.train.metrics import read_metrics

TINY = [
    'data={"kind": "Synthetic", "vocabulary": 40, "length": 16, "count": 64}',
    "network.anchor.width=32",
    "network.anchor.layers=1",
    "network.positions=0",
    "train.tokens_per_step=128",
    "train.micro_batch_size=8",
    "train.steps=4",
    "validation.every=2",
    "validation.num_rows=8",
    "checkpoint.every=2",
]


def arguments(*more):
    return [word for change in (*TINY, *more) for word in ("--set", change)]


def test_a_recipe_becomes_a_model_and_goes_on_when_asked_for_more(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "demo-adlm", *arguments(), "--samples", "1", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "validation at step 4" in said
    assert 'adlm.load("runs/demo-adlm")' in said
    folder = tmp_path / "runs" / "demo-adlm"
    assert adlm.load(folder).config.run["train"]["steps"] == 4
    for name in ("metrics.jsonl", "curves.png", "config.json", "model.safetensors", "best/model.safetensors"):
        assert (folder / name).is_file(), name
    longer = arguments("train.steps=6")
    assert main(["train", "demo-adlm", *longer, "--device", "cpu"]) == 2
    refused = capsys.readouterr().err
    assert "train.steps" in refused
    assert "--allow-change" in refused
    assert main(["train", "demo-adlm", *longer, "--device", "cpu", "--allow-change"]) == 0
    assert "resuming after step 4" in capsys.readouterr().out
    assert [record["step"] for record in read_metrics(folder / "metrics.jsonl")] == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    # Its config, trained again elsewhere.
    assert main(["train", str(folder / "config.json"), "--out", "again", "--device", "cpu"]) == 0
    assert adlm.load(tmp_path / "again").config == adlm.load(folder).config


def test_a_dry_run_prints_what_it_takes_and_trains_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "openwebtext-adlm", "--dry-run", "--device", "cpu", "--set", "train.steps=10"]) == 0
    shown = capsys.readouterr().out
    for word in ('"steps": 10', "parameters", "memory", "time", "524,288 tokens"):
        assert word in shown, word
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        (["demo-adml"], "demo-adlm"),
        (["demo-adlm", "--set", "train.stepps=3"], "stepps"),
        (["demo-adlm", "--set", "train.steps=many"], "train.steps"),
        (["demo-adlm", "--set", "train.optimizer=Adam"], "AdamW"),
        (["demo-adlm", "--set", "trains=3"], "trains"),
        (["demo-adlm", "--track", "tensorbord"], "tensorboard"),
        (["demo-adlm", "--samples", "-1"], "samples"),
        (["demo-adlm", "--workers", "-1"], "workers"),
        (["no/such/config.json"], "no/such/config.json"),
        (["demo-adlm", "--device", "abacus", "--dry-run"], "abacus"),
        (["demo-adlm", *arguments("train.tokens_per_step=100"), "--device", "cpu"], "train.tokens_per_step"),
        (["demo-adlm", *arguments(), "--shard", "--device", "cpu"], "torchrun"),
        (["demo-adlm", "--set", "checkpoint.keep=1"], "checkpoint.keep"),
    ],
)
def test_mistakes_are_answered(words, subject, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2
    assert subject in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*/*.safetensors"))
