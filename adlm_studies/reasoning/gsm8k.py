"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): word problems of primary school, as published and as equations alone.

    original    {"question": ..., "answer": "She has 48/2 = <<48/2=24>>24 left.\\n ... #### 72"}, one a line
    equations   question||<<48/2=24>> <<48+24=72>> #### 72, one a line (Deng et al. 2023, arXiv 2311.01460)

What matters of a trace are the numbers of its equations. About one problem in eighty has no equation; it is kept, with
no important token. The training file of the equation form (augmented by GPT-4) is often not there: then the equations
of the original training file are its train split, without the questions of its valid file.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from adlm.errors import DataError, OutOfRange
from adlm_studies.reasoning.answers import NumberAnswers, number_in
from adlm_studies.reasoning.problem import (
    Problem,
    check_split,
    malformed,
    published_file,
    published_folder,
    records,
    text_of,
)

_EQUATION = re.compile(r"<<(.*?)>>")
_DIGITS = re.compile(r"[0-9]*\.?[0-9]+")


def numbers_along(steps: Sequence[str]) -> tuple[str, ...]:
    """Operands and results of the equations in order; a result that the next equation reuses is listed once.

    <<16-3-4=9>> <<9*2=18>> gives 16 3 4 9 2 18.
    """
    said: list[str] = []
    result = None
    for equation in _EQUATION.findall(" ".join(steps)):
        numbers = _DIGITS.findall(equation)
        following = numbers[-1] if numbers and "=" in equation else None
        if result in numbers[:-1]:
            numbers.remove(result)
        said += numbers
        result = following
    return tuple(said)


@dataclass(frozen=True)
class Gsm8k(NumberAnswers):
    """The original files, train.jsonl and test.jsonl; a step is a line of the answer.

    Args:
        folder: where the files are; "" looks in $ADLM_DATA/gsm8k.
        held_out: no file for validation is published; this many problems at the end of the training file are.
    """

    name = "gsm8k"
    folder: str = ""
    held_out: int = 500

    def __post_init__(self) -> None:
        if self.held_out < 0:
            raise OutOfRange("held_out", self.held_out, "0 or more")

    def problems(self, split: str) -> Sequence[Problem]:
        check_split(split)
        if split == "test":
            return [*_original(self._file("test"))]
        problems = [*_original(self._file("train"))]
        kept = max(0, len(problems) - self.held_out)
        return problems[:kept] if split == "train" else problems[kept:]

    def origin(self, split: str) -> str:
        check_split(split)
        last = f"the last {self.held_out}"
        part = {"train": f" without {last} problems", "valid": f", {last} problems of it", "test": ""}[split]
        return f"published: {self._file('test' if split == 'test' else 'train').name}{part}"

    def _file(self, split: str) -> Path:
        return published_file(published_folder(self.folder, self.name), f"{split}.jsonl", self.name)


@dataclass(frozen=True)
class Gsm8kEquations(NumberAnswers):
    """The equation form, train.txt, valid.txt and test.txt; a step is an equation.

    Args:
        folder: where the files are; "" looks in $ADLM_DATA/gsm8k_aug. Where it has no train.txt, the equations of
            train.jsonl in the folder gsm8k beside it are the train split.
    """

    name = "gsm8k-equations"
    folder: str = ""

    def problems(self, split: str) -> Sequence[Problem]:
        path = self._file(split)
        if path.suffix == ".txt":
            return [*_equations(path)]
        held_out = {problem.question for problem in self.problems("valid")}
        problems = (_as_equations(problem) for problem in _original(path))
        return [problem for problem in problems if problem.question not in held_out]

    def origin(self, split: str) -> str:
        path = self._file(split)
        original = "the equations of GSM8K's original training file, without the questions of valid.txt"
        return f"published: {path.name if path.suffix == '.txt' else original}"

    def _file(self, split: str) -> Path:
        check_split(split)
        folder, name = published_folder(self.folder, "gsm8k_aug"), "gsm8k_aug"
        if split == "train" and folder is not None and not (folder / "train.txt").is_file():
            beside = folder.absolute().parent / "gsm8k"
            return published_file(beside if beside.is_dir() else folder, "train.jsonl", "gsm8k")
        return published_file(folder, f"{split}.txt", name)


def _original(path: Path) -> Iterator[Problem]:
    for where, record in records(path):
        question, worked = (text_of(record, field, where) for field in ("question", "answer"))
        trace, answer = _answered(worked, where)
        steps = tuple(line.strip() for line in trace.splitlines() if line.strip())
        yield Problem(question, steps, answer, numbers_along(steps))


def _equations(path: Path) -> Iterator[Problem]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: {error.reason}", subject=str(path)) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        question, bars, worked = line.partition("||")
        if not bars or not question.strip():
            raise malformed(
                where, f"no question before || in {line[:40]!r}", "write question||<<equation>> #### answer"
            )
        trace, answer = _answered(worked, where)
        yield _as_equations(Problem(_spaced(question), (trace,), answer, ()))


def _as_equations(problem: Problem) -> Problem:
    steps = tuple(f"<<{equation}>>" for equation in _EQUATION.findall(" ".join(problem.steps)))
    return Problem(_spaced(problem.question), steps, problem.answer, numbers_along(steps))


def _spaced(question: str) -> str:
    """The same question is spaced differently in the two forms."""
    return " ".join(question.split())


def _answered(worked: str, where: str) -> tuple[str, str]:
    """What stands before the last ####, and the number after it."""
    trace, mark, tail = worked.rpartition("####")
    answer = number_in(tail)
    if not mark or answer is None:
        found = f"{worked[-40:]!r}: no {'number after ####' if mark else '#### before the answer'}"
        raise malformed(where, found, "end the worked answer with #### and a number")
    return trace, answer
