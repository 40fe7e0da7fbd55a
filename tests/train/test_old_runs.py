"""Runs of version 0.1 are resumed as if nothing had changed."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from adlm.recipes.named import find_run
from adlm.train.fit import fit
from adlm.train.metrics import read_metrics

OLD = Path(__file__).resolve().parents[1] / "compat" / "v0_1"


def test_an_interrupted_run_of_0_1_ends_with_the_weights_it_would_have_had(tmp_path):
    folder = shutil.copytree(OLD / "run-adlm-interrupted", tmp_path / "run")
    result = fit(find_run(str(folder)), folder, device="cpu", callbacks=[])
    assert result.steps == 6
    expected, found = load_file(OLD / "run-adlm" / "model.safetensors"), load_file(folder / "model.safetensors")
    assert expected.keys() == found.keys()
    assert max(float((expected[name] - found[name]).abs().max()) for name in expected) < 1e-5
    # Steps before the interruption are read with the names of today, and the others join on.
    records = [record for record in read_metrics(folder / "metrics.jsonl") if "loss" in record]
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert all(record["grad_norm"] > 0 and record["lr"] > 0 for record in records)
    whole = [record for record in read_metrics(OLD / "run-adlm" / "metrics.jsonl") if "loss" in record]
    assert torch.allclose(*(torch.tensor([record["loss"] for record in each]) for each in (records, whole)), atol=1e-4)
