"""Every reasoning task by name."""

from dataclasses import fields
from typing import Any

from adlm.errors import ConfigError, UnknownName
from adlm_studies.reasoning.gsm8k import Gsm8k, Gsm8kEquations
from adlm_studies.reasoning.problem import Task
from adlm_studies.reasoning.prontoqa import ProntoQA
from adlm_studies.reasoning.prosqa import ProsQA
from adlm_studies.reasoning.small_tasks import Arithmetic, LetterGraph

TASKS: dict[str, type[Task]] = {
    kind.name: kind for kind in (Gsm8k, Gsm8kEquations, ProsQA, ProntoQA, Arithmetic, LetterGraph)
}


def make_task(name: str, folder: str | None = None, **options: Any) -> Task:
    """A task by name; `folder` is where its published files are, `options` are further fields of it."""
    if name not in TASKS:
        raise UnknownName("task", name, TASKS)
    kind = TASKS[name]
    given = {**options, **({"folder": folder} if folder else {})}
    known = {field.name for field in fields(kind)}
    if strange := sorted(given.keys() - known):
        raise ConfigError(
            f"the task {name} has no {', '.join(strange)}; it has {', '.join(sorted(known))}", subject=strange[0]
        )
    return kind(**given)
