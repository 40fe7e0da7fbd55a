"""What version 0.1 wrote still loads, and means the same."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import adlm
from adlm.config import from_json, to_json
from adlm.recipes.named import recipe
from adlm.train.run import Run

FOLDER = Path(__file__).parent / "compat" / "v0_1"
RECIPES = json.loads((FOLDER / "recipes.json").read_text(encoding="utf-8"))
EXPECTED = load_file(FOLDER / "expected.safetensors")


@pytest.mark.parametrize("name", RECIPES)
def test_a_stored_run_is_todays_recipe(name):
    run = from_json(Run, RECIPES[name])
    assert run == recipe(name)
    assert from_json(Run, json.loads(json.dumps(to_json(run)))) == run


@pytest.mark.parametrize("kind", ["adlm", "a2r", "ar", "mdlm"])
def test_a_saved_model_gives_the_same_logits(kind):
    model = adlm.load(FOLDER / f"run-{kind}")
    tokens = torch.arange(24).view(2, 12) % 40
    with torch.no_grad():
        logits = model.network.eval()(tokens)[..., :50]
    torch.testing.assert_close(logits.clamp_min(-1e9), EXPECTED[f"{kind}.logits"], atol=1e-5, rtol=0)


def test_every_model_is_compared():
    assert {f"{kind}.logits" for kind in ("adlm", "a2r", "ar", "mdlm")} == set(EXPECTED)
    assert len(RECIPES) > 50
