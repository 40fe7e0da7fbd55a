import json
import logging
import math
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from adlm.errors import MissingExtra, TrainingError, UnknownName
from adlm.train.metrics import StepMetrics, ValidationMetrics
from adlm.train.run_folder import TRACKING
from adlm.train.trackers import Tracker, tracker
from adlm.types import Estimate
from tests.errors import raises

CONFIG = {"kind": "Run", "train": {"steps": 10}}
NAMES = ("tensorboard", "wandb", "trackio")


def report(step: int, **changes) -> StepMetrics:
    return StepMetrics(step, 10, 6.0 / step, 5.0 / step, 1.5, 3e-4, 64 * step, 0.1 * step, 640.0, 10**9, 0)._replace(
        **changes
    )


def validated(step: int, *samples: str) -> ValidationMetrics:
    return ValidationMetrics(step, Estimate(3.0, 0.01, 4), math.exp(3.0), True, 2.0, samples)


def sit(tracked: Tracker, folder: Path, first: int, last: int) -> None:
    """Steps after `first`, with a validation at each third."""
    folder.mkdir(exist_ok=True)
    tracked.start(folder, "tiny", CONFIG, step=first)
    for step in range(first + 1, last + 1):
        tracked.on_step(report(step))
        if step % 3 == 0:
            tracked.on_validation(validated(step, "a text\n  of two lines", "*another*"))
    tracked.close()


def test_an_unknown_tracker_is_named_with_the_nearest():
    with raises(UnknownName, subject="tensorbord"):
        tracker("tensorbord")


@pytest.mark.parametrize(("name", "extra"), [("tensorboard", "track"), ("wandb", "wandb"), ("trackio", "trackio")])
def test_a_missing_library_is_named_with_its_extra_before_the_run_begins(monkeypatch, name, extra):
    monkeypatch.setitem(sys.modules, name, None)
    with raises(MissingExtra, subject=extra):
        tracker(name)


def test_importing_the_trackers_imports_no_library():
    program = f"import sys, adlm.train.trackers; sys.exit(any(name in sys.modules for name in {NAMES}))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def events(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of the purge
    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return accumulator


