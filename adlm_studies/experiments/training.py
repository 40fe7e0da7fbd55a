"""The work most studies are made of: train a model, score it on held-out rows."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

from adlm.data.config import Corpus
from adlm.data.prepare import prepare
from adlm.data.source import Source
from adlm.data.table import Table
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, DataError
from adlm.models.language_model import LanguageModel
from adlm.models.network import Vocabulary
from adlm.objectives.likelihood import Perplexity, table_perplexity
from adlm.text_model import TextModel
from adlm.train.fit import fit
from adlm.train.init import SplitFrom
from adlm.train.metrics import METRICS, each_metric
from adlm.train.plan import summary
from adlm.train.run import FitOptions, Run
from adlm.train.run_folder import same_run
from adlm_studies.experiments.study import StepContext, StudyWork

_HELD_OUT = ("test", "valid")
_NOMINAL = Vocabulary(1024, 1023)


@dataclass(frozen=True)
class TrainAndScore(StudyWork):
    """Train a run and score it: on held-out rows of its own corpus, and on those of others.

    Args:
        rows: of held-out text, the same for every run; 0: all.
        draws: mask counts per row, for bounds.
        others: corpora to score on too, in the model's own tokens and rows.
        texts: samples to keep.
        start: name of the step whose model the run is made from, split into two stages.
        sampler: that writes the samples and becomes the model's own; by default that of its kind.
        temperature: of the samples, likewise.
    """

    run: Run
    rows: int = 500
    draws: int = 8
    others: tuple[str, ...] = ()
    texts: int = 3
    start: str = ""
    sampler: str | None = None
    temperature: float = 1.0

    @property
    def cost(self) -> float:
        """Operations, about: those of training, and as many passes as scoring and sampling a masked model take."""
        run = self.run
        try:
            trained = summary(run)
        except ConfigError:  # its tokenizer is trained by another step
            trained = summary(run, vocabulary=_NOMINAL)
        if run.network.causal:
            return trained.all_work
        passes = trained.length * (self.draws * self.rows * (1 + len(self.others)) + trained.length * self.texts)
        return trained.all_work * (1 + passes / (3 * run.train.tokens_per_step * run.train.steps))

    def execute(self, context: StepContext) -> dict[str, Any]:
        run, corpus = self.run, self.run.data
        if self.start:
            run = replace(run, init=SplitFrom(str(context.folder_of(self.start))))
        if not isinstance(corpus, Corpus):
            raise ConfigError(f"a study trains on a Corpus, got {type(corpus).__name__}", subject="data")
        for source in (corpus.source, *self.others):
            _held_out(replace(corpus, source=source))  # refuses before anything is trained
        options = FitOptions(resume="auto" if same_run(context.folder, run) else "never", cache=context.cache)
        fitted = fit(run, context.folder, options=options, callbacks=[context.callback])
        tables = {corpus.source: held_out(corpus, fitted.tokenizer, context.cache)}
        for source in self.others:
            tables[source] = held_out(replace(corpus, source=source), fitted.tokenizer, context.cache)
        model = TextModel(fitted.model, fitted.config, fitted.tokenizer)
        own = {"sampler": self.sampler} if self.sampler else {}
        sampling = own if self.temperature == 1 else {**own, "temperature": self.temperature}
        if sampling:
            model = TextModel(fitted.model, replace(fitted.config, sampling=sampling), fitted.tokenizer)
            model.save(context.folder)
        return {
            "parameters": sum(parameter.numel() for parameter in fitted.model.parameters()),
            "work": summary(run, vocabulary=fitted.config.vocabulary).all_work,
            "tokens": run.train.tokens_per_step * run.train.steps,
            "seconds": round(_seconds(context.folder) * run.train.steps, 1),
            "threads": torch.get_num_threads(),
            "scores": {source: self._score(fitted.model, table) for source, table in tables.items()},
            "curve": _curve(context.folder),
            "texts": model.generate(n=self.texts, seed=run.train.seed) if self.texts else [],
        }

    def _score(self, model: LanguageModel, table: Table) -> dict[str, Any]:
        rows = min(self.rows or len(table), len(table))
        score = table_perplexity(model, table, num_rows=rows, draws=self.draws)
        return {"rows": rows, "data": table.key, **_plain(score)}


def held_out(corpus: Corpus, tokenizer: Tokenizer, cache: Path) -> Table:
    """Rows in a model's tokens that no run validates on, where the corpus has them."""
    return prepare(*_held_out(corpus), tokenizer, corpus.packing, cache=cache, verify=False)


def _held_out(corpus: Corpus) -> tuple[Source, str]:
    source = corpus.open()
    return source, splits_of(source, corpus.train)[1]


def splits_of(source: Source, train: str | None = None) -> tuple[str, str]:
    """The split to train on, by default the source's training split, and the split to score."""
    train = train or source.splits[0]
    held = next((split for split in _HELD_OUT if split in source.splits and split != train), None)
    if held is None:
        raise DataError(
            f"cannot score models on {source.name}",
            f"only the splits {', '.join(source.splits)}: nothing held out to score on",
            "add a file with test or valid in its name, or rename the file so that it is cut into splits",
            subject=source.name,
        )
    return train, held


def _plain(score: Perplexity) -> dict[str, Any]:
    return {
        name: {"mean": each.mean, "error": each.error, "draws": each.draws} for name, each in score._asdict().items()
    }


def _seconds(folder: Path) -> float:
    """Of a step: the median, so that neither validations nor an interruption are in it."""
    times = [record["machine"]["seconds"] for record in each_metric(folder / METRICS) if "validation" not in record]
    return median(max(0.0, b - a) for a, b in pairwise(times)) if len(times) > 1 else 0.0


def _curve(folder: Path) -> list[list[float]]:
    """(tokens read, nats per token, standard error) at each validation."""
    tokens, found = 0, []
    for record in each_metric(folder / METRICS):
        if "validation" in record:
            nats = record["validation"]["nats"]
            found.append([tokens, nats["mean"], nats["error"]])
        else:
            tokens = record["tokens"]
    return found
