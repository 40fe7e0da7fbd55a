"""Training that also asks the anchor stage what it knows, under rules that may have to be counted first."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adlm.anchors import AnchorRule, ContentWords, RandomFraction, RareInCorpus, RareInSequence, TfIdf
from adlm.data.config import Corpus
from adlm.data.corpus_table import make_table
from adlm.data.loader import read_rows
from adlm.data.shards import Shards
from adlm.data.table import Prepared, Table
from adlm.errors import ConfigError
from adlm.evaluate.anchor_sums import MAIN, STAGES, AnchorNumbers, Types
from adlm.evaluate.statistics import jackknife_ratio as ratio
from adlm.objectives.nelbo import Anelbo
from adlm.text_model import TextModel
from adlm_studies.experiments.study import StepContext, StudyWork
from adlm_studies.experiments.training import TrainAndScore, held_out

LEVELS = (0.2, 0.5, 0.8)
# In every run, whatever it was trained with: figures of different runs are to compare.
PROBED = RareInSequence(5)


@dataclass(frozen=True)
class TrainAndProbe(TrainAndScore):
    """Train and score an ADLM, then measure its anchor stage at masked anchors of held-out rows.

    Args:
        probed: held-out rows to ask about, each at three noise levels.
    """

    texts: int = 0
    probed: int = 64

    def execute(self, context: StepContext) -> dict[str, Any]:
        found = super().execute(context)
        model = TextModel.from_pretrained(context.folder)
        assert isinstance(self.run.data, Corpus)  # or nothing was trained
        table = held_out(self.run.data, model.tokenizer, context.cache)
        rows = np.arange(min(self.probed, len(table)))
        numbers = AnchorNumbers(model.network, table, Types.of(model.tokenizer, table), PROBED, levels=LEVELS)
        sums = numbers(rows)

        def over_levels(stage: str, what: str) -> np.ndarray[Any, Any]:
            return sums[:, [numbers.columns[level, MAIN[0], stage, what] for level in LEVELS]].sum(1)

        count = over_levels("", "count")
        anchors: dict[str, Any] = {"rows": len(rows), "fraction": marked(_objective(self).rule, table, len(rows))}
        for stage in STAGES:
            for name, what in (("accuracy", "correct"), ("nats", "nats")):
                mean, error = ratio(np.stack([over_levels(stage, what), count], 1))
                anchors[f"{stage} {name}"] = {"mean": mean, "error": error if np.isfinite(error) else None}
        return found | {"anchors": anchors}


@dataclass(frozen=True)
class RuleFromData(ABC):
    """An anchor rule that can be made only when the data is there."""

    @abstractmethod
    def make(self, data: Prepared, recipe: AnchorRule) -> AnchorRule:
        """The rule, made from prepared data, and from the recipe's own rule if as many anchors are to be marked."""


@dataclass(frozen=True)
class RareTokens(RuleFromData):
    """All token types but the `rank` most frequent ones."""

    rank: int = 100

    def make(self, data: Prepared, recipe: AnchorRule) -> AnchorRule:
        return RareInCorpus.from_table(make_table(_shards(data)), rank=self.rank)


@dataclass(frozen=True)
class HighTfIdf(RuleFromData):
    """This fraction of each row, by its highest scores."""

    fraction: float = 0.5

    def make(self, data: Prepared, recipe: AnchorRule) -> AnchorRule:
        return TfIdf.from_table(make_table(_shards(data)), fraction=self.fraction)


@dataclass(frozen=True)
class RandomTokens(RuleFromData):
    """Random tokens, as many as the recipe's rule marks."""

    def make(self, data: Prepared, recipe: AnchorRule) -> AnchorRule:
        return RandomFraction(marked(recipe, data.train))


@dataclass(frozen=True)
class ContentTokens(RuleFromData):
    """Content words, by the tokenizer's texts."""

    def make(self, data: Prepared, recipe: AnchorRule) -> AnchorRule:
        return ContentWords.from_tokenizer(data.tokenizer)


@dataclass(frozen=True)
class TrainWithRuleFromData(StudyWork):
    """As `train`, under a rule made from the data. Not itself a `TrainAndScore`: its run is not known beforehand."""

    train: TrainAndProbe
    rule: RuleFromData

    def execute(self, context: StepContext) -> dict[str, Any]:
        objective = _objective(self.train)
        data = self.train.run.data.prepare(cache=context.cache, verify=False)
        rule = self.rule.make(data, objective.rule)
        run = replace(self.train.run, objective=replace(objective, rule=rule))
        return replace(self.train, run=run).execute(context)


def marked(rule: AnchorRule, table: Table, rows: int = 512) -> float:
    """The fraction of the text of the first rows that a rule marks, to four positions: it becomes part of a run."""
    batch = read_rows(table, np.arange(min(rows, len(table))))
    return round((rule.mark(batch).sum() / batch.valid.sum()).item(), 4)


def _objective(train: TrainAndScore) -> Anelbo:
    objective = train.run.objective
    if not isinstance(objective, Anelbo):
        raise ConfigError(
            f"{type(objective).__name__} of {train.run.name} has no anchors",
            fix="name an ADLM run",
            subject="objective",
        )
    return objective


def _shards(data: Prepared) -> Shards:
    if not isinstance(data.train, Shards):
        raise ConfigError(f"only a Corpus can be counted: {data.train.name} is in no file", subject="data")
    return data.train
