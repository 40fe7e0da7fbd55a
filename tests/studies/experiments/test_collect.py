"""Results reach the documentation as they are, without samples, recordings or paths of a machine."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from adlm_studies.experiments.anchoring import Anchoring
from adlm_studies.experiments.study import read_results, run_study, write_results
from adlm_studies.experiments.training import TrainAndScore

SCRIPT = Path(__file__).resolve().parents[3] / "docs" / "collect.py"
STUDY = Anchoring(seeds=2, corpora=("kjv",), arms=("AR", "MDLM, same cost", "ADLM"))


@pytest.fixture
def collected(tmp_path, monkeypatch):
    """Runs the script on results that a study could have found."""

    def result(self, context):
        nats = {"AR": 1.0, "MDLM": 3.0, "ADLM": 2.0}[
            "ADLM" if "-adlm" in context.name else "AR" if "-ar" in context.name else "MDLM"
        ]
        score = {"nats_per_token": {"mean": nats, "error": 0.1, "draws": 8}}
        curve = [[1, nats, 0.1], [2, nats, 0.1]]
        return {"scores": {"kjv": score}, "parameters": 1, "work": 1, "curve": curve, "texts": ["a", "b", *extra]}

    extra: list[str] = []
    monkeypatch.setattr(TrainAndScore, "execute", result)
    monkeypatch.setattr(
        "adlm_studies.experiments.samples.RecordSample.execute", lambda self, context: {"player": {"frames": []}}
    )
    monkeypatch.setattr("adlm_studies.experiments.anchoring.texts_of", lambda outcomes: [])

    def run(*texts):
        extra[:] = texts
        root = tmp_path / "runs"
        write_results(STUDY, root, run_study(STUDY, root))
        script = runpy.run_path(str(SCRIPT))
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        script["main"].__globals__["OUT"] = out
        monkeypatch.setattr(sys, "argv", ["collect.py", str(root)])
        script["main"]()
        return out

    return run


def test_tables_charts_and_numbers_are_brought_in(collected):
    out = collected()
    page = (out / "anchoring.md").read_text()
    assert "| ADLM |" in page
    assert "![Learning on kjv](anchoring-1.svg)" in page
    assert (out / "anchoring-1.svg").read_text().lstrip().startswith("<svg")
    found = read_results(out / "anchoring.json")
    assert [outcome.labels.get("model") for outcome in found[:3]] == ["AR", "MDLM, same cost", "ADLM"]
    assert all(len(outcome.result.get("texts", [])) <= 1 for outcome in found)
    assert not any("player" in outcome.result for outcome in found)


def test_a_path_of_this_machine_stops_it(collected, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/somebody"))
    record = collected()
    assert json.loads((record / "anchoring.json").read_text())["study"] == "anchoring"
    monkeypatch.setattr(Path, "home", lambda: Path("kjv"))  # which is all over the results
    with pytest.raises(SystemExit, match="a path of this machine"):
        collected()
