"""Infilling of held-out texts: a word, a phrase or a sentence is cut out, and what a model puts there is compared.

A model that sees both sides fills the hole. One that sees only the left does its best: it continues the left side
several times, and keeps the continuation that makes the whole text most likely.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.config import to_json
from adlm.data.source import Source
from adlm.data.tokenizer import Tokenizer
from adlm.errors import DataError, UnknownName
from adlm.evaluate.documents import open_held_out
from adlm.evaluate.measurement import ModelLike, Progress, check_counts, measuring, opened
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.statistics import ratio
from adlm.randomness import Noise
from adlm.resumable import checksum
from adlm.samplers.sampler import Sampler
from adlm.text_model import TextModel

HOLES = ("word", "phrase", "sentence")
_PHRASE = 3  # words
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_SENTENCE = re.compile(r"(?<=[.!?] )[A-Z][^.!?\"]*[.!?](?= )")


class CutText(NamedTuple):
    """A text without a part of it, and the number of tokens of that part."""

    left: str
    missing: str
    right: str
    tokens: int


def infilling(
    model: ModelLike,
    data: str | Path | Source,
    *,
    holes: Sequence[str] = HOLES,
    n: int = 100,
    best_of: int = 8,
    sampler: Sampler | str | None = None,
    split: str | None = None,
    folder: str | Path | None = None,
    field: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    device: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
    **options: object,
) -> Result:
    """Measure how often a model restores a word, a phrase of three words or a sentence cut from a held-out text.

    The number of missing tokens is given. "exact HOLE" is the fraction of holes filled with the very words; "words
    HOLE" is the F1 score of the words put there, for holes that can be filled in more than one way.

    Args:
        data: held-out text, named as for `perplexity`.
        holes: kinds of holes: word, phrase, sentence.
        n: texts; the first of the data that fit a row and have a hole of each kind.
        best_of: fillings to choose from, by the likelihood of the whole text read from left to right. The first takes
            the likeliest token at each step, the others are drawn: see `TextModel.fillings`. Models without that
            reading have one filling.
        sampler, options: as in `TextModel.infill`; by default the most certain blank first, with its most likely token.
        split, folder, field: as for `perplexity`.
        out: write the result to this file. A second call resumes.
    """
    check_counts(n=n, best_of=best_of)
    for each in holes:
        if each not in HOLES:
            raise UnknownName("hole", each, HOLES)
    with measuring(model, out, device, progress) as work:
        filler, named = opened(model, work.context, revision)
        source, chosen_split = open_held_out(data, split, folder=folder, field=field)
        texts = list(_fitting(source.documents(chosen_split), filler, n))
        if not texts:
            raise DataError(f"no text of {source.name} fits a row and has a hole of each kind", subject=str(data))
        filling: dict[str, Any] = {"sampler": "confidence", "temperature": 0.0, "tokens_per_step": 1}
        if sampler is not None or options:
            filling = {"sampler": sampler, **options}
        about: dict[str, Any] = {
            "texts": len(texts),
            "missing tokens": "their number is given",
            "sees": "both sides" if sees_both_sides(filler) else "the left side",
            "sampler": to_json(filler.sampler(**filling)) if sees_both_sides(filler) else "left-to-right",
            "best of": best_of,
        }
        key = {"source": source.fingerprint(chosen_split), "texts": checksum(texts)}
        about_data = {"name": source.name, "split": chosen_split, "key": checksum(key)}
        figures: dict[str, Figure] = {}
        items: dict[str, Sequence[float]] = {}
        for kind in holes:
            cuts = [cut_text(text, kind, filler.tokenizer, Noise(seed).fork(kind, i)) for i, text in enumerate(texts)]

            def scored(index: NDArray[np.int64], cuts: list[CutText] = cuts) -> NDArray[np.float64]:
                found = np.zeros((len(index), 2))
                for row, number in enumerate(index.tolist()):
                    cut, own = cuts[number], Noise(seed).fork("fill", number).seed
                    filled = filled_text(filler, cut, best_of, own, filling)
                    found[row] = agreement(filled[len(cut.left) : len(filled) - len(cut.right)], cut.missing)
                return found

            made_of = {"model": named, "data": about_data, "about": about, "hole": kind, "seed": seed}
            found = work.each_of(kind, len(cuts), scored, width=2, batch=8, made_of=made_of)
            for name, values in zip(("exact", "words"), found.T, strict=True):
                value, error = ratio(values, np.ones(len(values)))
                figures[f"{name} {kind}"], items[f"{name} {kind}"] = Figure(value, error), values.tolist()
        return work.finish(Result("infilling", named, about_data, about, seed, figures, items))


def sees_both_sides(model: TextModel) -> bool:
    """Whether holes in the middle of a text are filled with what follows them in view."""
    return not model.both_sides.rows.one_way


def cut_text(text: str, kind: str, tokenizer: Tokenizer, noise: Noise) -> CutText:
    """Cut a random hole of a kind; never at the beginning, where nothing is left of it."""
    spans = _spans(text, kind)
    start, end = spans[int(noise.uniform(torch.zeros(1, dtype=torch.long), 1)[0, 0] * len(spans))]
    tokens = sum(first < end and last > start for first, last in tokenizer.offsets(text))
    return CutText(text[:start], text[start:end], text[end:], tokens)


def filled_text(model: TextModel, cut: CutText, best_of: int, seed: int, filling: dict[str, Any]) -> str:
    """The whole text with its hole filled: the likeliest of several fillings."""
    if sees_both_sides(model):
        text = f"{cut.left}[MASK:{cut.tokens}]{cut.right}"
        found = model.infill(text, seed=seed, **filling)
        if best_of == 1 or 1 not in model.block_sizes:
            return found[0]
        found += model.fillings(text, best_of - 1, seed=seed, **filling | {"temperature": 1.0})
        return model.in_blocks(1).likeliest(found)
    options: dict[str, Any] = {"max_new_tokens": cut.tokens, "stop": False, "sampler": "left-to-right"}
    prompt = cut.left.rstrip(" ")
    found = model.generate(prompt, temperature=0.0, seed=seed, **options)
    if best_of > 1:
        found += model.generate(prompt, n=best_of - 1, seed=seed, **options)
    return model.likeliest([cut.left + text[len(cut.left) :] + cut.right for text in found])


def agreement(filled: str, missing: str) -> tuple[float, float]:
    """Whether the words are the same, and the F1 score of them."""
    ours, theirs = (_WORD.findall(text) for text in (filled, missing))
    common = sum((Counter(ours) & Counter(theirs)).values())
    return float(ours == theirs), 2 * common / max(1, len(ours) + len(theirs))


def _spans(text: str, kind: str) -> list[tuple[int, int]]:
    """Where holes of a kind can be cut."""
    if kind == "sentence":
        return [match.span() for match in _SENTENCE.finditer(text)]
    words = [match.span() for match in _WORD.finditer(text)]
    count = 1 if kind == "word" else _PHRASE
    runs = (words[i : i + count] for i in range(1, len(words) - count))
    # Words of a phrase follow each other with nothing but a space between.
    return [
        (run[0][0], run[-1][1])
        for run in runs
        if text[run[0][0] - 1] == " " and all(b[0] == a[1] + 1 for a, b in pairwise(run))
    ]


def _fitting(documents: Iterator[str], model: TextModel, n: int) -> Iterator[str]:
    """The first `n` texts that fit a row with room for a few tokens more, and have a hole of each kind."""
    room = model.config.packing.length - 8
    for text in documents:
        text = " ".join(text.split())
        if all(_spans(text, kind) for kind in HOLES) and len(model.tokenizer.encode(text)) <= room:
            yield text
            if (n := n - 1) == 0:
                return
