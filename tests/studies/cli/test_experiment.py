"""`adlm experiment` from the command line: real processes, real files."""

import json
from pathlib import Path

import pytest

from adlm.cli import main
from adlm.errors import ConfigError
from adlm.train.run_folder import read_run
from adlm_studies.experiments.paired_rows import TrainAndScoreRows
from adlm_studies.experiments.study import read_results

# Two steps: every part of the command, none of the quality.
TINY = ["--set", 'corpora=["stories"]', "--set", 'arms=["AR", "ADLM"]', "--set", "training_steps=2", "--set", "rows=8"]


def test_the_studies_are_listed_with_what_they_ask(capsys):
    assert main(["experiment", "list"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name in ("anchoring", "generation", "domains", "anchors", "efficiency", "sample-complexity", "blocks"):
        assert name in shown


def test_an_unknown_study_is_named_with_the_nearest(capsys):
    assert main(["experiment", "anchorin"]) == 2
    assert "'anchoring'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scale", "huge"], "scale"),
        (["--seeds", "0"], "seeds"),
        (["--jobs", "0"], "--jobs"),
        (["--set", 'arms=["mdlm-same-cost"]'], "mdlm-same-cost"),
        (["--set", 'corpora=["nowhere"]'], "nowhere"),
        (["--set", "colour=red"], "colour"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_done(words, said, tmp_path, capsys):
    assert main(["experiment", "anchoring", "--out", str(tmp_path / "out"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_plan_trains_nothing_and_leaves_runs_that_train_elsewhere(tmp_path, capsys):
    assert main(["experiment", "anchoring", "--scale", "paper", "--plan", "--seeds", "1", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    files = sorted((tmp_path / "plan").rglob("*.json"))
    assert len(files) == shown.count("adlm train ") > 10
    assert {read_run(file).train.steps for file in files} == {1_000_000}
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.slow
def test_two_jobs_share_the_work_and_the_report_has_all_of_it(tmp_path, capsys):
    words = ["experiment", "anchoring", *TINY, "--seeds", "1", "--out", str(tmp_path)]
    assert main([*words, "--jobs", "2"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [each["labels"].get("model") for each in results["outcomes"]] == ["AR", "ADLM", None]
    assert "Held-out perplexity on stories" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert "To repeat it" in page
    assert str(Path.cwd()) not in page
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("steps/**/*.json")}
    assert main(words) == 0
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("steps/**/*.json")}


def test_outcomes_are_kept_and_read_back_on_another_machine(tmp_path, capsys, monkeypatch):
    executed = []

    def execute(self, context):
        executed.append(context.name)
        score = {"rows": 1, "data": "key", "row_nats": [8.0], "nats_per_token": {"mean": 1.0, "error": 0.1, "draws": 8}}
        return {"scores": {"stories": score}, "stack_parameters": 1, "work": 1, "curve": [[4096, 1.0, 0.1]]}

    monkeypatch.setattr(TrainAndScoreRows, "execute", execute)
    words = ["experiment", "anchoring-2", "--scale", "nano", "--seeds", "1", "--set", 'phases=["main"]', "--jobs", "1"]
    words += ["--outcomes", str(tmp_path / "kept")]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    assert len(list((tmp_path / "kept").rglob("*.json"))) == len(executed) == 3
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "two"), "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "3 imported" in shown
    assert "adlm train" not in shown
    assert main([*words, "--out", str(tmp_path / "two")]) == 0
    assert len(executed) == 3


def test_a_report_of_what_is_finished_so_far_runs_nothing(tmp_path, capsys, monkeypatch):
    score = {"rows": 1, "data": "key", "row_nats": [8.0], "nats_per_token": {"mean": 1.0, "error": 0.1, "draws": 8}}
    result = {"scores": {"stories": score}, "stack_parameters": 1, "work": 1, "curve": [[4096, 1.0, 0.1]]}
    stopped = []

    def execute(self, context):
        if stopped:
            raise ConfigError("nothing more is run")
        stopped.append(context.name)
        return result

    monkeypatch.setattr(TrainAndScoreRows, "execute", execute)
    words = ["experiment", "anchoring-2", "--scale", "nano", "--seeds", "1", "--set", 'phases=["main"]', "--jobs", "1"]
    words += ["--out", str(tmp_path)]
    assert main([*words, "--report", "--plan"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert main([*words, "--report"]) != 0
    assert "no step of anchoring-2 is finished" in capsys.readouterr().err
    assert main(words) != 0
    capsys.readouterr()
    assert main([*words, "--report"]) == 0
    shown = capsys.readouterr().out
    assert "2 steps are not finished" in shown
    assert len(stopped) == 1
    assert len(read_results(tmp_path / "results.json")) == 1
