import json
import math
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm.errors import DataError, TrainingError
from adlm.train.metrics import FLUSH_LINES, FLUSH_SECONDS, MetricsFile, StepMetrics, ValidationMetrics, read_metrics
from adlm.types import Estimate
from tests.errors import raises


def report(step: int, steps: int = 100, **changes) -> StepMetrics:
    values = {"loss": 6.0 / step, "bound": 5.0 / step, "grad_norm": 1.5, "lr": 3e-4, "tokens": 1024 * step}
    machine = {"seconds": 0.5 * step, "speed": 2048.0, "memory": 10**9, "skipped": 0}
    return StepMetrics(**{"step": step, "steps": steps, **values, **machine, **changes})


def validated(step: int, **changes) -> ValidationMetrics:
    return ValidationMetrics(
        **{
            "step": step,
            "nats": Estimate(3.214, 0.012, 4),
            "perplexity": math.exp(3.214),
            "best": True,
            "seconds": 2.0,
            **changes,
        }
    )


def steps_in(path) -> list[int]:
    return [record["step"] for record in read_metrics(path)]


def strict(text: str):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_step_and_a_validation_are_lines_with_what_the_machine_decides_apart(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.on_step(report(1))
        metrics.on_validation(validated(1, samples=("a text", "zwei\nZeilen")))
    first, second = read_metrics(path)
    assert first.pop("machine") == {"seconds": 0.5, "speed": 2048.0, "memory": 10**9}
    assert first == {
        "step": 1,
        "steps": 100,
        "loss": 6.0,
        "bound": 5.0,
        "grad_norm": 1.5,
        "lr": 3e-4,
        "tokens": 1024,
        "skipped": 0,
    }
    assert second.pop("machine") == {"seconds": 2.0}
    assert second == {
        "step": 1,
        "validation": {
            "nats": {"mean": 3.214, "error": 0.012, "draws": 4},
            "perplexity": math.exp(3.214),
            "best": True,
            "samples": ["a text", "zwei\nZeilen"],
        },
    }


@given(
    st.floats(),
    st.floats(),
    st.floats(),
    st.lists(st.text(st.characters(exclude_categories=())), max_size=3).map(tuple),
)
def test_every_line_is_strict_json_whatever_the_numbers_and_texts(tmp_path_factory, loss, bound, error, samples):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.on_step(report(1, loss=loss, bound=bound))
        metrics.on_validation(validated(1, nats=Estimate(bound, error, 1), samples=samples))
    step, validation = (strict(line) for line in path.read_text().splitlines())
    assert step["loss"] == (loss if math.isfinite(loss) else None)
    assert validation["validation"]["nats"]["error"] == (error if math.isfinite(error) else None)
    assert tuple(validation["validation"]["samples"]) == samples


@given(st.integers(0, 12), st.integers(0, 14), st.integers(0, 300))
def test_going_on_after_any_step_leaves_each_step_once_and_in_order(tmp_path_factory, done, step, lost):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        for number in range(1, done + 1):
            metrics.on_step(report(number))
            if number % 4 == 0:
                metrics.on_validation(validated(number))
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - lost)])
    before = [record for record in read_metrics(path) if record["step"] <= step]
    with MetricsFile(path, step) as metrics:
        assert read_metrics(path) == before
        for number in range(step + 1, 16):
            metrics.on_step(report(number))
    assert read_metrics(path)[: len(before)] == before
    reported = [record["step"] for record in read_metrics(path) if "validation" not in record]
    assert reported == sorted(set(reported))
    assert reported[-1] == 15


@pytest.mark.parametrize("damage", [b'{"step": 3, "lo', b"\0" * 700, b"\0" * 700 + b"\n", b"[]\n", b'{"loss": 1}\n'])
def test_a_damaged_end_is_left_out_and_mended_when_the_run_goes_on(tmp_path, damage):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.on_step(report(1))
        metrics.on_step(report(2))
    whole = path.read_bytes()
    path.write_bytes(whole + damage)
    if not damage.endswith(b"\n"):
        assert steps_in(path) == [1, 2]
    MetricsFile(path, step=2).close()
    assert path.read_bytes() == whole


def test_damage_in_the_middle_is_named_by_its_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo\n{"step": 3}\n')
    with raises(DataError, subject=f"{path}:2"):
        read_metrics(path)


def test_a_run_without_metrics_is_named(tmp_path):
    with raises(DataError, subject=str(tmp_path / "metrics.jsonl")):
        read_metrics(tmp_path / "metrics.jsonl")


def test_lines_are_buffered_and_on_disk_before_a_validation_a_checkpoint_and_the_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    metrics.on_step(report(1))
    assert steps_in(path) == []
    metrics.on_checkpoint(1)
    assert steps_in(path) == [1]
    metrics.on_step(report(2))
    metrics.on_validation(validated(2))
    assert steps_in(path) == [1, 2, 2]
    metrics.on_step(report(3))
    metrics.close()
    assert steps_in(path) == [1, 2, 2, 3]


def test_lines_do_not_wait_forever(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        for step in range(1, FLUSH_LINES):
            metrics.on_step(report(step))
        assert steps_in(path) == []
        metrics.on_step(report(FLUSH_LINES))
        assert steps_in(path)[-1] == FLUSH_LINES
        metrics.on_step(report(FLUSH_LINES + 1))
        later = time.monotonic() + FLUSH_SECONDS
        monkeypatch.setattr("adlm.train.metrics.time.monotonic", lambda: later)
        metrics.on_step(report(FLUSH_LINES + 2))
        assert steps_in(path)[-1] == FLUSH_LINES + 2


def test_a_killed_process_has_left_every_line_before_its_last_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    program = (
        "import time; from pathlib import Path; from adlm.train.metrics import *\n"
        f"metrics = MetricsFile(Path({str(path)!r}))\n"
        "for step in range(1, 51): metrics.on_step(StepMetrics(step, 99, 1., 1., 1., 1., 1, 1., 1., 1, 0))\n"
        "metrics.on_checkpoint(50); metrics.on_step(StepMetrics(51, 99, 1., 1., 1., 1., 1, 1., 1., 1, 0))\n"
        "print('written', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"written\n"
    process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
    process.wait()
    process.stdout.close()
    assert steps_in(path)[:50] == list(range(1, 51))


def test_a_full_disk_stops_the_run_and_damages_nothing(tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    metrics.on_step(report(1))
    metrics.flush()
    whole = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # A limit on a file's size stops a write in the middle, as a full disk does.
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 20, hard))
        metrics.on_step(report(2))
        with raises(TrainingError, subject=str(path)):
            metrics.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == whole
    metrics.on_checkpoint(2)
    metrics.close()
    assert steps_in(path) == [1, 2]


def test_metrics_of_version_0_1_are_read_with_the_names_of_today(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0, "gradient": 1.5, "rate": 0.1}\n')
    assert read_metrics(path) == [{"step": 1, "loss": 2.0, "grad_norm": 1.5, "lr": 0.1}]


def test_a_folder_that_cannot_be_written_is_an_error_of_the_run(tmp_path):
    (tmp_path / "file").touch()
    with raises(TrainingError, subject=str(tmp_path / "file" / "metrics.jsonl")):
        MetricsFile(tmp_path / "file" / "metrics.jsonl")


def test_cutting_off_reads_only_the_end_of_the_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'not a record\n{"step": 1}\n{"step": 2}\n')
    MetricsFile(path, step=1).close()
    assert path.read_bytes() == b'not a record\n{"step": 1}\n'
