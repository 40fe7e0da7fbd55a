import json

import pytest
from rich.console import Console

from adlm.cli import main
from adlm.config import from_json
from adlm.recipes.matched import mismatch
from adlm.recipes.named import recipe, recipes
from adlm.train.optimizers import Muon
from adlm.train.run import Run


def run(capsys, *words):
    code = main(["recipes", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_list_has_every_run_and_every_kind_of_network_in_every_size(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    for name in recipes():
        assert f" {name} " in out
    for name in ("ar-nano", "mdlm-micro", "adlm-tiny", "a2r-small", "adlm-medium"):
        assert f" {name} " in out
    assert "512 rows of 1,024 per step, 1,000,000 steps: 524.3 G tokens" in out
    assert "Anelbo 0.003" in out


@pytest.mark.parametrize("columns", ["80", "100", "140"])
def test_the_list_fits_the_terminal_and_keeps_names_whole(monkeypatch, capsys, columns):
    monkeypatch.setattr("adlm.cli.recipes.console", lambda: Console(width=int(columns)))
    code, out, _ = run(capsys)
    assert code == 0
    assert max(map(len, out.splitlines())) <= int(columns)
    assert "openwebtext-mdlm-same-parameters" in out


def test_a_run_shows_its_settings_and_what_it_takes(capsys):
    code, out, _ = run(capsys, "show", "openwebtext-adlm")
    assert code == 0
    assert "293,189,028" in out
    assert "512 rows of 1,024: 524,288 tokens" in out
    assert "16 micro-batches of 32 rows" in out
    assert "GB" in out
    assert "40% of" in out
    assert from_json(Run, json.loads(out[out.index("{") :])) == recipe("openwebtext-adlm")


def test_a_twin_shows_how_well_it_matches(capsys):
    code, out, _ = run(capsys, "show", "lm1b-mdlm-same-parameters-tiny")
    assert code == 0
    off = mismatch(recipe("lm1b-mdlm-same-parameters-tiny"), recipe("lm1b-adlm-tiny"))
    assert "against lm1b-adlm-tiny" in out
    assert f"{off.parameters:+.1%} parameters, {off.work:+.1%} work" in out


def test_a_run_can_be_changed_before_it_is_shown(capsys):
    changes = ["--set", "train.steps=7", "--set", "network.anchor.layers=2", "--set", "train.optimizer=Muon"]
    code, out, _ = run(capsys, "show", "text8-adlm", *changes)
    assert code == 0
    shown = from_json(Run, json.loads(out[out.index("{") :]))
    assert (shown.train.steps, shown.network.anchor.layers, shown.train.optimizer) == (7, 2, Muon())
    assert "28.67 k" in out  # tokens: 7 steps of 16 rows of 256


def test_a_network_shows_its_parameters_and_work(capsys):
    code, out, _ = run(capsys, "show", "adlm-small")
    assert code == 0
    assert "293,189,028" in out
    assert "FLOP" in out
    assert '"denoiser_layers": 6' in out


def test_a_smaller_vocabulary_makes_a_smaller_network(capsys):
    _, out, _ = run(capsys, "show", "mdlm-nano", "--vocabulary", "1024", "--length", "64", "--rows", "8")
    assert "8 rows of 64" in out


def test_a_shape_can_be_changed_before_it_is_shown(capsys):
    changes = ["--set", "anchor.width=64", "--set", "denoiser_layers=1", "--set", "hand_over=Continued"]
    code, out, _ = run(capsys, "show", "adlm-nano", *changes)
    assert code == 0
    assert '"width": 64' in out
    assert '"kind": "Continued"' in out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["show", "adlm-smal"], "'adlm-small'"),
        (["show"], "`adlm recipes`"),
        (["list", "adlm-small"], "adlm recipes show NAME"),
        (["show", "adlm-small", "--set", "anchor.widht=640"], "'width'"),
        (["list", "--vocabulary", "1"], "--vocabulary"),
        (["show", "openwebtext-adml"], "'openwebtext-adlm'"),
        (["show", "text8-adlm-medium"], "micro, nano, tiny"),
        (["show", "text8-adlm", "--length", "64"], "--length"),
        (["show", "text8-adlm", "--set", "train.stesp=7"], "'steps'"),
        (["show", "text8-adlm", "--set", "train.tokens_per_step=100"], "train.tokens_per_step=256"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(capsys, words, named):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert named in err
