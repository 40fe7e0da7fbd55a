"""Scores that can be compared row by row, and runs that are decided by other steps or by counts of the data."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from adlm.anchors.rules import RareInSequence
from adlm.data.config import Corpus
from adlm.data.loader import read_rows
from adlm.data.table import Table
from adlm.diffusion.corruption import AnchoredMasking
from adlm.models.language_model import LanguageModel
from adlm.objectives.bound import clean_objective, mean_of, position_nats
from adlm.objectives.likelihood import draws_of
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import MaskedObjective, Objective
from adlm.randomness import Noise
from adlm.text_model import TextModel
from adlm.train.plan import summary
from adlm_studies.experiments.probing import RuleFromData
from adlm_studies.experiments.study import StepContext, StudyWork, step_result
from adlm_studies.experiments.training import TrainAndScore, held_out

_BATCH = 64
_FIRST_TIME = 1e-4  # times below are left out of the bound of anchored masking


@dataclass(frozen=True)
class TrainAndScoreRows(TrainAndScore):
    """`TrainAndScore` on rows that are spread evenly over the held-out text; the nats of each row are kept."""

    rows: int = 1024
    texts: int = 0

    def execute(self, context: StepContext) -> dict[str, Any]:
        began = time.process_time()
        found = super().execute(context)
        return {
            **found,
            "stack_parameters": summary(self.run).parameters.stacks,
            "core_seconds": round(time.process_time() - began),  # of the last sitting, if it was interrupted
        }

    def _score(self, model: LanguageModel, table: Table) -> dict[str, Any]:
        return score_rows(model, table, self.rows, self.draws)


def score_rows(
    model: LanguageModel, table: Table, rows: int, draws: int, objective: Objective | None = None
) -> dict[str, Any]:
    """Nats per token of `rows` rows (0: all) at even distances, and of each row; masks are the same for all models."""
    objective = objective or clean_objective(model)
    count = min(rows or len(table), len(table))
    numbers = np.arange(count) * len(table) // count
    noise, found = Noise(0).fork("perplexity"), []
    model.eval()
    for begin in range(0, count, _BATCH):
        batch = read_rows(table, numbers[begin : begin + _BATCH], first_sample_id=begin)
        with torch.no_grad():
            found.append(position_nats(model, batch, draws=draws, noise=noise, objective=objective).double().sum(-1))
    tokens = table.scored_lengths(numbers)
    row = mean_of(torch.cat(found), draws_of(objective, draws))
    each = int(tokens.sum()) / count
    return {
        "rows": count,
        "data": table.key,
        "nats_per_token": {"mean": row.mean / each, "error": row.error / each, "draws": row.draws},
        "row_nats": [round(nats, 2) for nats in torch.cat(found).tolist()],
    }


@dataclass(frozen=True)
class TrainWithCountedRule(StudyWork):
    """As `train`, under a rule made from the data: its run is not known beforehand.

    Args:
        masking: anchors are also masked later, and the model is scored by the bound of that process too (MD4's).
    """

    train: TrainAndScoreRows
    rule: RuleFromData
    masking: bool = False

    @property
    def cost(self) -> float:
        return self.train.cost

    def execute(self, context: StepContext) -> dict[str, Any]:
        run = self.train.run
        objective = run.objective
        assert isinstance(objective, MaskedObjective)
        rule = self.rule.make(run.data.prepare(cache=context.cache, verify=False), RareInSequence())
        if isinstance(objective, Anelbo):
            objective = replace(objective, rule=rule)
        if self.masking:
            objective = replace(objective, corruption=AnchoredMasking(rule))
        found = replace(self.train, run=replace(run, objective=objective)).execute(context)
        if self.masking:
            assert isinstance(run.data, Corpus)
            model = TextModel.from_pretrained(context.folder)
            table = held_out(run.data, model.tokenizer, context.cache)
            bound = Nelbo(AnchoredMasking(rule, first=_FIRST_TIME))
            own = score_rows(model.network, table, self.train.rows, self.train.draws, bound)
            found["own_bound"] = {name: own[name] for name in ("rows", "nats_per_token")}
        return found


@dataclass(frozen=True)
class TrainBestOfSearch(StudyWork):
    """Train the setting whose short run ended with the lowest validation bound; the test text has no part in it.

    Args:
        candidates: what to train, by the step of its short run.
        trained: steps that have the result of a candidate already, by the step of its short run.
    """

    candidates: Mapping[str, TrainAndScoreRows]
    trained: Mapping[str, str]

    @property
    def cost(self) -> float:
        return max(work.cost for work in self.candidates.values())

    def execute(self, context: StepContext) -> dict[str, Any]:
        found = {name: step_result(context.root, name)["curve"][-1][1] for name in self.candidates}
        best = min(found, key=lambda name: found[name])
        done = self.trained.get(best)
        result = dict(step_result(context.root, done)) if done else self.candidates[best].execute(context)
        return {**result, "chosen": best, "search": found}
