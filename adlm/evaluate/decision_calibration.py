"""Calibration of decisions: how often the option to which a model gives probability p is the one that stood there.

A question is a held-out text with one word hidden, and the words of one group as options. The groups do not depend on
the text, so a model that knows the distribution of the text is calibrated. Were the wrong options drawn by their
frequency, or chosen to be hard, even its probabilities would have to be corrected for how they were drawn.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.data.source import Source
from adlm.errors import ConfigError, DataError, OutOfRange
from adlm.evaluate.documents import open_held_out
from adlm.evaluate.measurement import ModelLike, Progress, check_counts, measuring, opened
from adlm.evaluate.result import Figure, Result
from adlm.evaluate.statistics import Array, calibration_error, jackknife, ratio
from adlm.randomness import Noise
from adlm.resumable import checksum
from adlm.samplers.constraints import Choice
from adlm.text_model import TextModel

BINS = 10
_COUNTED = 1000  # texts in which words are counted
_SIMULATED = 1000
_WORD = re.compile(r"(?<= )[^\W\d_]+(?!['\w])")
Group = tuple[str, ...]


class Question(NamedTuple):
    """A text with a word hidden: what stands before and after it, the options, and the number of the right one."""

    left: str
    right: str
    options: Group
    answer: int


def decisions(
    model: ModelLike,
    data: str | Path | Source,
    *,
    choices: Sequence[Sequence[str]] | None = None,
    options: int = 4,
    words: int = 200,
    n: int = 300,
    split: str | None = None,
    folder: str | Path | None = None,
    field: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    device: str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Measure how well the probabilities of `TextModel.decide` are calibrated: which of a group of words stood there?

    "ece" is the expected calibration error: the mean difference of confidence (the probability of the likeliest option)
    and accuracy over ten bins of confidence. It is above 0 by chance alone; "ece if calibrated" is what a perfectly
    calibrated model with the same confidences would have. "confidence LOW-HIGH", "accuracy LOW-HIGH" and "count
    LOW-HIGH" are the reliability table.

    Args:
        data: held-out text, named as for `perplexity`.
        choices: the groups, as in [("he", "she"), ("big", "little")]; no word may be in two of them. By default, the
            most frequent words of the text in lower case, grouped by rank.
        options: words per group, by default.
        words: how many of the most frequent words are grouped.
        n: texts, with one question each; the first that fit a row and have a word of a group.
        split, folder, field: as for `perplexity`.
        out: write the result to this file. A second call resumes.
    """
    check_counts(n=n)
    if not 2 <= options <= words:
        raise OutOfRange("options", options, f"2 to {words}, the number of words")
    with measuring(model, out, device, progress) as work:
        decider, named = opened(model, work.context, revision)
        decider = decider.both_sides
        source, chosen_split = open_held_out(data, split, folder=folder, field=field)

        def fitting() -> Iterator[str]:
            return _fitting(source.documents(chosen_split), decider)

        groups = frequent_groups(islice(fitting(), _COUNTED), options, words) if choices is None else _checked(choices)
        questions = list(islice(_questions(fitting(), groups, seed), n))
        if not questions:
            raise DataError(f"no text of {source.name} fits a row and has a word of a group", subject=str(data))
        about: dict[str, Any] = {
            "questions": len(questions),
            "groups": groups,
            "sees": "the left side" if decider.rows.one_way else "both sides",
            "bins": BINS,
        }
        key = {"source": source.fingerprint(chosen_split), "questions": checksum(questions)}
        about_data = {"name": source.name, "split": chosen_split, "key": checksum(key)}

        def scored(index: NDArray[np.int64]) -> Array:
            return np.array([_scored(decider, questions[number], seed) for number in index.tolist()])

        made_of = {"model": named, "data": about_data, "about": about, "seed": seed}
        found = work.each_of("decisions", len(questions), scored, width=3, batch=8, made_of=made_of)
        figures = calibration_figures(*found.T, seed=seed)
        items = dict(zip(("confidence", "correct", "nats"), found.T.tolist(), strict=True))
        return work.finish(Result("decisions", named, about_data, about, seed, figures, items))


def frequent_groups(texts: Iterator[str], options: int, words: int) -> list[Group]:
    """The most frequent words in lower case by rank: the first `options` of them, the next, and so on."""
    counts = Counter(word for text in texts for word in _WORD.findall(text) if word.islower())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:words]
    return [tuple(ranked[i : i + options]) for i in range(0, len(ranked) - options + 1, options)]