def test_tensorboard_has_every_number_and_text_at_its_step(tmp_path):
    sit(tracker("tensorboard"), tmp_path, 0, 6)
    found = events(tmp_path)
    assert [(event.step, event.value) for event in found.Scalars("train/loss")] == [
        (step, pytest.approx(6.0 / step)) for step in range(1, 7)
    ]
    assert [(event.step, event.value) for event in found.Scalars("validation/nats")] == [(3, 3.0), (6, 3.0)]
    assert found.Scalars("train/tokens")[-1].value == 6 * 64
    (config,) = found.Tensors("config/text_summary")
    assert '"steps": 10' in config.tensor_proto.string_val[0].decode()
    texts = found.Tensors("validation/samples/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "    a text\n      of two lines" in texts


def test_tensorboard_shows_each_step_once_after_a_resumption(tmp_path):
    sit(tracker("tensorboard"), tmp_path, 0, 8)
    sit(tracker("tensorboard"), tmp_path, 4, 10)
    found = events(tmp_path)
    assert [event.step for event in found.Scalars("train/loss")] == list(range(1, 11))
    assert [event.step for event in found.Scalars("validation/nats")] == [3, 6, 9]


def test_a_number_that_is_not_finite_is_left_out(tmp_path):
    tracked = tracker("tensorboard")
    tracked.start(tmp_path, "tiny", CONFIG)
    tracked.on_step(report(1, bound=math.nan))
    tracked.on_step(report(2))
    tracked.close()
    found = events(tmp_path)
    assert [event.step for event in found.Scalars("train/bound")] == [2]
    assert [event.step for event in found.Scalars("train/loss")] == [1, 2]


class FakeRun:
    """Keeps what it is told, and what it was told before under the same id or name."""

    def __init__(self, store: dict, key: str) -> None:
        self.rows = store.setdefault(key, [])
        self.summary = {name: value for row in self.rows for name, value in row.items()}
        self._next_step = 1 + max((row["step"] for row in self.rows), default=-1)
        self.finished = False

    def define_metric(self, name: str, **options) -> None:
        pass

    def log(self, values: dict, step: int | None = None) -> None:
        assert not self.finished
        assert all(not isinstance(value, float) or math.isfinite(value) for value in values.values())
        self.rows.append(values if step is None else {"step": step, **values})

    def finish(self) -> None:
        self.finished = True


def fake(name: str, store: dict, calls: list) -> SimpleNamespace:
    module = SimpleNamespace(
        Error=RuntimeError, Table=lambda columns, data: data, Markdown=str, finish=lambda: module.run.finish()
    )

    def init(**options):
        calls.append(options)
        module.run = FakeRun(store, options["id" if name == "wandb" else "name"])
        return module.run

    module.init = init
    return module


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_resumed_run_goes_on_as_the_same_and_tells_no_step_twice(monkeypatch, tmp_path, name):
    store, calls = {}, []
    monkeypatch.setitem(sys.modules, name, fake(name, store, calls))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    sit(tracker(name), tmp_path, 0, 8)
    sit(tracker(name), tmp_path, 4, 10)
    (rows,) = store.values()
    assert [row["step"] for row in rows if "train/loss" in row] == list(range(1, 11))
    assert {row["step"] for row in rows if "validation/nats" in row} == {3, 6, 9}
    assert {row["step"] for row in rows if "validation/samples" in row} == {3, 6, 9}
    assert calls[0] == calls[1]
    assert calls[0]["resume"] == "allow"
    assert calls[0]["project"] == "adlm"
    assert calls[0]["config"] == CONFIG


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_runs_of_one_name_in_two_folders_are_two_runs(monkeypatch, tmp_path, name):
    store: dict = {}
    monkeypatch.setitem(sys.modules, name, fake(name, store, []))
    sit(tracker(name), tmp_path / "one", 0, 2)
    sit(tracker(name), tmp_path / "two", 0, 2)
    assert len(store) == 2


def test_a_validation_that_an_interruption_left_out_is_told_after_it(monkeypatch, tmp_path):
    for name in ("wandb", "trackio"):
        store: dict = {}
        monkeypatch.setitem(sys.modules, name, fake(name, store, []))
        sit(tracker(name), tmp_path, 0, 2)
        tracked = tracker(name)
        tracked.start(tmp_path, "tiny", CONFIG, step=2)
        tracked.on_validation(validated(2))
        (rows,) = store.values()
        assert rows[-1]["step"] == 2
        assert rows[-1]["validation/nats"] == 3.0


def test_wandb_keeps_the_project_of_the_environment(monkeypatch, tmp_path):
    calls: list = []
    monkeypatch.setitem(sys.modules, "wandb", fake("wandb", {}, calls))
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    sit(tracker("wandb"), tmp_path, 0, 1)
    assert calls[0]["project"] is None


def test_wandb_without_an_account_says_how_to_go_on(monkeypatch, tmp_path):
    module = fake("wandb", {}, [])

    def init(**options):
        raise module.Error("no API key")

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    with raises(TrainingError, subject="wandb"):
        tracker("wandb").start(tmp_path, "tiny", CONFIG)


def test_a_damaged_identity_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", fake("wandb", {}, []))
    (tmp_path / TRACKING).write_text("[]")
    with raises(TrainingError, subject=str(tmp_path / TRACKING)):
        tracker("wandb").start(tmp_path, "tiny", CONFIG)


def sit_apart(name: str, folder: Path, first: int, last: int, **environment: str) -> None:
    """In a process of its own: these libraries start threads and services."""
    program = f"import sys; from pathlib import Path; sys.path.insert(0, {str(Path(__file__).parent)!r})\n" + (
        f"from test_trackers import sit, tracker; sit(tracker({name!r}), Path({str(folder)!r}), {first}, {last})"
    )
    home = {"HOME": str(folder), "HF_HOME": str(folder / "hf"), "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    environment = {**os.environ, **home, **environment}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, capture_output=True, timeout=120)


def test_the_real_wandb_keeps_a_resumed_run_without_network_or_account(tmp_path):
    pytest.importorskip("wandb")
    sit_apart("wandb", tmp_path, 0, 4)
    sit_apart("wandb", tmp_path, 3, 6)
    identity = json.loads((tmp_path / TRACKING).read_text())["id"]
    files = sorted(tmp_path.glob(f"wandb/offline-run-*-{identity}/run-{identity}.wandb"))
    assert len(files) == 2
    for file in files:
        assert b"train/loss" in file.read_bytes()
    assert list(tmp_path.glob("wandb/offline-run-*/files/media/table/validation/samples*.json"))


def test_the_real_trackio_has_each_step_of_a_resumed_run_once(tmp_path):
    pytest.importorskip("trackio")
    sit_apart("trackio", tmp_path, 0, 8, TRACKIO_DIR=str(tmp_path / "store"))
    sit_apart("trackio", tmp_path, 4, 10, TRACKIO_DIR=str(tmp_path / "store"))
    with sqlite3.connect(tmp_path / "store" / "adlm.db") as store:
        rows = store.execute("select run_name, step, metrics from metrics order by id").fetchall()
    store.close()
    assert len({name for name, _, _ in rows}) == 1
    assert [step for _, step, metrics in rows if "train/loss" in json.loads(metrics)] == list(range(1, 11))
    assert {step for _, step, metrics in rows if "validation/nats" in json.loads(metrics)} == {3, 6, 9}
