"""Perplexity and bits of held-out text: the exact likelihood of left-to-right models, a clean bound for masked ones."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.config import from_json
from adlm.data.packing import Packing, Padded
from adlm.data.source import Source
from adlm.diffusion.blocks import BlockMasking
from adlm.errors import ConfigError, ModelError
from adlm.evaluate.documents import TextRows, document_rows, open_held_out, packed_rows, text_facts
from adlm.evaluate.measurement import Measurement, ModelLike, Progress, check_counts, measuring, opened
from adlm.evaluate.protocols import Protocol, described, protocol_named
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.statistics import paired, ratio
from adlm.models.language_model import LanguageModel
from adlm.objectives.bound import clean_objective
from adlm.objectives.likelihood import AGREEING, draws_of, estimator, exp, row_scorer
from adlm.objectives.objective import MaskedObjective, Objective
from adlm.text_model import TextModel


def perplexity(
    model: ModelLike,
    data: str | Path | Source,
    *,
    split: str | None = None,
    protocol: str | None = None,
    folder: str | Path | None = None,
    field: str | None = None,
    detokenizer: str | None = None,
    limit: int | None = None,
    draws: int = 8,
    estimator: str | None = None,
    block_size: int | None = None,
    documents: bool = False,
    stride: int | None = None,
    batch: int = 32,
    seed: int = 0,
    out: str | Path | None = None,
    device: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Measure perplexity, nats per token and bits per byte and character of held-out text, with standard errors.

    Figures are exact for left-to-right models and bounds for masked ones. Under `torchrun`, processes share the work
    and return the same result.

    Args:
        model: a model, its folder, or its name on the Hugging Face Hub.
        data: a catalog name, hub:OWNER/NAME[:CONFIG], or a file, folder or glob. Files are scored as a whole, unless
            their names tell splits.
        split: of the data; by default test, or the last there is. Files without splits are then cut as for training.
        protocol: measure as published: lm1b, openwebtext or text8. It decides split and rows, and has to fit the model.
        folder: where the files of a catalog name are.
        field: the field or column that holds the text; several as in title,description; numbers if a CSV file has no
            header.
        detokenizer: undo a corpus's tokenization, by name.
        limit: score only this many rows (or documents), from the first.
        draws: noise levels per row, for bounds.
        estimator: of the bound (`adlm.objectives.likelihood.ESTIMATORS`); "all" shows how three of them agree;
            "order:entropy" and the like are the exact likelihood under an order. By default that of the training
            objective, in its form of least variance.
        block_size: read the model in blocks of this many tokens: 1 is left to right, which is exact, 0 whole rows. By
            default its own. For models that read blocks.
        documents: score each document on rows of its own, longer ones in windows.
        stride: tokens from one window of a document to the next; what they share is context and scored once.
        batch: rows that a process scores at a time.
        out: write the result to this file. Partial results are kept beside it, and a second call resumes.
        progress: called with a label, the rows done and their number.
    """
    check_counts(limit=limit, draws=draws, batch=batch)
    if stride is not None and not documents:
        raise ConfigError("stride is for windows of documents", fix="add documents", subject="stride")
    published = _published(protocol, split, field, detokenizer, documents)
    with measuring(model, out, device, progress) as work:
        scored, named = opened(model, work.context, revision, block_size)
        if published is None:
            source, split = open_held_out(data, split, folder=folder, field=field, detokenizer=detokenizer)
            packing = _uncropped(scored.config.packing)
        else:
            published.check(scored.tokenizer, scored.config.packing)
            source, split, packing = published.open(data, folder), published.split, published.packing
        if documents:
            table = document_rows(source, split, scored.tokenizer, packing, limit=limit, stride=stride)
        else:
            table = packed_rows(source, split, scored.tokenizer, packing, limit=limit)
        objectives = _objectives(estimator, scored)
        about = described(
            packing,
            scored.tokenizer,
            next(iter(objectives.values())),
            draws=draws,
            documents=documents,
            stride=stride,
            limit=limit,
        )
        if published is not None:
            departs = published.departures(source, scored.config.packing, limit)
            about |= {"name": published.name, "text": published.text, "departs": departs}
        about["estimator"]["name"] = next(iter(objectives))
        made_of = {"model": named, "data": table.key, "protocol": about, "seed": seed}
        found = {
            name: score_items(
                scored.network,
                table,
                objective,
                draws=draws,
                batch=batch,
                seed=seed,
                work=work,
                label=name,
                made_of={**made_of, "estimator": name},
            )
            for name, objective in objectives.items()
        }
        facts = text_facts(table, scored.tokenizer, limit)
        return work.finish(Result("perplexity", named, facts, about, seed, *_figures(found)))


