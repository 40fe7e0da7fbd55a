"""Problems put to a model that was trained to reason, by whichever way it writes."""

from collections.abc import Sequence
from dataclasses import replace

from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm_studies.reasoning.data import ReasoningData, ReasoningTable
from adlm_studies.reasoning.decode import SolvedProblem, SolveProgress, answer_left_to_right, grade_answers
from adlm_studies.reasoning.diffusion import DiffusionReasoningData, answer_by_denoising, most_confident_first
from adlm_studies.reasoning.problem import Problem

_SPARE = 32  # tokens that a model may write beyond the longest solution


def answer_limit(config: ReasoningData | DiffusionReasoningData, tokenizer: Tokenizer, split: str) -> int | None:
    """Tokens that a model may write for any problem of a split, however many are asked; None by diffusion."""
    if isinstance(config, DiffusionReasoningData):
        return None
    rows = replace(config, longest=0).table(split, tokenizer)
    return rows.length - rows.given + _SPARE


def solve(
    network: LanguageModel,
    tokenizer: Tokenizer,
    config: ReasoningData | DiffusionReasoningData,
    problems: Sequence[Problem],
    name: str,
    *,
    limit: int | None = None,
    plain: bool = False,
    batch: int = 64,
    seed: int = 0,
    watch: SolveProgress | None = None,
) -> tuple[ReasoningTable, list[SolvedProblem]]:
    """The problems as rows, and what became of each."""
    name = f"{config.task.name} {name}"
    if isinstance(config, DiffusionReasoningData):
        if limit is not None:
            raise ConfigError(
                "--limit does not apply to a diffusion model: its length is that of training", subject="limit"
            )
        table = config.rows_of(problems, name, tokenizer, cut=True)
        sampler = most_confident_first() if plain else None
        found = answer_by_denoising(network, table, tokenizer, sampler=sampler, seed=seed, batch=batch, watch=watch)
        return table, grade_answers(config.task, problems, table.numbers, found)
    if plain:
        raise ConfigError("--plain does not apply to a model that writes left to right", subject="plain")
    rows = replace(config, longest=0).rows_of(problems, name, tokenizer)
    limit = limit or rows.length - rows.given + _SPARE
    found = answer_left_to_right(network, rows, tokenizer, fed=config.method.fed, limit=limit, batch=batch, watch=watch)
    return rows, grade_answers(config.task, problems, rows.numbers, found)
