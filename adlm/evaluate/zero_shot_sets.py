"""Perplexity on texts that a model was not trained on: the seven sets of the field, and published figures on them.

As in the published evaluations (SEDD, MDLM, ADLM), every record of a set is detokenized, ended by the end token and
wrapped with the others into rows of the model's length. A record is one row on the Hub: a line of WikiText, blank or
not, a sentence of PTB and LM1B, an article of PubMed and arXiv. The splits are theirs too: validation, or test for
LAMBADA, LM1B and AG News. Published code also drops what does not fill a row at the end of each thousand records, not
only at the end of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlm.data.catalog import open_source
from adlm.data.documents import DocumentRule, Lines
from adlm.data.packing import Packing, Wrapped
from adlm.data.source import Source
from adlm.errors import AdlmError, DataError, UnknownName
from adlm.evaluate.documents import packed_rows, text_facts
from adlm.evaluate.likelihoods import own_objective, score_items
from adlm.evaluate.measurement import ModelLike, Progress, check_counts, measuring, opened
from adlm.evaluate.protocols import described
from adlm.evaluate.result import Figure, Result
from adlm.objectives.likelihood import estimator as estimator_named
from adlm.resumable import checksum


@dataclass(frozen=True)
class ZeroShotSet:
    """A zero-shot data set.

    Args:
        data: its name in the catalog, and that of its folder.
        splits: the published one, then the one to use if files have no other.
        rule: where records begin and end, if not as the catalog says.
    """

    name: str
    data: str
    splits: tuple[str, ...]
    rule: DocumentRule | None = None


@dataclass(frozen=True)
class OpenedSet:
    """A set whose text was found, and the split that is scored."""

    set: ZeroShotSet
    source: Source
    split: str

    @property
    def departure(self) -> str | None:
        """The difference from the published set, in words."""
        published = self.set.splits[0]
        return None if self.split == published else f"the split {self.split}; published figures are on {published}"


_VALID, _TEST = ("valid", "test"), ("test", "valid")
_ALL = (
    ZeroShotSet("lambada", "lambada", _TEST),
    ZeroShotSet("ptb", "ptb", _VALID),
    ZeroShotSet("wikitext", "wikitext103", _VALID, Lines(strip=False, keep_empty=True)),
    ZeroShotSet("lm1b", "lm1b", _TEST),
    ZeroShotSet("ag_news", "ag_news", _TEST),
    ZeroShotSet("pubmed", "pubmed", _VALID),
    ZeroShotSet("arxiv", "arxiv", _VALID),
)
TEXT = "records detokenised, each ended by the end token, wrapped into rows of the model's length"
SETS: dict[str, ZeroShotSet] = {each.name: each for each in _ALL}
# arXiv 2505.18456: GPT-2's tokens, rows of 1,024, trained on OpenWebText; ADLM on 524B tokens.
PUBLISHED: dict[str, dict[str, float]] = {
    "AR": dict(zip(SETS, (51.28, 82.05, 25.75, 51.25, 52.09, 49.01, 41.73), strict=True)),
    "MDLM": dict(zip(SETS, (47.52, 95.26, 32.83, 67.01, 61.15, 41.89, 37.37), strict=True)),
    "ADLM": dict(zip(SETS, (44.32, 95.37, 31.94, 64.43, 55.72, 37.56, 33.69), strict=True)),
}


def zero_shot(
    model: ModelLike,
    *,
    sets: Sequence[str] = (),
    data_dir: str | Path | None = None,
    split: str | None = None,
    skip_missing: bool = False,
    limit: int | None = None,
    draws: int = 8,
    estimator: str | None = None,
    block_size: int | None = None,
    batch: int = 32,
    seed: int = 0,
    out: str | Path | None = None,
    device: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Measure perplexity and bits on texts that a model was not trained on. Figures are named "FIGURE SET".

    Args:
        model: a model, its folder, or its name on the Hugging Face Hub.
        sets: which of `SETS`; by default all of them.
        data_dir: a folder with a folder per set; without it they come from the Hub.
        split: this one of every set; by default the published one, or what files have.
        skip_missing: leave out sets that are not found, instead of stopping before anything is scored.
        limit: score only this many rows of each set, from the first.
        draws, estimator, block_size, batch, seed, out, device, revision, progress: as for `perplexity`.
    """
    check_counts(limit=limit, draws=draws, batch=batch)
    chosen = chosen_sets(sets)
    with measuring(model, out, device, progress) as work:
        scored, named = opened(model, work.context, revision, block_size)
        objective = estimator_named(estimator, scored.network) if estimator else own_objective(scored)
        found, missing = open_sets(chosen, None if data_dir is None else Path(data_dir), split=split)
        if missing and not (skip_missing and found):
            raise _not_found(missing, data_dir)
        packing = wrapped_rows(scored.config.packing)
        about = described(packing, scored.tokenizer, objective, draws=draws, limit=limit)
        figures: dict[str, Figure] = {}
        items: dict[str, list[float]] = {}
        texts: dict[str, dict[str, Any]] = {}
        for each in found:
            name = each.set.name
            table = packed_rows(each.source, each.split, scored.tokenizer, packing, limit=limit)
            made_of = {"model": named, "data": table.key, "protocol": about, "seed": seed}
            options = {"draws": draws, "batch": batch, "seed": seed}
            measured = score_items(scored.network, table, objective, **options, work=work, label=name, made_of=made_of)
            detokenizer = getattr(each.source, "detokenizer", "none")
            texts[name] = {**text_facts(table, scored.tokenizer, limit), "detokenizer": detokenizer}
            figures |= {f"{figure} {name}": value for figure, value in measured.figures().items()}
            items |= {f"{kind} {name}": values for kind, values in measured.items().items()}
        departs = [f"{each.set.name}: {each.departure}" for each in found if each.departure]
        about |= {"name": "zero-shot", "text": TEXT, "departs": departs}
        key = checksum({name: text["key"] for name, text in texts.items()})
        data = {"name": ", ".join(texts), "key": key, "sets": texts}
        notes = [f"not found, and left out: {', '.join(missing)}"] if missing else []
        return work.finish(Result("zero-shot", named, data, about, seed, figures, items, notes=notes))


