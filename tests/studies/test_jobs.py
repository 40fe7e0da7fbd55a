"""Jobs side by side: order, dependencies, failures, signals, and the same weights as alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from adlm.errors import AdlmError, ConfigError, DataError, JobsFailed, OutOfRange
from adlm_studies.jobs import JobWatcher, _Queue, default_workers, run_jobs
from adlm_studies.worker_processes import ProcessJob
from tests.errors import raises
from tests.studies.jobs_to_run import describe, double, fail, hold, unsendable
from tests.studies.runs_to_stop import NAMES, train

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0  # seconds, before something that never comes is given up


class Events(JobWatcher):
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def on_start(self, job: ProcessJob) -> None:
        self.seen.append(("start", job.name))

    def on_event(self, job: ProcessJob, event: Any) -> None:
        self.seen.append(("event", job.name, event))

    def on_end(self, job: ProcessJob, error: AdlmError | None) -> None:
        self.seen.append(("end", job.name))


def started(jobs: Sequence[ProcessJob], workers: int) -> list[str]:
    """The names in the order in which they were started."""
    events = Events()
    run_jobs(jobs, workers=workers, watcher=events)
    return [name for kind, name, *_ in events.seen if kind == "start"]


def test_values_come_back_by_name_and_what_jobs_tell_is_passed_on():
    events = Events()
    found = run_jobs([ProcessJob(f"job {n}", double, (n,)) for n in range(4)], workers=2, watcher=events)
    assert list(found.items()) == [("job 0", 0), ("job 1", 2), ("job 2", 4), ("job 3", 6)]
    for n in range(4):
        mine = [event for event in events.seen if event[1] == f"job {n}"]
        assert mine == [("start", f"job {n}"), ("event", f"job {n}", n), ("end", f"job {n}")]


def test_jobs_run_at_the_same_time_in_other_processes_with_one_thread_each(tmp_path):
    run_jobs([ProcessJob(name, hold, (tmp_path, name, 2)) for name in "ab"], workers=2)
    found = run_jobs([ProcessJob(name, describe) for name in "ab"], workers=2)
    assert {each["parent"] for each in found.values()} == {os.getpid()}
    assert {each["threads"] for each in found.values()} == {1}


def test_one_process_does_one_job_after_another():
    found = run_jobs([ProcessJob(name, describe) for name in "abc"], workers=1)
    assert len({each["pid"] for each in found.values()}) == 1


def test_the_head_of_the_longest_chain_comes_first():
    jobs = [
        ProcessJob("short", double, (1,), cost=1),
        ProcessJob("long", double, (2,), cost=3),
        ProcessJob("head", double, (3,), cost=2),
        ProcessJob("rest of it", double, (4,), needs=("head",), cost=2),
    ]
    assert started(jobs, workers=1) == ["head", "long", "rest of it", "short"]


def test_the_last_jobs_share_the_cores(tmp_path):
    """Each waits until three run at a time."""
    run_jobs([ProcessJob(name, hold, (tmp_path, name, 3)) for name in "abc"], workers=2)


@pytest.mark.parametrize(
    ("costs", "workers", "at_once"),
    [
        ([1, 1, 1], 2, 3),
        ([1, 1, 1, 1], 2, 2),  # two and two are as fast, with half the memory
        ([1, 1, 1, 0, 0], 2, 4),  # what costs nothing does not count
        ([3, 1, 1, 1], 2, 4),
        ([1, 1, 1], 1, 1),
        ([0, 0, 0], 2, 2),
        ([1] * 7, 4, 7),
    ],
)
def test_as_many_run_at_once_as_leave_no_core_idle_at_the_end(costs, workers, at_once):
    queue = _Queue([ProcessJob(f"{i}", double, cost=cost) for i, cost in enumerate(costs)])
    running: list[ProcessJob] = []
    while job := queue.take(running, workers):
        running.append(job)
    assert len(running) == at_once


def test_the_head_of_a_chain_shares_its_core_with_nobody():
    jobs = [ProcessJob(name, double, cost=2) for name in ("a", "b", "head")]
    queue = _Queue([*jobs, ProcessJob("rest", double, needs=("head",), cost=3)])
    running = [queue.take([], 2), queue.take([jobs[2]], 2)]
    assert [job and job.name for job in running] == ["head", "a"]
    assert queue.take(jobs[:2], 2) is None
    queue.end(jobs[2], None, None)
    assert [job and job.name for job in (queue.take(jobs[:1], 2), queue.take(jobs[:2], 2))] == ["rest", "b"]


def test_a_job_that_measures_time_has_the_machine_to_itself():
    jobs = [
        ProcessJob("timed", double, (1,), cost=9, alone=True),
        ProcessJob("a", double, (2,)),
        ProcessJob("b", double, (3,), needs=("timed",)),
    ]
    events = Events()
    run_jobs(jobs, workers=3, watcher=events)
    order = [event[:2] for event in events.seen if event[0] != "event"]
    assert order == [(kind, name) for name in ("a", "timed", "b") for kind in ("start", "end")]


def test_if_a_job_fails_the_others_finish_except_those_that_need_it():
    jobs = [
        ProcessJob("bad", fail, ("bug",), cost=5),
        ProcessJob("needs it", double, (1,), needs=("bad",)),
        ProcessJob("needs that", double, (1,), needs=("needs it",)),
        ProcessJob("good", double, (2,)),
        ProcessJob("also bad", fail, ("error",)),
    ]
    with raises(JobsFailed, subject="bad, also bad", values={"good": 4}) as caught:
        run_jobs(jobs, workers=1)
    assert set(caught.value.errors) == {"bad", "also bad"}
    assert "told to" in str(caught.value)
    assert "needs it, needs that" in str(caught.value)


def test_a_mistake_that_all_jobs_complain_of_is_reported_once():
    with raises(DataError, subject="text"):
        run_jobs([ProcessJob(name, fail, ("error",)) for name in "ab"], workers=2)


def test_a_process_that_dies_is_a_failure_of_its_job_alone():
    jobs = [ProcessJob("dead", fail, ("killed",), cost=2), *(ProcessJob(f"{n}", double, (n,)) for n in range(3))]
    with raises(JobsFailed, subject="dead", values={"0": 0, "1": 2, "2": 4}) as caught:
        run_jobs(jobs, workers=1)
    assert "-9" in str(caught.value)


def test_output_and_traceback_are_in_the_log(tmp_path, capfd):
    jobs = [ProcessJob(kind, fail, (kind,), log=tmp_path / "logs" / kind) for kind in ("prints", "bug")]
    with raises(JobsFailed) as caught:
        run_jobs(jobs, workers=1)
    assert (tmp_path / "logs" / "prints").read_text() == "written\nby a process of its own\n"
    assert "ZeroDivisionError: told to" in (tmp_path / "logs" / "bug").read_text()
    assert str(tmp_path / "logs" / "bug") in caught.value.fix
    assert "told to" not in "".join(capfd.readouterr())


def test_what_cannot_be_run_is_refused_before_anything_is():
    first = ProcessJob("first", fail, ("killed",))
    for bad in (first, ProcessJob("other", double, (1,), needs=("nobody",)), ProcessJob("local", lambda tell: None)):
        with raises(ConfigError, subject=bad.name):
            run_jobs([first, bad])
    with raises(OutOfRange, subject="workers"):
        run_jobs([first], workers=0)


def test_a_value_that_cannot_be_sent_is_an_error_of_its_job():
    with raises(JobsFailed, subject="local"):
        run_jobs([ProcessJob("local", unsendable)], workers=1)


def test_the_default_is_the_cores_this_process_may_use(monkeypatch):
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert default_workers() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert default_workers() == 1


def start(root: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.studies.runs_to_stop", str(root)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def weights(root: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(root.glob("*/model.safetensors"))}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, bytes]:
    """The weights of the same runs, one after the other in this process with one thread."""
    root, threads = tmp_path_factory.mktemp("alone"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for seed, name in enumerate(NAMES):
            train(lambda event: None, root / name, seed)
    finally:
        torch.set_num_threads(threads)
    return weights(root)


@pytest.mark.slow
def test_runs_stopped_and_resumed_have_the_weights_of_each_alone(alone, tmp_path):
    """Ctrl-C goes to every process of the terminal; of one that is killed, the others learn only that it is gone."""
    (tmp_path / "slow").touch()
    for how in ("Ctrl-C", "killed"):
        with start(tmp_path) as process:
            until(lambda: all((tmp_path / f"{name}.runs").exists() for name in ("a", "b")))
            workers = psutil.Process(process.pid).children()
            if how == "Ctrl-C":
                os.killpg(process.pid, signal.SIGINT)
                assert "0 of 3 jobs are finished" in process.communicate(timeout=PATIENCE)[0]
                assert process.returncode == 128 + signal.SIGINT
            else:
                process.kill()
            assert not psutil.wait_procs(workers, timeout=PATIENCE)[1]
            for name in ("a", "b"):
                (tmp_path / f"{name}.runs").unlink()
            assert {path.parents[2].name for path in tmp_path.glob("*/checkpoints/*/state.json")} >= {"a", "b"}
    assert not weights(tmp_path)
    (tmp_path / "slow").unlink()
    with start(tmp_path) as process:
        assert process.communicate(timeout=PATIENCE)[0] == "{'a': 12, 'b': 12, 'c': 12}\n"
    assert weights(tmp_path) == alone
    assert len(set(alone.values())) == 3
