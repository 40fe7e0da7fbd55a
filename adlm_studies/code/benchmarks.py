"""Programs: what reference solutions cost a model, given their prompts, and how many of its own pass their tests.

HumanEval and pass@k: Chen et al. 2021 (arXiv 2107.03374). MBPP: Austin et al. 2021 (arXiv 2108.07732).
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.data.packing import Packing
from adlm.data.records import json_records
from adlm.data.tokenizer import Tokenizer
from adlm.errors import DataError, ModelError, OutOfRange, UnknownName
from adlm.models.language_model import LanguageModel
from adlm.objectives.bound import position_nats
from adlm.randomness import Noise
from adlm.samplers.stopping import cut_at
from adlm.types import Batch
from adlm_studies.code.sandbox import ProgramLimits, run

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]
STATUSES = ("passed", "failed", "timeout", "ended")
_ROWS = 16  # scored at a time
_WINDOWS = 1 << 16  # more than a solution has: the noise of problem i begins at row i times this
_TEST_TASKS = range(11, 511)


@dataclass(frozen=True)
class CodeProblem:
    """A problem: its prompt, the reference solution, and the tests that `prompt + answer` has to pass."""

    name: str
    prompt: str
    solution: str
    tests: str


class CodeBenchmark(NamedTuple):
    """The layout of a benchmark: its file, its records as problems, and the strings at which answers are cut."""

    file: str
    read: Callable[[Mapping[str, object]], CodeProblem | None]
    stops: tuple[str, ...]


def _humaneval(record: Mapping[str, object]) -> CodeProblem:
    name, prompt, solution, tests, entry = (
        _text(record, field) for field in ("task_id", "prompt", "canonical_solution", "test", "entry_point")
    )
    return CodeProblem(name, prompt, solution, f"{tests}\ncheck({entry})\n")


def _mbpp(record: Mapping[str, object]) -> CodeProblem:
    tests = record["test_list"]
    if not isinstance(tests, list) or not tests:
        raise KeyError("test_list")
    # One of the tests is shown, since the words do not tell the function's name.
    prompt = f'"""\n{_text(record, "text")}\n{tests[0]}\n"""\n'
    checks = "\n".join([_text(record, "test_setup_code"), *map(str, tests)])
    return CodeProblem(str(record["task_id"]), prompt, _text(record, "code") + "\n", checks + "\n")


def _mbpp_test(record: Mapping[str, object]) -> CodeProblem | None:
    return _mbpp(record) if record["task_id"] in _TEST_TASKS else None


def _text(record: Mapping[str, object], field: str) -> str:
    value = record[field]
    if not isinstance(value, str):
        raise KeyError(field)
    return value.replace("\r\n", "\n")


_AFTER_FUNCTION = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\nassert")
_AFTER_ANSWER = ("\nassert", '\n"""', "\nprint", "\nif __name__")
BENCHMARKS = {
    "humaneval": CodeBenchmark("HumanEval.jsonl", _humaneval, _AFTER_FUNCTION),
    "mbpp": CodeBenchmark("mbpp.jsonl", _mbpp_test, _AFTER_ANSWER),
    "mbpp-all": CodeBenchmark("mbpp.jsonl", _mbpp, _AFTER_ANSWER),
}


def read_problems(name: str, path: Path) -> list[CodeProblem]:
    """The problems of a set: `mbpp` is its test split, tasks 11 to 510, `mbpp-all` all of it.

    Args:
        path: the folder with the set's file, as published, plain or as .gz; or the file.
    """
    if name not in BENCHMARKS:
        raise UnknownName("set of programming problems", name, BENCHMARKS)
    layout, asked = BENCHMARKS[name], f"cannot read the problems of {name} in {path}"
    candidates = [path] if path.is_file() else [path / f"{layout.file}{ending}" for ending in ("", ".gz")]
    file = next((each for each in candidates if each.is_file()), None)
    if file is None:
        raise DataError(f"{asked}: no {layout.file} or {layout.file}.gz there", subject=str(path))
    problems = []
    for where, record in json_records(file):
        try:
            problem = layout.read(record if isinstance(record, dict) else {})
        except (KeyError, TypeError) as error:
            raise DataError(f"{asked}: {where} has no {error}", subject=where) from error
        if problem is not None:
            problems.append(problem)
    if not problems:
        raise DataError(f"{asked}: there are none in it", subject=str(file))
    return problems


def read_solutions(path: Path, problems: Sequence[CodeProblem]) -> list[list[str]]:
    """Answers to each problem, from a file with one object per line that has a `task_id` and a `completion`."""
    asked = f"cannot read the solutions in {path}"
    if not path.is_file():
        raise DataError(f"{asked}: no such file", subject=str(path))
    found: dict[str, list[str]] = {problem.name: [] for problem in problems}
    strangers = 0
    for where, record in json_records(path):
        name = record.get("task_id") if isinstance(record, dict) else None
        completion = record.get("completion") if isinstance(record, dict) else None
        if name is None or not isinstance(completion, str):
            raise DataError(
                f"{asked}: no task_id or no completion at {where}; write one JSON object per line with both",
                subject=where,
            )
        strangers += str(name) not in found
        found.setdefault(str(name), []).append(completion)
    missing = [problem.name for problem in problems if not found[problem.name]]
    if missing:
        more = f", and {strangers} of problems that are not in the set" if strangers else ""
        raise DataError(
            asked,
            f"none for {len(missing)} of {len(problems)} problems, {missing[0]} the first{more}",
            "add them, an empty completion where there is none, or ask for fewer with --problems",
            subject=missing[0],
        )
    return [found[problem.name] for problem in problems]