@dataclass(frozen=True, eq=False)
class ScoredItems:
    """The nats of each item (document or row), and the tokens, characters and bytes of its text: [items].

    `draws` is 0 if nats are exact.
    """

    nats: NDArray[np.float64]
    tokens: NDArray[np.float64]
    characters: NDArray[np.float64]
    bytes: NDArray[np.float64]
    draws: int

    def figures(self) -> dict[str, Figure]:
        """Totals over totals, with standard errors over items, which cover the draw of the masks and of the text."""
        kind = "bound" if self.draws else "exact"
        nats = ratio(self.nats, self.tokens)
        found = {
            "perplexity": (exp(nats[0]), exp(nats[0]) * nats[1], ""),
            "nats_per_token": (*nats, "nats"),
            "bits_per_byte": (*ratio(self.nats / math.log(2), self.bytes), "bits"),
            "bits_per_character": (*ratio(self.nats / math.log(2), self.characters), "bits"),
        }
        return {
            name: Figure(value, error if math.isfinite(error) else None, kind, unit, self.draws)
            for name, (value, error, unit) in found.items()
        }

    def items(self) -> dict[str, list[float]]:
        """The numbers of each item, by name."""
        names = ("nats", "tokens", "characters", "bytes")
        return {name: getattr(self, name).tolist() for name in names}


def score_items(
    model: LanguageModel,
    table: TextRows,
    objective: Objective,
    *,
    draws: int = 8,
    batch: int = 32,
    seed: int = 0,
    work: Measurement | None = None,
    label: str = "bound",
    made_of: Mapping[str, Any] | None = None,
) -> ScoredItems:
    """The cost of every item of a text; the same on any number of processes.

    Args:
        batch: rows that a process scores at a time.
        work: the evaluation that this is a part of, under the name `label`.
    """
    work = work or Measurement.alone(model)
    score = row_scorer(model, table, objective, draws, seed, work.context.device)

    def checked(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        nats = score(numbers)
        if wrong := np.isnan(nats[:, 0]).sum():
            raise ModelError(
                f"the model's logits are not numbers in {wrong} of the rows {numbers[0]} to {numbers[-1]}",
                fix="check its weights, or train it again from an earlier checkpoint",
                subject=table.name,
            )
        return nats

    nats = work.each_of(label, len(table), checked, width=1, batch=batch, made_of=made_of or {})[:, 0]
    lengths = table.scored_lengths(np.arange(len(table)))
    nats, *sizes = (table.by_item(values) for values in (nats, lengths, table.characters, table.bytes))
    return ScoredItems(nats, sizes[0], sizes[1], sizes[2], draws_of(objective, draws))


def own_objective(model: TextModel) -> Objective:
    """SEDD and D3PM have bounds of their own; other models the exact likelihood, or the bound of least variance."""
    run = model.config.run or {}
    if model.network.attention == "block":  # in blocks of the size that is asked for, whatever was trained
        return clean_objective(model.network)
    if "objective" in run and not model.network.causal:
        trained = from_json(Objective, run["objective"], where="config.run.objective")  # type: ignore[type-abstract]
        blocks = isinstance(trained, MaskedObjective) and isinstance(trained.corruption, BlockMasking)
        return clean_objective(model.network) if blocks else trained.for_validation()
    return clean_objective(model.network)


def _uncropped(packing: Packing) -> Packing:
    """Rows that hold all of the text: a document that is too long for one row continues on the next."""
    return replace(packing, crop=False) if isinstance(packing, Padded) and packing.crop else packing


def _published(
    name: str | None, split: str | None, field: str | None, detokenizer: str | None, documents: bool
) -> Protocol | None:
    if name is None:
        return None
    if documents or field or detokenizer or split:
        raise ConfigError(
            f"the protocol {name!r} decides documents, field, detokenizer and split",
            fix="leave them out, or the protocol",
            subject="protocol",
        )
    return protocol_named(name)


def _objectives(name: str | None, model: TextModel) -> Mapping[str, Objective]:
    if name is None:
        objective = own_objective(model)
        return {"exact" if objective.exact else "bound": objective}
    if name == "all":
        names = ["counts"] if model.network.attention == "block" else AGREEING
        return {each: estimator(each, model.network) for each in names}
    return {name: estimator(name, model.network)}


def _figures(found: Mapping[str, ScoredItems]) -> tuple[dict[str, Figure], dict[str, list[float]]]:
    """All figures of the first estimator; of others nats per token, and their distance from the first in errors."""
    (_, first), *others = found.items()
    figures, items = first.figures(), first.items()
    for name, other in others:
        figures[f"nats_per_token {name}"] = other.figures()["nats_per_token"]
        figures[f"z {name}"] = Figure(paired(other.nats - first.nats, first.tokens)[2])
        items[f"nats {name}"] = other.nats.tolist()
    return figures, items
