"""Runs on several processes: killed and started again by torchrun, or gone on with on another number of them."""

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from adlm.data.loader import LoaderConfig
from adlm.errors import Interrupted
from adlm.train.fit import fit
from adlm.train.run import CheckpointConfig, Run
from tests.train.processes import (
    ALL_THE_SAME,
    SMALL,
    At,
    Poisoned,
    Process,
    checkpoint_steps,
    larger,
    losses,
    same,
    steps_done,
    train_on_two,
    train_on_two_until,
)

LONGER = larger(steps=30, width=64)


def finished(process: Process) -> Path:
    assert process.wait() == 0, process.said()
    return process.out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On two processes, uninterrupted."""
    return finished(train_on_two(LONGER, tmp_path_factory.mktemp("whole") / "run"))


def kill_one(process: Process, luck: random.Random) -> None:
    """SIGKILL for one of the two, at a random moment after the first checkpoint, and wait for their successors."""
    assert process.reached(steps_done(process.out) + luck.randint(3, 8)), process.said()
    time.sleep(luck.uniform(0, 0.1))
    before = process.workers()
    os.kill(luck.choice(before), signal.SIGKILL)
    assert process.until(lambda: len(process.workers()) == 2 and not {*process.workers()} & {*before}), process.said()


@pytest.mark.slow
def test_started_again_by_torchrun_a_run_ends_as_if_nobody_had_been_killed(whole, tmp_path):
    process = train_on_two(LONGER, tmp_path / "killed", restarts=3)
    kill_one(process, random.Random(0))
    assert same(finished(process), whole) == ALL_THE_SAME
    assert "resuming after step" in process.said()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_started_again_more_than_once_too(whole, tmp_path, seed):
    luck = random.Random(seed)
    process = train_on_two(LONGER, tmp_path / "killed", restarts=3)
    for _ in range(2):
        kill_one(process, luck)
    assert same(finished(process), whole) == ALL_THE_SAME
    assert process.said().count("resuming after step") == 2


def alone(run: Run, out: Path, until: int) -> None:
    """On one process."""
    with pytest.raises(Interrupted):
        fit(run, out, callbacks=[At(until - 1, lambda: signal.raise_signal(signal.SIGTERM))])
    assert checkpoint_steps(out)[-1] == until


def on_two(run: Run, out: Path, until: int, *options: str) -> None:
    process = train_on_two_until(until, run, out, *options)
    assert process.wait() != 0
    assert checkpoint_steps(out)[-1] == until, process.said()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [(("--shard",), ()), ((), ("--shard",))],
    ids=["in parts, then whole", "whole, then in parts"],
)
def test_a_run_goes_on_with_another_number_of_processes(tmp_path, first, second):
    """Two, one, two, one: the losses are those of one throughout."""
    out = tmp_path / "run"
    on_two(SMALL, out, 3, *first)
    alone(SMALL, out, 6)
    on_two(SMALL, out, 9, *second)
    fit(SMALL, out, callbacks=[])
    fit(SMALL, tmp_path / "alone", callbacks=[])
    assert losses(out) == pytest.approx(losses(tmp_path / "alone"), rel=1e-6)
    assert len(losses(out)) == SMALL.train.steps


@pytest.mark.slow
def test_told_to_stop_torchrun_has_all_processes_save_the_same_step(whole, tmp_path):
    out = tmp_path / "stopped"
    process = train_on_two(LONGER, out, "--workers", "1")
    assert process.reached(4), process.said()
    process.inner.send_signal(signal.SIGTERM)
    assert process.wait() != 0
    assert f"{checkpoint_steps(out)[-1]} of 30 steps are done and saved" in process.said()
    assert steps_done(out) == checkpoint_steps(out)[-1] < 30
    assert same(finished(train_on_two(LONGER, out)), whole) == ALL_THE_SAME


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--shard",)], ids=["whole", "in parts"])
def test_a_loss_that_is_not_finite_on_one_process_stops_all_and_names_it(tmp_path, options):
    table = SMALL.data.prepare().train
    sample = int(LoaderConfig(8, SMALL.train.seed).build(table, rank=1, world_size=2).rows(5)[0])
    objective = Poisoned(SMALL.objective.corruption, gamma=0.05, sample=sample)
    run = replace(SMALL, objective=objective, checkpoint=CheckpointConfig(every=4))
    out = tmp_path / "run"
    process = train_on_two_until(12, run, out, *options)
    assert process.wait() != 0
    assert "training step 6 cannot be taken\n" in process.said()
    assert f"rank 1, samples {sample}, " in process.said()
    assert "rank 0, samples" not in process.said()
    assert checkpoint_steps(out)[-1] == 5
    kept = sorted(path.name for path in (out / "nonfinite").iterdir())
    assert kept == [f"step-000000006-rank-{rank}.safetensors" for rank in range(2)]
