"""A study: a list of steps, each with a result, and a report of all results.

FOLDER/steps/NAME.json     the result of a step, with the step itself: an unchanged step is not run again
FOLDER/steps/NAME.log      what a step wrote to its output, if it ran in a process of its own
FOLDER/NAME/               where a step trains; interrupted, it resumes from its last checkpoint
FOLDER/results.json        all results in one file
FOLDER/report.html         the report

Several processes may work in one folder: each takes a step that no other process holds.
"""

import hashlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from filelock import FileLock, Timeout

from adlm.config import from_json, to_json
from adlm.errors import AdlmError, ConfigError, DataError, OutOfRange, UnknownName
from adlm.evaluate.result import versions
from adlm.files import write_atomically
from adlm.train.callbacks import Callback, PrintMessages
from adlm.train.execution import processor
from adlm_studies.experiments.compat import current
from adlm_studies.report.sections import ReportPage

SCHEMA = "adlm.study.v1"
SCALES = ("nano", "small", "paper")
RESULTS, REPORT, DATA = "results.json", "report.html", "data"


class StepOutcome(NamedTuple):
    """The result of a step.

    Args:
        labels: the setting, as in {"model": "ADLM", "seed": 0}.
        result: numbers, texts, or whatever else JSON holds.
    """

    name: str
    labels: Mapping[str, Any]
    result: Mapping[str, Any]


class StepContext(NamedTuple):
    """The context in which a step runs.

    Args:
        root: the folder of the study.
        name: of the step.
        cache: of prepared data.
        callback: called with the progress of training and with messages for the user.
    """

    root: Path
    name: str
    cache: Path
    callback: Callback = PrintMessages()

    @property
    def folder(self) -> Path:
        """The folder of this step's files."""
        return self.folder_of(self.name)

    def folder_of(self, name: str) -> Path:
        """The folder of another step, with the model that it trained."""
        return self.root / name


@dataclass(frozen=True)
class StudyWork(ABC):
    """The work of a step, as a value: everything that decides the result is in its fields.

    `alone`: no other step may run at the same time, because it measures time.
    """

    alone: ClassVar[bool] = False

    @property
    def cost(self) -> float:
        """Roughly how long it takes, in any unit: of steps that run side by side, the longest are started first."""
        return 0.0

    @abstractmethod
    def execute(self, context: StepContext) -> dict[str, Any]:
        """The result, as JSON can hold it. Files go to `context.folder`. Called again after an interruption."""


@dataclass(frozen=True)
class StudyStep:
    """A named piece of work.

    Args:
        name: of its file; may contain slashes.
        needs: names of the steps that must be finished before.
    """

    name: str
    work: StudyWork
    labels: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study(ABC):
    """A question, the steps that answer it, and the report.

    Args:
        scale: nano takes minutes per model on a CPU, small an hour or two, paper needs a cluster.
        seeds: of every setting that is trained.
    """

    name: ClassVar[str]
    question: ClassVar[str]  # one sentence

    scale: str = "nano"
    seeds: int = 3

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise UnknownName("scale", self.scale, SCALES)
        if self.seeds < 1:
            raise OutOfRange("seeds", self.seeds, "1 or more")

    @abstractmethod
    def steps(self) -> Sequence[StudyStep]:
        """All steps, each after those that it needs."""

    @abstractmethod
    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        """The report of the steps that are finished: outcomes may be missing."""


# (step, number of finished steps, number of all steps) -> the callbacks while the step runs.
StepCallbacks = Callable[[StudyStep, int, int], AbstractContextManager[Callback]]


@contextmanager
def no_callbacks(step: StudyStep, finished: int, count: int) -> Iterator[Callback]:
    """Messages are printed, progress is not shown."""
    yield PrintMessages()