def _not_found(missing: dict[str, AdlmError], data_dir: str | Path | None) -> DataError:
    where = "the files" if data_dir else "the network, or name a folder with data_dir"
    return DataError(
        f"no text for {', '.join(missing)}",
        "; ".join(f"{name}: {error.found or error.asked}" for name, error in missing.items()),
        f"check {where}; or leave them out with skip_missing or sets",
        subject=", ".join(missing),
    )


def chosen_sets(names: Sequence[str]) -> list[ZeroShotSet]:
    """Sets by name, in the order given, each once; all of them for no names."""
    for name in names:
        if name not in SETS:
            raise UnknownName("zero-shot set", name, SETS)
    return [SETS[name] for name in dict.fromkeys(names or SETS)]


def open_sets(
    sets: Sequence[ZeroShotSet], folder: Path | None, *, split: str | None = None
) -> tuple[list[OpenedSet], dict[str, AdlmError]]:
    """The sets whose text is found, and why others are missing. All are looked for before any is scored.

    Args:
        folder: holds a folder per set, by its name in the catalog or here; else they come from the Hub.
        split: this one of every set, whatever was published.
    """
    found: list[OpenedSet] = []
    missing: dict[str, AdlmError] = {}
    for each in sets:
        try:
            found.append(_open(each, folder, split))
        except (DataError, UnknownName) as error:
            missing[each.name] = error
    return found, missing


def _open(chosen: ZeroShotSet, folder: Path | None, split: str | None) -> OpenedSet:
    path = None
    if folder is not None:
        named = [folder.expanduser() / name for name in (chosen.data, chosen.name)]
        path = next((path for path in named if path.exists()), named[0])
    source = open_source(chosen.data, folder=path, documents=chosen.rule)
    known = source.splits
    wanted = (split,) if split else chosen.splits
    there = next((name for name in wanted if name in known), None)
    if there is None:
        raise UnknownName(f"split of {chosen.name}", wanted[0], known)
    next(source.pieces(there))  # raises if there is no text, or the Hub cannot be reached
    return OpenedSet(chosen, source, there)


def wrapped_rows(packing: Packing) -> Wrapped:
    """The packing of zero-shot sets: the model's own if it is wrapped, else wrapped rows of its length."""
    return packing if isinstance(packing, Wrapped) else Wrapped(packing.length)
