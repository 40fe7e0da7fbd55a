"""Answers of a model that writes left to right: the likeliest token each time, for many problems at once.

Questions of different lengths are padded on the left, thoughts are fed forward, and of each row only what is new goes
through the network. A row that has ended leaves the batch.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adlm.data.loader import read_rows
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, OutOfRange
from adlm.models.fed import read_fed
from adlm.models.language_model import LanguageModel
from adlm.types import Batch
from adlm_studies.reasoning.data import ReasoningTable
from adlm_studies.reasoning.objective import first_thought_column
from adlm_studies.reasoning.problem import Problem, Task

SolveProgress = Callable[[int, int], None]  # (problems done, number of problems)


class ThoughtPrediction(NamedTuple):
    """A token as text and its probability."""

    token: str
    probability: float


class WrittenAnswer(NamedTuple):
    """The text that a model wrote after a question.

    Args:
        tokens: written, the end token among them; thoughts are not.
        ended: by the end token, and not by the limit.
        thoughts: for each thought the likeliest tokens after it, best first.
        placed: the anchors of a diffusion model, as they were filled in.
    """

    text: str
    tokens: int
    ended: bool
    thoughts: tuple[tuple[ThoughtPrediction, ...], ...] = ()
    placed: tuple[str, ...] = ()


class SolvedProblem(NamedTuple):
    """A problem with its outcome; `found` is the answer in the text, None if there is none."""

    number: int
    problem: Problem
    written: WrittenAnswer
    found: str | None
    right: bool


@torch.no_grad()
def answer_left_to_right(
    model: LanguageModel,
    table: ReasoningTable,
    tokenizer: Tokenizer,
    *,
    fed: bool,
    limit: int,
    batch: int = 64,
    top: int = 3,
    watch: SolveProgress | None = None,
) -> list[WrittenAnswer]:
    """The text that the model writes for each row of a table, after what is given in it.

    Args:
        fed: thoughts are read as the state of the place before.
        limit: tokens that are written at most.
        top: number of tokens for each thought.
    """
    if limit < 1 or batch < 1 or top < 1:
        name, value = next(each for each in (("limit", limit), ("batch", batch), ("top", top)) if each[1] < 1)
        raise OutOfRange(name, value, "1 or more")
    if not model.causal:
        raise ConfigError(
            f"{type(model).__name__} sees both sides and cannot write left to right",
            fix="use a model with causal stacks, or adlm_studies.reasoning.diffusion",
            subject="network",
        )
    done: list[WrittenAnswer] = []
    with model.inference_weights():
        for start in range(0, len(table), batch):
            rows = read_rows(table, np.arange(start, min(start + batch, len(table))))
            done += _write_some(model, _given(rows, table.given), tokenizer, table.thoughts * fed, limit, top)
            if watch is not None:
                watch(len(done), len(table))
    return done


def _given(batch: Batch, columns: int) -> Batch:
    """What is given, and nothing of what is to be written."""
    tokens, valid = batch.tokens[:, :columns], batch.valid[:, :columns]
    used = valid.any(0).long().argmax()  # columns that are padding in all these rows
    fixed = None if batch.frozen is None else batch.frozen[:, used:columns]
    return Batch(tokens[:, used:], valid[:, used:], batch.index, batch.sample_id, fixed)


def _write_some(
    model: LanguageModel, given: Batch, tokenizer: Tokenizer, fed: int, limit: int, top: int
) -> list[WrittenAnswer]:
    device = next(model.parameters()).device
    given = given.to(device)
    rows, columns = given.tokens.shape
    end = tokenizer.roles.eos_id
    cache = model.cache(rows, columns + limit, segments=given.segments)
    thoughts: list[tuple[tuple[ThoughtPrediction, ...], ...]] = [()] * rows
    if fed:
        states = read_fed(model, given.tokens, first_thought_column(given, fed), fed, cache).final
        thoughts = [top_predictions(model.logits(each), tokenizer, top) for each in states[:, :fed]]
        last = states[:, -1]
    else:
        last = model.extend(given.tokens, cache).final
    tokens = torch.full((rows, limit), end, device=device)
    count = torch.full((rows,), limit, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    writing = torch.arange(rows, device=device)  # numbers of the rows that are in the cache
    for place in range(limit):
        drawn = model.logits(last).argmax(-1)
        tokens[writing, place] = drawn
        stops = drawn == end
        count[writing[stops]], ended[writing[stops]] = place + 1, True
        if bool(stops.any()):
            cache.keep(~stops)
            writing, drawn = writing[~stops], drawn[~stops]
        if not len(writing) or place == limit - 1:
            break
        last = model.extend(drawn[:, None], cache).final
    return [
        WrittenAnswer(tokenizer.decode(row[:n]), n, done, thought)
        for row, n, done, thought in zip(tokens.tolist(), count.tolist(), ended.tolist(), thoughts, strict=True)
    ]


def top_predictions(logits: Tensor, tokenizer: Tokenizer, top: int) -> tuple[tuple[ThoughtPrediction, ...], ...]:
    """The likeliest tokens of each distribution [n, V], best first."""
    p, ids = logits.softmax(-1).topk(min(top, logits.shape[-1]))
    return tuple(
        tuple(ThoughtPrediction(tokenizer.token(i), value) for i, value in zip(positions, values, strict=True))
        for positions, values in zip(ids.tolist(), p.tolist(), strict=True)
    )


def grade_answers(
    task: Task, problems: Sequence[Problem], numbers: Sequence[int], written: Sequence[WrittenAnswer]
) -> list[SolvedProblem]:
    """Each text with its answer, right or wrong. `numbers` are those of the problems, one per text."""
    found = []
    for number, text in zip(numbers, written, strict=True):
        problem, answer = problems[number], task.parse_answer(text.text)
        found.append(SolvedProblem(number, problem, text, answer, task.is_correct(answer, problem)))
    return found