def calibration_figures(confidence: Array, correct: Array, nats: Array, *, seed: int) -> dict[str, Figure]:
    """The figures of a result, from [N] decisions."""
    ones = np.ones(len(confidence))
    figures = {
        "accuracy": Figure(*ratio(correct, ones)),
        "confidence": Figure(*ratio(confidence, ones)),
        "nats_per_decision": Figure(*ratio(nats, ones), unit="nats"),
    }
    inside = _bins(confidence)
    sums = np.concatenate([inside * confidence[:, None], inside * correct[:, None], ones[:, None]], -1)
    figures["ece"] = Figure(*jackknife(sums, calibration_error))
    right = np.random.Generator(np.random.Philox(seed)).random((_SIMULATED, len(confidence))) < confidence
    simulated = np.concatenate([np.tile(sums[:, :BINS].sum(0), (_SIMULATED, 1)), right @ inside], -1)
    expected = calibration_error(np.concatenate([simulated, np.full((_SIMULATED, 1), len(confidence))], -1))
    low, high = np.quantile(expected, [0.025, 0.975]).tolist()
    figures["ece if calibrated"] = Figure(float(expected.mean()), interval=(low, high))
    for number in range(BINS):
        chosen = inside[:, number] > 0
        if count := int(chosen.sum()):
            name = f"{number / BINS:.1f}-{(number + 1) / BINS:.1f}"
            figures[f"confidence {name}"] = Figure(float(confidence[chosen].mean()), kind="exact")
            figures[f"accuracy {name}"] = Figure(*ratio(correct[chosen], np.ones(count)))
            figures[f"count {name}"] = Figure(float(count), kind="exact")
    return figures


def _bins(confidence: Array) -> Array:
    """[N, BINS]: 1 at the bin of each."""
    number = np.minimum((confidence * BINS).astype(int), BINS - 1)
    found: Array = (number[:, None] == np.arange(BINS)).astype(float)
    return found


def _scored(model: TextModel, question: Question, seed: int) -> tuple[float, float, float]:
    """The confidence of a decision, whether it is right, and -log p of the right option."""
    right = "" if model.rows.one_way else question.right
    (found,) = model.decide(f"{question.left}[MASK]{right}", [Choice(question.options)], seed=seed)
    probability = found.probabilities[question.answer]
    correct = found.best == question.options[question.answer]
    return max(found.probabilities), float(correct), -float(np.log(max(probability, 1e-300)))


def _questions(texts: Iterator[str], groups: Sequence[Group], seed: int) -> Iterator[Question]:
    """One question per text that has a word of a group: first a group is drawn, then one of the places of its words."""
    group_of = {word: number for number, group in enumerate(groups) for word in group}
    for index, text in enumerate(texts):
        places: dict[int, list[re.Match[str]]] = {}
        for match in _WORD.finditer(text):
            if match[0] in group_of:
                places.setdefault(group_of[match[0]], []).append(match)
        if not places:
            continue
        first, second = Noise(seed).fork("question", index).uniform(torch.zeros(1, dtype=torch.long), 2)[0].tolist()
        number = sorted(places)[int(first * len(places))]
        match = places[number][int(second * len(places[number]))]
        yield Question(text[: match.start()], text[match.end() :], groups[number], groups[number].index(match[0]))


def _fitting(documents: Iterator[str], model: TextModel) -> Iterator[str]:
    """Texts that fit a row with room for a longer word, and that the model has tokens for."""
    room = model.config.packing.length - 8
    for text in documents:
        text = " ".join(text.split())
        known = len(ids := model.tokenizer.encode(text)) <= room and not model.tokenizer.unknown(text)
        if known and len(ids) and "[MASK" not in text:
            yield text


def _checked(choices: Sequence[Sequence[str]]) -> list[Group]:
    groups = [tuple(group) for group in choices]
    words = [word for group in groups for word in group]
    if not groups or min(map(len, groups)) < 2:
        raise ConfigError("a choice needs at least two words", subject="choices")
    if len(set(words)) < len(words):
        raise ConfigError("a word may occur only once in all choices", subject="choices")
    for word in words:
        if not _WORD.fullmatch(f" {word}", 1):
            raise ConfigError(f"a choice is made of single words, got {word!r}", subject="choices")
    return groups
