"""Problems put to a model that was trained to reason, by whichever way it writes."""

from collections.abc import Sequence
from dataclasses import replace

from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError
from adlm.models.language_model import LanguageModel
from adlm_studies.reasoning.decode import Solved, Watch, judged, write
from adlm_studies.reasoning.diffusion import Diffused, denoise, surest
from adlm_studies.reasoning.problem import Problem
from adlm_studies.reasoning.rows import Reasoned, ReasonedRows

_SPARE = 32  # tokens that a model may write beyond the longest solution


def limit_for(config: Reasoned | Diffused, tokenizer: Tokenizer, split: str) -> int | None:
    """Tokens that a model may write for any problem of a split, however many are asked; None by diffusion."""
    if isinstance(config, Diffused):
        return None
    rows = replace(config, longest=0).table(split, tokenizer)
    return rows.length - rows.given + _SPARE


def solve(
    network: LanguageModel,
    tokenizer: Tokenizer,
    config: Reasoned | Diffused,
    problems: Sequence[Problem],
    name: str,
    *,
    limit: int | None = None,
    plain: bool = False,
    batch: int = 64,
    seed: int = 0,
    watch: Watch | None = None,
) -> tuple[ReasonedRows, list[Solved]]:
    """The problems as rows, and what became of each."""
    name = f"{config.task.name} {name}"
    if isinstance(config, Diffused):
        if limit is not None:
            raise ConfigError("asked for --limit", "a diffusion model has its positions from training", "leave it out")
        table = config.rows_of(problems, name, tokenizer, cut=True)
        sampler = surest() if plain else None
        found = denoise(network, table, tokenizer, sampler=sampler, seed=seed, batch=batch, watch=watch)
        return table, judged(config.task, problems, table.numbers, found)
    if plain:
        raise ConfigError("asked for --plain", "the model writes left to right", "leave it out")
    rows = replace(config, longest=0).rows_of(problems, name, tokenizer)
    limit = limit or rows.length - rows.given + _SPARE
    found = write(network, rows, tokenizer, fed=config.method.fed, limit=limit, batch=batch, watch=watch)
    return rows, judged(config.task, problems, rows.numbers, found)
