"""What a reasoning task is: questions with worked steps, an answer, and the words of the steps that matter.

A task is a value. Where its problems are generated, problem n of a split is a function of (seed, split, n) alone, and
no question is in two splits: a question's own checksum says which one it may be in.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar, overload

from adlm.data.records import json_records
from adlm.errors import DataError, OutOfRange, UnknownName

SPLITS = ("train", "valid", "test")
# Of ten questions, one may be drawn for the test and one for validation.
_OWNERS = ("test", "valid", *["train"] * 8)


@dataclass(frozen=True)
class Problem:
    """A question, the steps to its answer, and the important tokens of the steps in order, as pieces of text."""

    question: str
    steps: tuple[str, ...]
    answer: str
    important: tuple[str, ...]


@dataclass(frozen=True)
class Task(ABC):
    """Problems of one kind, and how an answer to them is read."""

    name: ClassVar[str]

    @abstractmethod
    def problems(self, split: str) -> Sequence[Problem]:
        """The problems of train, valid or test; the same in every call."""

    @abstractmethod
    def origin(self, split: str) -> str:
        """The origin of a split's problems, in words."""

    @abstractmethod
    def parse_answer(self, text: str) -> str | None:
        """The answer in a model's text after the question; None if there is none."""

    def is_correct(self, found: str | None, problem: Problem) -> bool:
        """Whether an answer that was found is the problem's."""
        return found == problem.answer


@dataclass(frozen=True)
class GeneratedTask(Task):
    """A task whose problems are drawn.

    Args:
        seed: of all draws.
        train, valid, test: how many problems a split has. Problem n does not depend on it.
    """

    seed: int = 0
    train: int = 20_000
    valid: int = 500
    test: int = 500

    def __post_init__(self) -> None:
        for field in ("seed", *SPLITS):
            if getattr(self, field) < 0:
                raise OutOfRange(field, getattr(self, field), "0 or more")

    @abstractmethod
    def draw(self, dice: Random) -> Problem:
        """A problem by some dice."""

    def problems(self, split: str) -> Sequence[Problem]:
        return self.drawn(split)

    def origin(self, split: str) -> str:
        return f"generated with seed {self.seed}: {len(self.drawn(split)):,} problems"

    def drawn(self, split: str) -> "GeneratedProblems":
        check_split(split)
        return GeneratedProblems(self, split, range(getattr(self, split)))

    def problem(self, split: str, number: int) -> Problem:
        """One problem of a split, generated without those before it."""
        dice = Random(f"{self.name} {self.seed} {split} {number}")
        while True:
            problem = self.draw(dice)
            digest = hashlib.blake2b(problem.question.encode(), digest_size=8).digest()
            if _OWNERS[int.from_bytes(digest, "big") % len(_OWNERS)] == split:
                return problem


@dataclass(frozen=True)
class GeneratedProblems(Sequence[Problem]):
    """Problems that are drawn when they are used."""

    task: GeneratedTask
    split: str
    numbers: range

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Problem: ...

    @overload
    def __getitem__(self, index: slice) -> "GeneratedProblems": ...

    def __getitem__(self, index: int | slice) -> "Problem | GeneratedProblems":
        if isinstance(index, slice):
            return GeneratedProblems(self.task, self.split, self.numbers[index])
        return self.task.problem(self.split, self.numbers[index])


def check_split(split: str) -> None:
    """Refuse a split that does not exist."""
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)


def published_folder(folder: str, name: str) -> Path | None:
    """The folder of published files: the one given, else $ADLM_DATA/NAME if it exists."""
    if folder:
        path = Path(folder).expanduser()
        if not path.is_dir():
            raise DataError(
                f"there is no folder {folder} with the files of {name}",
                subject=folder,
            )
        return path
    root = os.environ.get("ADLM_DATA")
    kept = Path(root).expanduser() / name if root else None
    return kept if kept is not None and kept.is_dir() else None


def published_file(folder: Path | None, file: str, name: str) -> Path:
    """A file that has to be there."""
    if folder is None:
        asked = f"cannot read problems of {name}"
        raise DataError(
            asked, "no folder with its files", f"name the folder, or keep {file} in $ADLM_DATA/{name}", subject=name
        )
    if not (folder / file).is_file():
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            f"cannot read {file} of {name} in {folder}", there, f"put {file} there, as it is published", subject=file
        )
    return folder / file


def records(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The objects of a JSON file (a list, or one a line), each with the words for where it is."""
    for where, record in [*json_records(path)]:  # so that the file is closed whatever is in it
        if not isinstance(record, Mapping):
            raise malformed(where, f"{str(record)[:40]!r}, which is not an object", "give an object for each problem")
        yield where, record


def text_of(record: Mapping[str, object], field: str, where: str) -> str:
    """A field that has to hold some text."""
    text = record.get(field)
    if not isinstance(text, str) or not text.strip():
        found = f"{field} is {text!r}" if field in record else f"no {field} among {', '.join(record) or 'no fields'}"
        raise malformed(where, found, f"give the {field} as text")
    return text.strip()


def texts_of(record: Mapping[str, object], field: str, where: str) -> tuple[str, ...]:
    """A field that has to hold a list of texts."""
    texts = record.get(field)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise malformed(where, f"{field} is {str(texts)[:40]}", f"give the {field} as a list of sentences")
    return tuple(text.strip() for text in texts)


def malformed(where: str, found: str, fix: str) -> DataError:
    """The error for a record that is not in the expected form."""
    return DataError(f"cannot read a problem at {where}", found, fix, subject=where)
