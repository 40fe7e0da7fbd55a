"""A study resumes, does nothing twice, and shares its work among processes."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from adlm.errors import ConfigError, DataError, OutOfRange, UnknownName
from adlm.train.callbacks import PrintMessages
from adlm_studies.experiments.study import (
    StepContext,
    StepOutcome,
    Study,
    StudyStep,
    StudyWork,
    check_steps,
    finished_outcomes,
    read_results,
    run_study,
    write_results,
)
from adlm_studies.report.sections import ReportPage
from tests.errors import raises


@dataclass(frozen=True)
class Add(StudyWork):
    """Leaves a line in a file each time it is done; fails while a file says so."""

    number: int
    adds: str = ""

    def execute(self, context: StepContext) -> dict[str, Any]:
        if (context.root / f"fail-{self.number}").exists():
            raise RuntimeError("told to")
        with (context.root / "done.txt").open("a") as file:
            file.write(f"{context.name}\n")
        return {"number": self.number + (_number(context.root, self.adds) if self.adds else 0)}


def _number(root: Path, name: str) -> int:
    return json.loads((root / "steps" / f"{name}.json").read_text())["result"]["number"]


@dataclass(frozen=True)
class Counting(Study):
    name: ClassVar[str] = "counting"
    question: ClassVar[str] = "How many?"
    upto: int = 3

    def steps(self) -> Sequence[StudyStep]:
        steps = [StudyStep(f"part/{n}", Add(n), {"n": n, "seed": 0}) for n in range(self.upto)]
        return [*steps, StudyStep("sum", Add(100, adds="part/0"), {"n": "sum"}, needs=("part/0",))]

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        return ReportPage("Counting", "", [])


def done(root: Path) -> list[str]:
    file = root / "done.txt"
    return file.read_text().split() if file.exists() else []


def test_every_step_is_done_once_and_its_result_kept(tmp_path):
    found = run_study(Counting(), tmp_path)
    assert [outcome.name for outcome in found] == ["part/0", "part/1", "part/2", "sum"]
    assert found[-1].result == {"number": 100}
    assert run_study(Counting(), tmp_path) == found
    assert done(tmp_path) == ["part/0", "part/1", "part/2", "sum"]


def test_stopped_in_the_middle_it_goes_on_with_what_is_left(tmp_path):
    (tmp_path / "fail-1").touch()
    with pytest.raises(RuntimeError, match="told to"):
        run_study(Counting(), tmp_path)
    assert [outcome.name for outcome in finished_outcomes(Counting(), tmp_path)] == ["part/0"]
    (tmp_path / "fail-1").unlink()
    assert len(run_study(Counting(), tmp_path)) == 4
    assert done(tmp_path) == ["part/0", "part/1", "part/2", "sum"]


def test_a_step_that_has_changed_is_done_again_with_what_needs_it_and_no_other(tmp_path):
    run_study(Counting(), tmp_path)
    for name in ("part/1", "sum"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model").touch()

    @dataclass(frozen=True)
    class Changed(Counting):
        def steps(self) -> Sequence[StudyStep]:
            first, *rest = super().steps()
            return [replace(first, work=Add(7)), *rest]

    found = run_study(Changed(), tmp_path)
    assert found[0].result == {"number": 7}
    assert found[-1].result != {"number": 100}
    assert done(tmp_path)[4:] == ["part/0", "sum"]
    assert not (tmp_path / "sum" / "model").exists()  # it was made with the old part
    assert (tmp_path / "part" / "1" / "model").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"step": {}}', '"text"'])
def test_a_damaged_result_is_made_again(tmp_path, content):
    run_study(Counting(), tmp_path)
    (tmp_path / "steps" / "part" / "1.json").write_text(content)
    assert len(run_study(Counting(), tmp_path)) == 4
    assert done(tmp_path)[4:] == ["part/1"]


def test_what_another_process_holds_is_left_to_it(tmp_path):
    lock = tmp_path / "steps" / "part" / "0.lock"
    lock.parent.mkdir(parents=True)
    hold = "lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); time.sleep(60)"
    program = f"import sys, time, filelock; {hold}"
    with subprocess.Popen([sys.executable, "-c", program, lock], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            found = run_study(Counting(), tmp_path)
            assert [outcome.name for outcome in found] == ["part/1", "part/2"]  # sum waits for part/0
        finally:
            holder.kill()
    assert len(run_study(Counting(), tmp_path)) == 4  # a killed process lets go


def test_the_steps_are_watched_one_by_one(tmp_path):
    from contextlib import contextmanager

    seen = []

    @contextmanager
    def callbacks(step, count, of):
        seen.append((step.name, count, of))
        yield PrintMessages()

    run_study(Counting(), tmp_path, callbacks=callbacks)
    assert seen == [("part/0", 0, 4), ("part/1", 1, 4), ("part/2", 2, 4), ("sum", 3, 4)]


def test_results_come_back_from_their_file(tmp_path):
    found = run_study(Counting(seeds=2), tmp_path)
    path = write_results(Counting(seeds=2), tmp_path, found)
    assert read_results(path) == found
    record = json.loads(path.read_text())
    assert record["settings"] == {"kind": "Counting", "scale": "nano", "seeds": 2, "upto": 3}
    assert record["outcomes"][0]["step"]["work"] == {"kind": "Add", "number": 0, "adds": ""}
    assert str(tmp_path) not in path.read_text()


@pytest.mark.parametrize("content", [None, "{}", "[", '{"schema": "other"}'])
def test_other_files_are_no_results(tmp_path, content):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    with raises(DataError, subject=str(path)):
        read_results(path)


def test_steps_of_one_name_or_out_of_order_are_refused():
    with raises(ConfigError, subject="a"):
        check_steps([StudyStep("a", Add(0)), StudyStep("a", Add(1))])
    with raises(ConfigError, subject="a"):
        check_steps([StudyStep("a", Add(0), needs=("b",)), StudyStep("b", Add(1))])


def test_a_scale_or_number_of_seeds_that_makes_no_sense_is_refused():
    with raises(UnknownName, kind="scale"):
        Counting(scale="huge")
    with raises(OutOfRange, subject="seeds"):
        Counting(seeds=0)


def test_nothing_that_json_cannot_hold_is_stored(tmp_path):
    @dataclass(frozen=True)
    class Nothing(StudyWork):
        def execute(self, context: StepContext) -> dict[str, Any]:
            return {"number": float("nan")}

    @dataclass(frozen=True)
    class Bad(Counting):
        def steps(self) -> Sequence[StudyStep]:
            return [StudyStep("nan", Nothing())]

    with pytest.raises(ValueError):
        run_study(Bad(), tmp_path)
    assert finished_outcomes(Bad(), tmp_path) == []
