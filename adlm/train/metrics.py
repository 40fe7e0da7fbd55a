"""The metrics of a run: `metrics.jsonl` in its folder, one line per step and one per validation.

    {"step": 1, "steps": 1000, "loss": 6.21, ..., "machine": {"seconds": 0.4, "speed": 2560.0, "memory": 812345678}}
    {"step": 500, "validation": {"nats": {"mean": 3.21, ...}, ...}, "machine": {"seconds": 4.0}}

Two runs that compute the same differ only in `machine`. Every line is strict JSON: a number that is not finite is
null. Steps never decrease from one line to the next.
"""

import json
import math
import mmap
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from adlm.errors import DataError
from adlm.train.callbacks import Callback
from adlm.train.run_folder import writing
from adlm.types import Estimate

METRICS = "metrics.jsonl"
# Lines are written when so many are waiting, or when the oldest has waited so many seconds.
FLUSH_LINES, FLUSH_SECONDS = 100, 2.0
_RENAMED = {"gradient": "grad_norm", "rate": "lr"}  # keys of version 0.1


class StepResult(NamedTuple):
    """The outcome of one optimizer step: means per token over all processes.

    Args:
        grad_norm: before clipping.
        lr: the learning rate of the first parameter group.
        taken: False if something was not finite: weights and optimizer states are unchanged.
        suspects: indices of this process's samples in micro-batches whose loss was not finite.
        stop: some process was told to stop.
        save_failed: some process could not write its part of the last checkpoint.
    """

    loss: float
    bound: float
    grad_norm: float
    lr: float
    taken: bool
    suspects: tuple[int, ...]
    stop: bool
    save_failed: bool


class StepMetrics(NamedTuple):
    """The metrics of a step. `loss` and `bound` are in nats per token.

    Args:
        step: steps done so far; the first report has 1.
        steps: of the whole run.
        bound: the clean bound, free of training-only terms; nan if the objective has none.
        grad_norm: before clipping.
        lr: the learning rate of the first parameter group.
        tokens: trained on so far in the whole run.
        seconds: since this process began training.
        speed: tokens per second over recent steps.
        memory: peak bytes of this process or its device.
        skipped: steps skipped so far because they were not finite.
    """

    step: int
    steps: int
    loss: float
    bound: float
    grad_norm: float
    lr: float
    tokens: int
    seconds: float
    speed: float
    memory: int
    skipped: int


class ValidationMetrics(NamedTuple):
    """The clean bound on held-out text after `step` steps.

    Args:
        nats: per token.
        best: better than every validation before.
        seconds: that the validation took.
        samples: texts of the model at this step.
    """

    step: int
    nats: Estimate
    perplexity: float
    best: bool
    seconds: float
    samples: tuple[str, ...] = ()


class StepClock:
    """Measures the time of training and the speed of the last `window` steps."""

    def __init__(self, window: int = 20) -> None:
        self._began = 0.0
        self._times: deque[float] = deque(maxlen=window + 1)

    def start(self) -> None:
        """Start the clock when training begins."""
        self._began = time.perf_counter()
        self.pause()

    def pause(self) -> None:
        """Leave out time that was spent on something other than training."""
        self._times.clear()
        self._times.append(time.perf_counter())

    def tick(self) -> tuple[float, float]:
        """Count a step; returns the seconds since `start`, and recent steps per second."""
        now = time.perf_counter()
        self._times.append(now)
        return now - self._began, (len(self._times) - 1) / (now - self._times[0])


class MetricsFile(Callback):
    """Writes `metrics.jsonl`, resuming after `step`: what the file holds of later steps is cut off.

    Lines are buffered: at most those since the last checkpoint are lost when the process is killed, and the steps
    they belong to are repeated when the run is resumed.

    Args:
        validated: the last step whose validation counts, if that is not `step`.
    """

    def __init__(self, path: Path, step: int = 0, validated: int | None = None) -> None:
        self.path = path
        self._buffer: list[bytes] = []
        self._oldest = 0.0
        with writing(f"{path} after step {step}", path):
            path.touch()
            # One truncation needs no room, and there is no moment at which an earlier line is missing.
            os.truncate(path, _end(path, step, step if validated is None else validated))
            self._file = path.open("ab", buffering=0)

    def on_step(self, metrics: StepMetrics) -> None:
        record = metrics._asdict()
        machine = {name: record.pop(name) for name in ("seconds", "speed", "memory")}
        self._append({**record, "machine": machine})
        if len(self._buffer) >= FLUSH_LINES or time.monotonic() - self._oldest >= FLUSH_SECONDS:
            self.flush()

    def on_validation(self, metrics: ValidationMetrics) -> None:
        record = {**metrics._asdict(), "nats": metrics.nats._asdict()}
        step, machine = record.pop("step"), {"seconds": record.pop("seconds")}
        self._append({"step": step, "validation": record, "machine": machine})
        self.flush()

    def on_checkpoint(self, step: int) -> None:
        """Have all lines on the disk itself: the checkpoint counts on them."""
        self.flush()
        with writing(str(self.path), self.path):
            os.fsync(self._file.fileno())

    def flush(self) -> None:
        """Write the buffered lines. If the disk is full, the file stays as it was and the lines stay buffered."""
        rest = b"".join(self._buffer)
        end = self._file.seek(0, os.SEEK_END)
        with writing(str(self.path), self.path):
            try:
                while rest:  # a disk that fills up takes the beginning of a line
                    rest = rest[self._file.write(rest) :]
            except OSError:
                self._file.truncate(end)
                raise
        self._buffer.clear()

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _append(self, record: dict[str, Any]) -> None:
        if not self._buffer:
            self._oldest = time.monotonic()
        self._buffer.append(json.dumps(_finite(record), allow_nan=False).encode() + b"\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a run, also of one that is running or was killed: an incomplete last line is left out."""
    return list(each_metric(path))


def each_metric(path: Path) -> Iterator[dict[str, Any]]:
    """As `read_metrics`, one at a time."""
    if not path.is_file():
        raise DataError(f"no metrics in {path.parent}: the run has not taken a step", subject=str(path))
    return _records(path)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            record = _record(line)
            if record is None:
                fix = "delete the line; damage at the end of the file is repaired when the run is resumed"
                found = f"line {number} is damaged: {line[:60]!r}"
                raise DataError(f"cannot read the metrics in {path}", found, fix, subject=f"{path}:{number}")
            yield record


def _end(path: Path, step: int, validated: int) -> int:
    """Where the last complete line that counts ends. Steps never decrease, so the search starts at the end."""
    if not path.stat().st_size:
        return 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as lines:
        end = lines.rfind(b"\n") + 1
        while end:
            begin = lines.rfind(b"\n", 0, end - 1) + 1
            record = _record(lines[begin:end])
            if record is not None and record["step"] <= (validated if "validation" in record else step):
                break
            end = begin
        return end


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    for old, new in _RENAMED.items():
        if old in record:
            record[new] = record.pop(old)
    return record


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