def pass_at(n: int, passed: int, k: int) -> float:
    """The probability that one of k answers, drawn from n of which `passed` pass, passes: 1 - C(n-c, k) / C(n, k)."""
    if not 1 <= k <= n:
        raise OutOfRange("k", k, f"1 to {n}, the answers per problem")
    return 1 - math.comb(n - passed, k) / math.comb(n, k)


def run_tests(
    problems: Sequence[CodeProblem], answers: Sequence[Sequence[str]], limits: ProgramLimits | None = None
) -> Callable[[Numbers], Array]:
    """A function for `each_of` that runs answers and counts their `STATUSES` per problem, [n, 4]."""

    def compute(numbers: Numbers) -> Array:
        jobs = [(row, problems[i], answer) for row, i in enumerate(numbers.tolist()) for answer in answers[i]]
        counts = np.zeros((len(numbers), len(STATUSES)))
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            outcomes = pool.map(lambda job: run(job[1].prompt + job[2], job[1].tests, limits=limits), jobs)
            for (row, *_), outcome in zip(jobs, outcomes, strict=True):
                counts[row, STATUSES.index(outcome.status)] += 1
        return counts

    return compute


class _Row(NamedTuple):
    ids: list[int]
    given: int


class EncodedSolution(NamedTuple):
    """A problem for one model: its rows, of which the first tokens are given, tokens to write, bytes to write."""

    rows: list[_Row]
    tokens: int
    bytes: int
    prompt_cut: bool
    windows: bool


def encode_problem(problem: CodeProblem, tokenizer: Tokenizer, packing: Packing) -> EncodedSolution:
    """The solution and the end token after the prompt, encoded apart from it, on one row if they fit.

    Else in windows that fill their rows: the first holds the end of the prompt and the beginning of the solution, and
    each later one begins with as much of the text before it as leaves half of the row, or less, to be written.
    """
    begin, end = packing.frame(tokenizer.roles)
    prompt, solution = tokenizer.encode_batch([problem.prompt, problem.solution])
    before, target = prompt.tolist(), [*solution.tolist(), *end]
    size, room = len(problem.solution.encode()), packing.length - len(begin)
    if len(before) + len(target) <= room:
        return EncodedSolution(
            [_Row([*begin, *before, *target], len(begin) + len(before))], len(target), size, False, False
        )
    whole, half = [*before, *target], room // 2
    kept = min(len(before), max(half, room - len(target)))
    at = len(before) - kept + room
    rows = [_Row([*begin, *whole[len(before) - kept : at]], len(begin) + kept)]
    while at < len(whole):
        step = min(room - half, len(whole) - at)
        rows.append(_Row([*begin, *whole[at + step - room : at + step]], packing.length - step))
        at += step
    return EncodedSolution(rows, len(target), size, kept < len(before), len(rows) > 1)


def count_lossy(problems: Sequence[CodeProblem], tokenizer: Tokenizer) -> int:
    """The number of solutions that a tokenizer does not reproduce exactly: their cost is not that of the text."""
    ids = tokenizer.encode_batch([problem.solution for problem in problems])
    return sum(tokenizer.decode(row) != problem.solution for row, problem in zip(ids, problems, strict=True))


def solution_nats(
    model: LanguageModel,
    texts: Sequence[EncodedSolution],
    packing: Packing,
    *,
    pad_id: int,
    draws: int = 16,
    seed: int = 0,
) -> Callable[[Numbers], Array]:
    """A function for `each_of`: nats of each solution given its prompt, [n, 1]; exact left to right, else the bound.

    Where a model writes its padding, that is in it, as in the bound of its rows.
    """
    noise = Noise(seed).fork("code")
    device = next(model.parameters(), torch.zeros(0)).device

    def compute(numbers: Numbers) -> Array:
        rows = [(place, n, row) for place, i in enumerate(numbers.tolist()) for n, row in enumerate(texts[i].rows)]
        out = np.zeros((len(numbers), 1))
        for start in range(0, len(rows), _ROWS):
            some = rows[start : start + _ROWS]
            draw = torch.tensor([int(numbers[place]) * _WINDOWS + n for place, n, _ in some])
            batch = _batch([row for *_, row in some], draw, packing, pad_id).to(device)
            with torch.no_grad():
                nats = position_nats(model, batch, draws=draws, noise=noise).double().sum(-1).cpu()
            if not nats.isfinite().all():
                raise ModelError(
                    "a solution has a cost that is not finite",
                    fix="train again: the weights are damaged",
                    subject="nats",
                )
            for (place, *_), value in zip(some, nats.tolist(), strict=True):
                out[place] += value
        return out

    return compute


def _batch(rows: Sequence[_Row], draw: torch.Tensor, packing: Packing, pad_id: int) -> Batch:
    padded = packing.pads and packing.padding_counts
    length = packing.length if padded else max(len(row.ids) for row in rows)
    tokens = torch.tensor([row.ids + [pad_id] * (length - len(row.ids)) for row in rows])
    place = torch.arange(length)
    valid = torch.stack([(place < len(row.ids)) | padded for row in rows])
    fixed = torch.stack([place < row.given for row in rows])
    return Batch(tokens, valid, draw, draw, fixed)


def completions(
    problems: Sequence[CodeProblem],
    write: Callable[[str], Sequence[str]],
    room: Callable[[str], bool],
    stops: Sequence[str],
) -> Iterator[list[str]]:
    """A model's answers to each problem, cut where they end; none where the prompt leaves no room for one.

    Args:
        write: texts that continue a prompt, prompt included.
    """
    for problem in problems:
        texts = write(problem.prompt) if room(problem.prompt) else []
        # What a model writes after its answer is not part of it.
        yield [cut_at(text.removeprefix(problem.prompt), stops)[0] for text in texts]
