"""A study whose steps run side by side: the same outcomes, nothing twice, and a failure stops only what needs it."""

from contextlib import contextmanager

from filelock import FileLock

from adlm.errors import JobsFailed
from adlm.train.callbacks import Callback
from adlm_studies.experiments.demo import Demo
from adlm_studies.experiments.efficiency import Efficiency
from adlm_studies.experiments.side_by_side import run_side_by_side
from adlm_studies.experiments.study import finished_outcomes, run_study
from adlm_studies.experiments.timing import TimeSampling, TimeTraining
from tests.errors import raises
from tests.studies.experiments.test_study import Counting, done


class Messages(Callback):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def log(self, message: str) -> None:
        self.messages.append(message)


def test_the_outcomes_are_those_of_one_step_after_the_other(tmp_path):
    alone = run_study(Counting(), tmp_path / "alone")
    (tmp_path / "jobs").mkdir()
    assert run_side_by_side(Counting(), tmp_path / "jobs", jobs=2) == alone
    assert sorted(done(tmp_path / "jobs")) == ["part/0", "part/1", "part/2", "sum"]
    assert run_side_by_side(Counting(), tmp_path / "jobs", jobs=2) == alone
    assert len(done(tmp_path / "jobs")) == 4


def test_a_step_that_fails_is_named_and_the_others_are_done(tmp_path):
    shown, begun = Messages(), []

    @contextmanager
    def callbacks(step, count, of):
        begun.append((step.name, count, of))
        yield shown

    (tmp_path / "fail-0").touch()
    with raises(JobsFailed, subject="part/0"):
        run_side_by_side(Counting(), tmp_path, jobs=2, callbacks=callbacks)
    assert sorted(done(tmp_path)) == ["part/1", "part/2"]
    assert sorted(begun) == [("part/0", 0, 4), ("part/1", 1, 4), ("part/2", 2, 4)]
    assert [message for message in shown.messages if "told to" in message]
    assert "RuntimeError: told to" in (tmp_path / "steps" / "part" / "0.log").read_text()
    (tmp_path / "fail-0").unlink()
    with FileLock(tmp_path / "steps" / "part" / "0.lock"):  # another process holds it: what needs it has to wait
        assert [each.name for each in run_side_by_side(Counting(), tmp_path, jobs=2)] == ["part/1", "part/2"]
    assert len(run_side_by_side(Counting(), tmp_path, jobs=2)) == 4
    assert sorted(done(tmp_path)) == ["part/0", "part/1", "part/2", "sum"]


def test_one_job_runs_in_this_process(tmp_path):
    assert run_side_by_side(Counting(), tmp_path, jobs=1) == finished_outcomes(Counting(), tmp_path)
    assert not list(tmp_path.rglob("*.log"))


def test_what_takes_longest_costs_most():
    """Masked models are scored and sampled in many passes."""
    costs = {step.name: step.work.cost for step in Demo().steps()}
    assert min(costs.values()) == costs["player"] == costs["speed"] == 0
    same = {step.name: step.work.cost / step.work.run.train.steps for step in Demo().steps() if costs[step.name]}
    assert min(same["mdlm"], same["adlm"]) > same["ar"]
    assert Demo(training_steps=100).steps()[0].work.cost < costs["ar"]


def test_steps_that_measure_time_run_alone():
    timed = {type(step.work) for step in Efficiency().steps() if step.work.alone}
    assert timed == {TimeTraining, TimeSampling}
