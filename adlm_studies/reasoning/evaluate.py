"""How many problems a model solves: accuracy with its interval, as a `Result`."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from adlm.config import from_json, renamed, to_json
from adlm.data.table import DataConfig
from adlm.distributed import device_for
from adlm.errors import ConfigError
from adlm.evaluate.result import Figure, Result
from adlm.resumable import weights_checksum
from adlm.text_model import TextModel, load
from adlm_studies.reasoning.answers import Accuracy, accuracy
from adlm_studies.reasoning.data import ReasoningData, distinct, read_problems, unknown_fraction
from adlm_studies.reasoning.decode import SolvedProblem, SolveProgress
from adlm_studies.reasoning.diffusion import DiffusionReasoningData
from adlm_studies.reasoning.solve import answer_limit, solve
from adlm_studies.reasoning.tasks import make_task


class Reasoner(NamedTuple):
    """A model that was trained to reason, by its name, and the data it was trained on."""

    name: str
    model: TextModel
    data: ReasoningData | DiffusionReasoningData


def load_reasoner(run: str, *, files: str | None = None, device: str = "auto") -> Reasoner:
    """A model that `adlm reason train` trained.

    Args:
        run: its folder.
        files: the folder with the files of the task, if not where they were in training.
    """
    model = load(run)
    stored = renamed((model.config.run or {}).get("data", {}))
    if stored.get("kind") not in (ReasoningData.__name__, DiffusionReasoningData.__name__):
        found = f"it was trained on {stored.get('kind') or 'unknown data'}"
        fix = "name a folder that `adlm reason train` wrote"
        raise ConfigError(f"{run} cannot reason: {found}; {fix}", subject=run)
    data = from_json(DataConfig, stored, where="run.data")  # type: ignore[type-abstract]
    assert isinstance(data, ReasoningData | DiffusionReasoningData)
    if files is not None:
        task = data.task
        given = {each.name: getattr(task, each.name) for each in fields(task) if each.name != "folder"}
        data = replace(data, task=make_task(task.name, files, **given))
    model.network.eval().to(device_for(device))
    return Reasoner(run, model, data)


def evaluate_reasoning(
    reasoner: Reasoner,
    split: str = "test",
    *,
    problems: int | None = None,
    limit: int | None = None,
    plain: bool = False,
    batch: int = 64,
    seed: int = 0,
    on_progress: SolveProgress | None = None,
) -> tuple[Result, list[SolvedProblem]]:
    """The result on a split, and what became of each problem. A question that is drawn repeatedly counts once.

    Args:
        problems: take this many of the split, from the first; None: all.
        limit: tokens to write at most; by default a few more than the longest solution has.
        plain: a diffusion model unmasks anchors and the rest in one order, instead of anchors first.
        seed: of the sampler of a diffusion model.
    """
    model, data = reasoner.model, reasoner.data
    drawn = read_problems(data.task, split, problems or 0)
    chosen = distinct(drawn)
    limit = limit or answer_limit(data, model.tokenizer, split)
    options: dict[str, Any] = {"limit": limit, "plain": plain, "batch": batch, "seed": seed, "watch": on_progress}
    table, solved = solve(model.network, model.tokenizer, data, chosen, split, **options)
    protocol = {
        "run": to_json(data),
        "split": split,
        "limit": limit,
        "problems": problems,
        "repeated questions left out": len(drawn) - len(chosen),
        "decoding": "greedy" if isinstance(data, ReasoningData) else "plain" if plain else "anchors first",
        "fraction of unknown tokens": unknown_fraction(table, model.tokenizer),
    }
    result = Result(
        "reasoning",
        {"name": reasoner.name, "weights": weights_checksum(model.network)},
        {"name": table.name, "key": table.key, "origin": data.task.origin(split)},
        protocol,
        seed,
        _figures(accuracy([each.right for each in solved]), solved),
        {"right": [float(each.right) for each in solved], "tokens": [float(each.written.tokens) for each in solved]},
    )
    return result, solved


def _figures(right: Accuracy, solved: Sequence[SolvedProblem]) -> dict[str, Figure]:
    tokens = np.array([each.written.tokens for each in solved], float)
    error = float(tokens.std(ddof=1) / math.sqrt(len(tokens))) if len(tokens) > 1 else None
    answered = sum(each.found is not None for each in solved) / len(solved)
    spread = math.sqrt(right.fraction * (1 - right.fraction) / len(solved))
    return {
        "accuracy": Figure(right.fraction, spread, unit="fraction"),
        "accuracy_low": Figure(right.interval[0], unit="fraction, lower end of the 95 % interval (Wilson)"),
        "accuracy_high": Figure(right.interval[1], unit="fraction, upper end of the 95 % interval (Wilson)"),
        "tokens": Figure(float(tokens.mean()), error, unit="tokens written per problem"),
        "answered": Figure(answered, unit="fraction"),
    }


def solved_record(solved: SolvedProblem) -> dict[str, Any]:
    """A problem and its answer, as JSON can hold it."""
    return {
        "number": solved.number,
        "question": solved.problem.question,
        "answer": solved.problem.answer,
        "text": solved.written.text,
        "found": solved.found,
        "right": solved.right,
        "tokens": solved.written.tokens,
        "thoughts": [[prediction._asdict() for prediction in each] for each in solved.written.thoughts],
        "placed": list(solved.written.placed),
    }
