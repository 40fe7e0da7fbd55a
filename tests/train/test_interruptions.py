"""A run that is stopped, by whom and whenever, ends as if it had not been: to the last bit."""

import os
import random
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adlm.errors import Interrupted
from adlm.train.callbacks import Callback
from adlm.train.fit import fit
from adlm.train.optimizers import Muon
from adlm.train.run import FitOptions, Run
from adlm.train.run_folder import CHECKPOINTS
from tests.train.processes import ALL_THE_SAME, SMALL, At, Messages, checkpoint_steps, larger, same, steps_done, train


class Crash(Exception):
    pass


def crash() -> None:
    raise Crash


def term() -> None:
    signal.raise_signal(signal.SIGTERM)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def uninterrupted(run: Run, folder: Path) -> Path:
    fit(run, folder, callbacks=[])
    return folder


def finishes(run: Run, out: Path, *callbacks: Callback) -> bool:
    """Whether `fit` gets to the end of the run."""
    try:
        return fit(run, out, callbacks=callbacks).steps == run.train.steps
    except (Interrupted, Crash):
        return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return uninterrupted(SMALL, tmp_path_factory.mktemp("whole") / "run")


STOPS = st.builds(At, st.integers(1, SMALL.train.steps), st.sampled_from([term, interrupt, crash]), st.booleans())


@settings(max_examples=4, deadline=None)
@given(st.lists(STOPS, min_size=1, max_size=3))
@example([At(SMALL.train.steps - 1, term)])  # after the last step, before the validation that ends the run
@example([At(3, term), At(4, crash, after_validation=True)])  # between a validation and the checkpoint after it
def test_stopped_anywhere_any_number_of_times_it_ends_the_same(whole, tmp_path_factory, stops):
    out = tmp_path_factory.mktemp("stopped") / "run"
    for stop in stops:
        finishes(SMALL, out, stop)
    assert finishes(SMALL, out)
    assert same(out, whole) == ALL_THE_SAME


def test_stopped_before_the_validation_that_ends_it_a_run_takes_no_step_more(tmp_path):
    optimizer = Muon(lr=0.3, matrix_lr=0.3)  # too fast, so that the bound gets worse
    train, validation = replace(SMALL.train, optimizer=optimizer), replace(SMALL.validation, every=3, patience=1)
    run = replace(SMALL, train=train, validation=validation)
    expected = uninterrupted(run, tmp_path / "whole")
    last = steps_done(expected)
    assert last < SMALL.train.steps
    with pytest.raises(Interrupted):
        fit(run, tmp_path / "stopped", callbacks=[At(last - 1, term)])
    fit(run, tmp_path / "stopped", callbacks=[])
    assert same(tmp_path / "stopped", expected) == ALL_THE_SAME


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_and_saves_it(tmp_path, number):
    said = Messages()
    with pytest.raises(Interrupted) as caught:
        fit(SMALL, tmp_path, callbacks=[At(4, lambda: signal.raise_signal(number)), said])
    assert caught.value.signal == number
    assert [line.split(":")[0] for line in said.lines] == [number.name]
    assert checkpoint_steps(tmp_path)[-1] == 5 == steps_done(tmp_path)


def test_a_second_interrupt_stops_at_once_and_loses_no_checkpoint(whole, tmp_path):
    def twice() -> None:
        interrupt()
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        fit(SMALL, tmp_path, callbacks=[At(7, twice)])
    assert steps_done(tmp_path) == 7
    assert checkpoint_steps(tmp_path)[-1] == 6
    assert finishes(SMALL, tmp_path)
    assert same(tmp_path, whole) == ALL_THE_SAME


def test_signals_mean_again_what_they_meant_before(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    finishes(SMALL, tmp_path, At(2, term))
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_message_that_cannot_be_told_does_not_keep_a_run_from_saving(tmp_path):
    """Where a signal comes in the middle of a print, Python refuses another."""

    class Refusing(Callback):
        def log(self, message):
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    with pytest.raises(Interrupted):
        fit(SMALL, tmp_path, callbacks=[At(4, term), Refusing()])
    assert checkpoint_steps(tmp_path)[-1] == 5


def test_a_finished_run_trains_no_more(whole, tmp_path):
    out = uninterrupted(SMALL, tmp_path / "run")
    steps: list[int] = []

    class Steps(Callback):
        def on_step(self, metrics):
            steps.append(metrics.step)

        def on_validation(self, metrics):
            steps.append(metrics.step)

    said = Messages()
    fit(SMALL, out, callbacks=[Steps(), said])
    assert steps == []
    assert "all 12 steps are done already" in said.lines
    assert same(out, whole) == ALL_THE_SAME


@pytest.mark.slow
def test_killed_again_and_again_a_run_ends_the_same(tmp_path):
    """With SIGKILL, at random moments, the first while a checkpoint is being written."""
    run, out, luck = larger(steps=20, width=96), tmp_path / "killed", random.Random(0)
    for kill in range(3):
        process = train(run, out)
        assert process.reached(steps_done(out) + luck.randint(2, 5)), process.said()
        if kill == 0:
            process.kill_while_writing()
            assert process.is_writing()
        else:
            time.sleep(luck.uniform(0, 0.1))
            process.kill()
    said = Messages()
    fit(run, out, callbacks=[said])
    assert len(said.lines) == 1
    assert said.lines[0].startswith("resuming after step ")
    assert same(out, uninterrupted(run, tmp_path / "whole")) == ALL_THE_SAME
    assert not list((out / CHECKPOINTS).glob("*.writing"))


LONG = replace(SMALL, train=replace(SMALL.train, steps=40), validation=replace(SMALL.validation, every=20))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return uninterrupted(LONG, tmp_path_factory.mktemp("long") / "run")


@pytest.mark.parametrize(
    ("number", "options", "send"),
    [
        # To the process and to those that read ahead for it, as a scheduler sends it.
        (signal.SIGTERM, ("--workers", "2"), os.killpg),
        (signal.SIGINT, (), os.kill),
    ],
    ids=["SIGTERM with workers", "SIGINT"],
)
def test_the_command_ends_with_the_code_of_its_signal_and_goes_on(long, tmp_path, number, options, send):
    out = tmp_path / "stopped"
    process = train(LONG, out, *options)
    assert process.reached(5), process.said()
    send(process.inner.pid, number)
    assert process.wait() == 128 + number, process.said()
    found = re.search(r"found: (\d+) of 40 steps are done and saved", process.said())
    assert found is not None, process.said()
    assert checkpoint_steps(out)[-1] == int(found[1]) == steps_done(out)
    assert process.said().count("finishing this step, then saving") == 1
    assert "Traceback" not in process.said()
    fit(LONG, out, callbacks=[])
    assert same(out, long) == ALL_THE_SAME


def test_killed_with_workers_it_goes_on_at_once(long, tmp_path):
    """Those that read ahead outlive a killed process for some seconds."""
    out = tmp_path / "killed"
    process = train(LONG, out, "--workers", "2")
    assert process.reached(5), process.said()
    process.kill()
    assert process.inner.returncode == -signal.SIGKILL
    fit(LONG, out, options=FitOptions(workers=2), callbacks=[])
    assert same(out, long) == ALL_THE_SAME
