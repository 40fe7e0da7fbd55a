"""Perplexity on texts that a model was not trained on: the seven sets of the field, and what was published on them.

As in the published evaluations (SEDD, MDLM, ADLM), every record of a set is detokenised, ended by the end token and
wrapped with the others into rows of the model's length. A record is what the Hub has as a row: a line of WikiText,
blank or not, a sentence of PTB and LM1B, an article of PubMed and arXiv. The splits are theirs too: validation, but
the test split of LAMBADA, LM1B and AG News. Published code also drops what does not fill a row at the end of each
thousand records, not only at the end of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adlm.data.catalog import open_source
from adlm.data.documents import DocumentRule, Lines
from adlm.data.packing import Packing, Wrapped
from adlm.data.source import Source
from adlm.errors import AdlmError, DataError, UnknownName


@dataclass(frozen=True)
class ZeroShotSet:
    """One of the sets.

    Args:
        data: its name in the catalog, and that of its folder.
        splits: the published one, then what is taken where files have no other.
        rule: where records begin and end, if not as the catalog says.
    """

    name: str
    data: str
    splits: tuple[str, ...]
    rule: DocumentRule | None = None


class Opened:
    """A set whose text is there."""

    def __init__(self, chosen: ZeroShotSet, source: Source, split: str) -> None:
        self.set, self.source, self.split = chosen, source, split

    @property
    def departure(self) -> str | None:
        """In what it is not the published set, in words."""
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


def chosen_sets(names: Sequence[str]) -> list[ZeroShotSet]:
    """Sets by name, in the order given, each once; all of them for no names."""
    for name in names:
        if name not in SETS:
            raise UnknownName("zero-shot set", name, SETS)
    return [SETS[name] for name in dict.fromkeys(names or SETS)]


def open_sets(
    sets: Sequence[ZeroShotSet], folder: Path | None, *, split: str | None = None
) -> tuple[list[Opened], dict[str, AdlmError]]:
    """The sets whose text is there, and why others are missing. All are looked for before any is scored.

    Args:
        folder: holds a folder for each, by its name in the catalog or here; else they come from the Hub.
        split: this one of every set, whatever was published.
    """
    found: list[Opened] = []
    missing: dict[str, AdlmError] = {}
    for each in sets:
        try:
            found.append(_open(each, folder, split))
        except (DataError, UnknownName) as error:
            missing[each.name] = error
    return found, missing


def _open(chosen: ZeroShotSet, folder: Path | None, split: str | None) -> Opened:
    position = None
    if folder is not None:
        named = [folder.expanduser() / name for name in (chosen.data, chosen.name)]
        position = next((path for path in named if path.exists()), named[0])
    source = open_source(chosen.data, folder=position, documents=chosen.rule)
    known = source.splits
    output_mask = (split,) if split else chosen.splits
    there = next((name for name in output_mask if name in known), None)
    if there is None:
        raise UnknownName(f"split of {chosen.name}", output_mask[0], known)
    next(source.pieces(there))  # says so where there is no text, or the Hub cannot be reached
    return Opened(chosen, source, there)


def wrapped_rows(rows: Packing) -> Wrapped:
    """Rows of a model as zero-shot sets are wrapped: its own where it was trained on such rows, else as long ones."""
    return rows if isinstance(rows, Wrapped) else Wrapped(rows.length)
