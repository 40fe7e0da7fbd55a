"""What a run records: `metrics.jsonl` in its folder, a line a step and a line a validation.

    {"step": 1, "steps": 1000, "loss": 6.21, ..., "machine": {"seconds": 0.4, "speed": 2560.0, "memory": 812345678}}
    {"step": 500, "validation": {"nats": {"mean": 3.21, ...}, ...}, "machine": {"seconds": 4.0}}

Two runs that compute the same differ only in what is under `machine`. Every line is strict JSON: a number that is
not finite is null. Steps never fall from one line to the next.
"""

import json
import math
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from adlm.errors import DataError
from adlm.train.folder import writing
from adlm.types import Estimate

METRICS = "metrics.jsonl"


class StepMetrics(NamedTuple):
    """What a step did, and how far the run is. `loss` and `bound` are nats per token.

    Args:
        step: steps done so far; the first report has 1.
        steps: of the whole run.
        bound: the clean bound, free of training-only terms; nan where the objective has none.
        gradient: its norm before clipping.
        rate: the learning rate of the first group.
        tokens: trained on so far in the whole run.
        seconds: since this process began training.
        speed: tokens per second over recent steps.
        memory: bytes, the peak of this process or its device.
        skipped: steps left out so far because they were not finite.
    """

    step: int
    steps: int
    loss: float
    bound: float
    gradient: float
    rate: float
    tokens: int
    seconds: float
    speed: float
    memory: int
    skipped: int


class ValidationMetrics(NamedTuple):
    """What held-out text cost after `step` steps.

    Args:
        nats: of the clean bound, a token.
        best: better than every validation before.
        seconds: that it took.
        samples: texts of the model at this step.
    """

    step: int
    nats: Estimate
    perplexity: float
    best: bool
    seconds: float
    samples: tuple[str, ...] = ()


class MetricsFile:
    """The record of a run that goes on after `step`; what the file holds of later steps is cut off.

    Args:
        validated: the last step whose validation counts, where that is not `step`.
    """

    def __init__(self, path: Path, step: int = 0, validated: int | None = None) -> None:
        self.path = path
        with writing(f"{path} after step {step}"):
            path.touch()
            # One truncation needs no room, and there is no moment at which an earlier line is missing.
            os.truncate(path, _end(path, step, step if validated is None else validated))
            # Without a buffer: a line that was written is there, whatever becomes of the process.
            self._file = path.open("ab", buffering=0)

    def report(self, report: StepMetrics) -> None:
        record = report._asdict()
        machine = {name: record.pop(name) for name in ("seconds", "speed", "memory")}
        self._append({**record, "machine": machine})

    def validated(self, validated: ValidationMetrics) -> None:
        record = {**validated._asdict(), "nats": validated.nats._asdict()}
        step, machine = record.pop("step"), {"seconds": record.pop("seconds")}
        self._append({"step": step, "validation": record, "machine": machine})

    def sync(self) -> None:
        """Have all lines on the disk itself, before a checkpoint that counts on them."""
        with writing(str(self.path)):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _append(self, record: dict[str, Any]) -> None:
        rest = json.dumps(_finite(record), allow_nan=False).encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        with writing(f"step {record['step']} to {self.path}"):
            try:
                while rest:  # a disk that fills up takes the beginning of a line
                    rest = rest[self._file.write(rest) :]
            except OSError:
                self._file.truncate(end)
                raise


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a run, also of one that is running or was killed: half a last line is left out."""
    return list(each_metric(path))


def each_metric(path: Path) -> Iterator[dict[str, Any]]:
    """As `read_metrics`, one at a time."""
    if not path.is_file():
        fix = "name the folder of a run that has taken a step"
        raise DataError(f"asked to read the metrics in {path}", "no such file", fix)
    return _records(path)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            record = _record(line)
            if record is None:
                fix = "take the line out; a run that resumes mends damage at the end of the file by itself"
                raise DataError(f"asked to read the metrics in {path}", f"line {number}: {line[:60]!r}", fix)
            yield record


def _end(path: Path, step: int, validated: int) -> int:
    """Where the last whole line that counts ends. Steps never fall, so the search is from the end."""
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
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
