"""Outcomes outlive the folder of a study, and never count for a step that has changed."""

import json
from dataclasses import replace

import pytest

from adlm.errors import DataError
from adlm_studies.experiments.anchoring_2 import Anchoring2
from adlm_studies.experiments.outcomes import exchange
from adlm_studies.experiments.paired_rows import TrainAndScoreRows
from adlm_studies.experiments.study import finished_outcomes, run_study, stored_result
from tests.errors import raises

STUDY = Anchoring2(scale="nano", seeds=1, phases=("main",), training_tokens=8192, rows=8)
NAMES = [step.name for step in STUDY.steps()]


@pytest.fixture
def ran(monkeypatch):
    """The steps that were executed; nothing is trained."""
    executed = []

    def execute(self, context):
        executed.append(context.name)
        return {"nats": len(executed)}

    monkeypatch.setattr(TrainAndScoreRows, "execute", execute)
    return executed


def test_on_another_machine_finished_steps_are_not_run_again(tmp_path, ran):
    found = run_study(STUDY, tmp_path / "one")
    assert exchange(STUDY, tmp_path / "one", tmp_path / "kept") == (NAMES, [], [])
    assert exchange(STUDY, tmp_path / "one", tmp_path / "kept") == ([], [], [])
    assert exchange(STUDY, tmp_path / "two", tmp_path / "kept") == ([], NAMES, [])
    assert run_study(STUDY, tmp_path / "two") == found
    assert ran == NAMES
    record = json.loads((tmp_path / "kept" / f"{NAMES[0]}.json").read_text())
    assert record["machine"]["processor"]
    assert "adlm" in record["versions"]


def test_a_changed_run_is_not_taken_for_a_finished_one(tmp_path, ran):
    run_study(STUDY, tmp_path / "one")
    exchange(STUDY, tmp_path / "one", tmp_path / "kept")
    longer = replace(STUDY, rows=16)
    assert exchange(longer, tmp_path / "two", tmp_path / "kept") == ([], [], NAMES)
    assert finished_outcomes(longer, tmp_path / "two") == []
    run_study(longer, tmp_path / "two")
    assert exchange(longer, tmp_path / "two", tmp_path / "kept").exported == NAMES
    assert exchange(STUDY, tmp_path / "three", tmp_path / "kept").changed == NAMES


def test_an_outcome_from_before_a_field_was_added_still_counts(tmp_path, ran):
    run_study(STUDY, tmp_path)
    path = tmp_path / "steps" / f"{NAMES[2]}.json"
    record = json.loads(path.read_text())
    assert record["step"]["work"]["run"]["objective"].pop("zero_at") == 0.0
    path.write_text(json.dumps(record))
    run_study(STUDY, tmp_path)
    assert ran == NAMES
    record["step"]["work"]["run"]["objective"]["gamma"] = 0.1
    path.write_text(json.dumps(record))
    run_study(STUDY, tmp_path)
    assert ran == [*NAMES, NAMES[2]]


def test_a_file_that_was_changed_by_hand_is_refused(tmp_path, ran):
    run_study(STUDY, tmp_path / "one")
    exchange(STUDY, tmp_path / "one", tmp_path / "kept")
    path = tmp_path / "kept" / f"{NAMES[0]}.json"
    path.write_text(path.read_text().replace('"nats": 1', '"nats": 0'))
    with raises(DataError, subject=str(path)):
        exchange(STUDY, tmp_path / "two", tmp_path / "kept")
    path.write_text("half a fi")
    with raises(DataError, subject=str(path)):
        exchange(STUDY, tmp_path / "two", tmp_path / "kept")


def test_paths_of_the_machine_are_not_exported(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainAndScoreRows, "execute", lambda self, context: {"folder": str(context.folder)})
    monkeypatch.setenv("HOME", str(tmp_path))
    run_study(STUDY, tmp_path / "one")
    with pytest.raises(DataError):
        exchange(STUDY, tmp_path / "one", tmp_path / "kept")
    assert not list((tmp_path / "kept").rglob("*.json"))


def test_an_outcome_of_nobody_is_none(tmp_path):
    assert stored_result(tmp_path, "x", {"work": {}, "labels": {}}) is None
