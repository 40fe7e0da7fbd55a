"""A study: a list of steps, each a piece of work with a result, and a report made of the results.

FOLDER/steps/NAME.json     what a step found, with the step itself: a step that is there and unchanged is not done again
FOLDER/NAME/               where a step trains; interrupted, it goes on from its last checkpoint
FOLDER/results.json        all of it in one file
FOLDER/report.html         to look at

Several processes may work in one folder: each takes a step that no other has.
"""

import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from filelock import FileLock, Timeout

from adlm.config import to_json
from adlm.data.shards import write_atomically
from adlm.errors import ConfigError, DataError, UnknownName
from adlm.evaluate.result import versions
from adlm.train.callbacks import Callback, PrintMessages
from adlm_studies.report.sections import ReportPage

SCHEMA = "adlm.study.v1"
SCALES = ("nano", "small", "paper")
RESULTS, REPORT = "results.json", "report.html"


class StepOutcome(NamedTuple):
    """What a step found.

    Args:
        labels: what it is a case of, as in {"model": "ADLM", "seed": 0}.
        result: numbers, texts, or whatever else JSON holds.
    """

    name: str
    labels: Mapping[str, Any]
    result: Mapping[str, Any]


class Place(NamedTuple):
    """Where a step works.

    Args:
        root: the study's folder.
        name: the step's.
        cache: of prepared data.
        callback: told of training steps and messages.
    """

    root: Path
    name: str
    cache: Path
    callback: Callback = PrintMessages()

    @property
    def folder(self) -> Path:
        return self.folder_of(self.name)

    def folder_of(self, name: str) -> Path:
        """Where the step of this name trains its model."""
        return self.root / name

    def result_of(self, name: str) -> Mapping[str, Any]:
        """What a step found that this one needs."""
        stored = _stored(self.root, name)
        if stored is None:
            fix = "run the whole study"
            raise DataError(f"asked for what {name} found, for {self.name}", "it was not done yet", fix)
        return stored["result"]


@dataclass(frozen=True)
class StudyWork(ABC):
    """Work as a value: what decides its result is in its fields."""

    @abstractmethod
    def do(self, place: Place) -> dict[str, Any]:
        """Do it, in `place.folder` where files are needed. Called again after an interruption."""


@dataclass(frozen=True)
class StudyStep:
    """Args:
    name: of its file; may have a slash in it.
    needs: names of steps that have to be done before.
    """

    name: str
    work: StudyWork
    labels: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study(ABC):
    """Args:
    scale: nano runs on a CPU, small needs an hour or two a model there, paper a cluster.
    seeds: of every setting that is trained.
    """

    name: ClassVar[str]
    question: ClassVar[str]  # in a sentence

    scale: str = "nano"
    seeds: int = 3

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise UnknownName("scale", self.scale, SCALES)
        if self.seeds < 1:
            raise ConfigError(f"asked for {self.seeds} seeds", "fewer than 1", "give 1 or more; 3 have an interval")

    @abstractmethod
    def steps(self) -> Sequence[StudyStep]:
        """All of them; a step's needs come before it."""

    @abstractmethod
    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        """Of what is done so far: outcomes may be missing."""


# Around each step: (step, steps done, of how many) -> the callback of its training.
Around = Callable[[StudyStep, int, int], AbstractContextManager[Callback]]


@contextmanager
def _unattended(step: StudyStep, done: int, count: int) -> Iterator[Callback]:
    yield PrintMessages()


def carry_out(
    study: Study, root: Path, *, cache: Path | None = None, around: Around = _unattended
) -> list[StepOutcome]:
    """Do every step that is not done and that no other process is doing. Returns what is done by then.

    Args:
        cache: of prepared data; by default in the study's folder.
    """
    steps = study.steps()
    check(steps)
    described = descriptions(steps)
    while True:
        done = {step.name for step in steps if stored_result(root, step.name, described[step.name]) is not None}
        ready = [step for step in steps if step.name not in done and done.issuperset(step.needs)]
        taken = next(_taken(root, ready), None)
        if taken is None:
            return outcomes(study, root)  # all is done, or is with other processes, or waits for them
        step, release = taken
        try:
            if stored_result(root, step.name, described[step.name]) is None:
                with around(step, len(done), len(steps)) as callback:
                    place = Place(root, step.name, cache or root / "data", callback)
                    _clear_of_another(place, described[step.name])
                    _store(root, step.name, described[step.name], step.work.do(place))
        finally:
            release()