def check_names(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    """Refuse the first name that is not among the known ones."""
    for name in names:
        if name not in known:
            raise UnknownName(kind, name, known)


def run_study(
    study: Study, root: Path, *, cache: Path | None = None, callbacks: StepCallbacks = no_callbacks
) -> list[StepOutcome]:
    """Run every step that is not finished and that no other process holds. Returns all outcomes that exist then.

    Args:
        cache: of prepared data; by default in the folder of the study.
    """
    steps = study.steps()
    check_steps(steps)
    described = descriptions(steps)
    while True:
        finished = {step.name for step in steps if stored_result(root, step.name, described[step.name]) is not None}
        ready = [step for step in steps if step.name not in finished and finished.issuperset(step.needs)]
        with claimed_step(root, ready) as step:
            if step is None:
                return finished_outcomes(study, root)  # the rest is held by other processes, or waits for them
            if stored_result(root, step.name, described[step.name]) is None:
                with callbacks(step, len(finished), len(steps)) as callback:
                    execute_step(
                        step, described[step.name], StepContext(root, step.name, cache or root / DATA, callback)
                    )


def execute_step(step: StudyStep, described: Mapping[str, Any], context: StepContext) -> None:
    """Carry out a step that this process holds, and store its result."""
    _clear_other(context, described)
    _store(context.root, step.name, described, step.work.execute(context))


def check_steps(steps: Sequence[StudyStep]) -> None:
    """Refuse a list with two steps of one name, or with a step before one that it needs."""
    seen: set[str] = set()
    for step in steps:
        missing = [need for need in step.needs if need not in seen]
        if step.name in seen or missing:
            found = f"is not preceded by {', '.join(missing)}" if missing else "is in the study twice"
            raise ConfigError(f"the step {step.name} {found}", subject=step.name)
        seen.add(step.name)


def finished_outcomes(study: Study, root: Path) -> list[StepOutcome]:
    """The outcomes of the finished steps, in the order of the study."""
    steps = study.steps()
    described = descriptions(steps)
    found = ((step, stored_result(root, step.name, described[step.name])) for step in steps)
    return [StepOutcome(step.name, step.labels, result) for step, result in found if result is not None]


def stored_result(root: Path, name: str, described: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The stored result of the step of this name; None if it is not finished, or was another step then."""
    stored = read_record(step_file(root, name))
    if stored is None or not is_outcome(stored, described):
        return None
    result: Mapping[str, Any] = current(stored["result"])
    return result


def step_result(root: Path, name: str) -> Mapping[str, Any]:
    """The result of a step that another one needs, and which is finished."""
    stored = read_record(step_file(root, name))
    if stored is None:
        raise DataError(f"no result of the step {name} in {root}", subject=name)
    result: Mapping[str, Any] = current(stored["result"])
    return result


def is_outcome(record: Mapping[str, Any], described: Mapping[str, Any]) -> bool:
    """Whether a stored record is the outcome of the step that is described so."""
    return {"step", "result"} <= record.keys() and _same(record["step"], described)


def _same(stored: Any, described: Mapping[str, Any]) -> bool:
    """Whether a stored step is the described one, also if fields that have their defaults were added since."""
    if stored == described:
        return True
    stored = current(stored)
    if not isinstance(stored, dict) or stored.keys() != described.keys():
        return False
    if any(stored[key] != described[key] for key in described if key != "work"):
        return False
    if stored["work"] == described["work"]:
        return True
    try:
        work = from_json(StudyWork, stored["work"])  # type: ignore[type-abstract]
    except AdlmError:
        return False  # not a work that can be read back, or a field that is gone
    return bool(json.loads(json.dumps(to_json(work))) == described["work"])


def write_results(study: Study, root: Path, found: Sequence[StepOutcome]) -> Path:
    """Write all results to one file, with everything that is needed to repeat them."""
    steps = descriptions(study.steps())
    record = {
        "schema": SCHEMA,
        "study": study.name,
        "question": study.question,
        "settings": to_json(study),
        "versions": versions(),
        "outcomes": [{**outcome._asdict(), "step": steps[outcome.name]} for outcome in found],
    }
    path = root / RESULTS
    write_atomically(path, json.dumps(record, indent=1) + "\n")
    return path


def read_results(path: Path) -> list[StepOutcome]:
    """The outcomes that `write_results` wrote, in version 0.1 or later."""
    try:
        record = current(json.loads(path.read_text(encoding="utf-8")))
        if record["schema"] != SCHEMA:
            raise ValueError(f"its schema is {record['schema']!r}, not {SCHEMA!r}")
        return [StepOutcome(each["name"], each["labels"], each["result"]) for each in record["outcomes"]]
    except FileNotFoundError:
        raise DataError(f"no file {path}: run `adlm experiment` first", subject=str(path)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not hold the results of a study: {error}", subject=str(path)) from error


def descriptions(steps: Sequence[StudyStep]) -> dict[str, dict[str, Any]]:
    """Every step by name, as JSON gives it back: its work, its labels, and digests of the steps that it needs.

    If one of those changes, so does the description of every step that builds on it, and it is run again.
    """
    found: dict[str, dict[str, Any]] = {}
    for step in steps:
        described: dict[str, Any] = {"work": to_json(step.work), "labels": to_json(dict(step.labels))}
        if step.needs:
            described["needs"] = {need: digest(found[need]) for need in step.needs}
        found[step.name] = json.loads(json.dumps(described))
    return found


def digest(described: Mapping[str, Any]) -> str:
    """A short checksum of what JSON holds."""
    return hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=8).hexdigest()


def _clear_other(context: StepContext, described: Mapping[str, Any]) -> None:
    """Remove what another step of this name left: the models that it started from may have changed."""
    path = step_file(context.root, context.name, ".begun")
    begun = read_record(path)
    if begun is not None and not _same(begun, described):
        shutil.rmtree(context.folder, ignore_errors=True)
    write_atomically(path, json.dumps(described) + "\n")


def step_file(root: Path, name: str, ending: str = ".json") -> Path:
    """The file with the result of a step, or another one beside it."""
    return root / "steps" / f"{name}{ending}"


def read_record(path: Path) -> dict[str, Any] | None:
    """What a file of a step holds; None if it is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None  # missing or damaged: the step is run again
    return found if isinstance(found, dict) else None


def _store(root: Path, name: str, described: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    record = {"step": described, "result": result, "versions": versions(), "machine": machine()}
    write_atomically(step_file(root, name), json.dumps(record, indent=1, allow_nan=False) + "\n")


def machine() -> dict[str, Any]:
    """What a result was computed on: names of hardware, none of the host."""
    return {"processor": processor(), "cores": os.cpu_count(), "instructions": torch.backends.cpu.get_cpu_capability()}


@contextmanager
def claimed_step(root: Path, steps: Sequence[StudyStep]) -> Iterator[StudyStep | None]:
    """Hold the first step that no other process holds; a killed process releases its own."""
    for step in steps:
        path = step_file(root, step.name, ".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        try:
            yield step
        finally:
            lock.release()
        return
    yield None