def check(steps: Sequence[StudyStep]) -> None:
    """Names differ, and what a step needs comes before it."""
    seen: set[str] = set()
    for step in steps:
        missing = [need for need in step.needs if need not in seen]
        if step.name in seen or missing:
            found = f"needs {', '.join(missing)} before it" if missing else "there are two of that name"
            raise ConfigError(f"asked for the step {step.name}", found, "mend the study's list of steps")
        seen.add(step.name)


def outcomes(study: Study, root: Path) -> list[StepOutcome]:
    """Of the steps that are done, in the study's order."""
    steps = study.steps()
    described = descriptions(steps)
    found = ((step, stored_result(root, step.name, described[step.name])) for step in steps)
    return [StepOutcome(step.name, step.labels, result) for step, result in found if result is not None]


def stored_result(root: Path, name: str, described: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the step of this name found; None where it was not done, or was another step then."""
    stored = _stored(root, name)
    return stored["result"] if stored is not None and stored["step"] == described else None


def write_results(study: Study, root: Path, found: Sequence[StepOutcome]) -> Path:
    """All results in one file, with what it takes to repeat them."""
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
    """What `write_results` wrote."""
    asked = f"asked to read the results in {path}"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["schema"] != SCHEMA:
            raise ValueError(f"schema {record['schema']!r}, where {SCHEMA!r} is read")
        return [StepOutcome(each["name"], each["labels"], each["result"]) for each in record["outcomes"]]
    except FileNotFoundError:
        raise DataError(asked, "no such file", "run `adlm experiment` first") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(asked, f"not the results of a study: {error}", "run `adlm experiment` again") from error


def descriptions(steps: Sequence[StudyStep]) -> dict[str, dict[str, Any]]:
    """Of steps by name, as JSON gives it back: the work, the labels, and digests of the steps that it needs: where one
    of those becomes another, all that goes on from it is done again."""
    found: dict[str, dict[str, Any]] = {}
    for step in steps:
        described: dict[str, Any] = {"work": to_json(step.work), "labels": to_json(dict(step.labels))}
        if step.needs:
            described["needs"] = {need: _digest(found[need]) for need in step.needs}
        found[step.name] = json.loads(json.dumps(described))
    return found


def _digest(described: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=8).hexdigest()


def _clear_of_another(place: Place, described: Mapping[str, Any]) -> None:
    """Leave in a step's folder only what this very step began: models that others were trained from may be new."""
    path = _file(place.root, place.name, ".begun")
    begun = _read(path)
    if begun is not None and begun != described:
        shutil.rmtree(place.folder, ignore_errors=True)
    write_atomically(path, json.dumps(described) + "\n")


def _file(root: Path, name: str, ending: str = ".json") -> Path:
    return root / "steps" / f"{name}{ending}"


def _stored(root: Path, name: str) -> dict[str, Any] | None:
    stored = _read(_file(root, name))
    return stored if stored is not None and {"step", "result"} <= stored.keys() else None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None  # absent or damaged: done again
    return found if isinstance(found, dict) else None


def _store(root: Path, name: str, described: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    record = {"step": described, "result": result, "versions": versions()}
    write_atomically(_file(root, name), json.dumps(record, indent=1, allow_nan=False) + "\n")


def _taken(root: Path, steps: Sequence[StudyStep]) -> Iterator[tuple[StudyStep, Callable[[], None]]]:
    """The first step that no other process holds, and how to let go of it; a killed process lets go by itself."""
    for step in steps:
        path = _file(root, step.name, ".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        yield step, lock.release
        return
