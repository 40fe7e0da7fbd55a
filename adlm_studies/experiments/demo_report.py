"""The page of the demo: two sentences, one table, samples, a text as it appears, curves, and what to try next."""

import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from adlm.data.catalog import open_source
from adlm.data.stories import Stories
from adlm_studies.experiments.samples import player_of
from adlm_studies.experiments.statistics import exponential
from adlm_studies.experiments.study import StepOutcome
from adlm_studies.experiments.tables import curves
from adlm_studies.experiments.training import splits_of
from adlm_studies.report.sections import Cell, Interval, ReportPage, ReportTable, Section, Texts

TAKE_HOME = "adlm-block"  # the step whose model is worth keeping
_LAG = (
    "Masked models from scratch (MDLM, ADLM) lag behind at this size: they learn to fill any of the 2^L patterns of "
    "blanks in a text of L tokens, while writing from left to right needs only L of them, so in the same minutes they "
    "learn less about each."
)
_NORMAL = 1.96  # standard errors on each side of a 95 % interval


def demo_report(corpus: str, outcomes: Sequence[StepOutcome], *, shown: int, temperature: float = 1.0) -> ReportPage:
    """The report of the steps that are finished, with so many texts of each model, written at this temperature."""
    trained = {outcome.name: outcome for outcome in outcomes if "model" in outcome.labels}
    players: list[Section] = [player_of(outcome.result) for outcome in outcomes if "player" in outcome.result]
    written = [
        (outcome.labels["model"], f"{mark(corpus, text)}{text}")
        for outcome in trained.values()
        for text in outcome.result["texts"][:shown]
    ]
    marks = "✓ marks a story that the grammar could have told. " if _stories(corpus) else ""
    sections = [
        _table(corpus, trained, _speeds(outcomes), temperature),
        Texts("What they write", f"{marks}The first of each at temperature {temperature:g}, not selected.", written),
        *players,
        curves(corpus, list(trained.values())),
    ]
    return ReportPage("AR, MDLM and ADLM, masked and in blocks, in minutes", _lead(corpus, trained), sections)


def next_commands(program: str, out: Path, corpus: str, outcomes: Sequence[StepOutcome]) -> list[str]:
    """Three commands to try next, each complete: write, fill a hole, measure.

    Args:
        program: how the user calls `adlm`.
        out: the folder of the demo.
    """
    # A model that writes in blocks does not see what follows a hole; the masked one does.
    held_out = splits_of(open_source(corpus))[1]  # a file is otherwise scored as a whole, with what was trained on
    model, masked = (shlex.quote((out / name).as_posix()) for name in (TAKE_HOME, "adlm"))
    texts = [text for outcome in outcomes if outcome.name == TAKE_HOME for text in outcome.result["texts"]]
    holed = shlex.quote(_holed(next((text for text in texts if len(text.split()) > 2), "")))
    return [
        f"{program} sample {model} --n 3 --seed 1",
        f"{program} infill {masked} {holed} --n 3",
        f"{program} evaluate perplexity {model} {shlex.quote(corpus)} --split {held_out} --block-size 1 --limit 200",
    ]


def _holed(text: str, words: int = 12) -> str:
    """The beginning of a text, with a hole of one token in the middle."""
    kept = text.split()[:words] or [""]
    kept[len(kept) // 2] = "[MASK]"
    return " ".join(kept)


def _lead(corpus: str, trained: Mapping[str, StepOutcome]) -> str:
    """What the user sees, and why masked models lag."""
    if not {"ar", TAKE_HOME} <= trained.keys():
        return _LAG
    floor, unit = _floor(corpus), "story" if _floor(corpus) else "token"
    ar, blocks = (_nats(trained[name], unit).value for name in ("ar", TAKE_HOME))
    entropy = f" (the entropy of the grammar is {floor:.3g})" if floor else ""
    flawless = (
        f" ({_flawless(corpus, trained[TAKE_HOME].result['texts']).value:.0f} % flawless stories)" if floor else ""
    )
    return (
        f"AR has {ar:.3g} nats per {unit}{entropy}, and ADLM in blocks, which keeps AR's weights to verify what its "
        f"adapters draft, writes as AR does{flawless} and has at most {blocks:.3g} nats if blocks are written without "
        f"AR. {_LAG}"
    )


def _table(
    corpus: str, trained: Mapping[str, StepOutcome], speeds: Mapping[str, float], temperature: float
) -> ReportTable:
    floor = _floor(corpus)
    unit = "story" if floor else "token"
    columns = ["model", f"nats per {unit}", *(["above the floor", "flawless, %"] if floor else ["perplexity"])]
    columns += ["tokens per second", "minutes"]
    best = ("", "low", *(("low", "high") if floor else ("low",)), "high", "")
    rows: list[list[Cell]] = []
    for name, outcome in trained.items():
        nats = _nats(outcome, unit)
        quality: list[Cell] = [exponential(nats)]
        if floor:
            quality = [_minus(nats, floor), _flawless(corpus, outcome.result["texts"])]
        minutes = outcome.result["seconds"] / 60
        if name == TAKE_HOME and "ar" in trained:
            minutes += trained["ar"].result["seconds"] / 60
        speed = round(speeds[name]) if name in speeds else None
        rows.append([outcome.labels["model"], nats, *quality, speed, f"{minutes:.1f}"])
    if floor:
        rows.append(["exact floor", floor, 0.0, 100, None, ""])
    return ReportTable(f"Held-out {corpus}", _note(trained, temperature), columns, rows, best)


def _note(trained: Mapping[str, StepOutcome], temperature: float) -> str:
    results = [outcome.result for outcome in trained.values()]
    threads = max((result["threads"] for result in results), default=1)
    alone = "side by side with one thread each" if threads == 1 else f"{threads} threads"
    sizes = sorted(result["parameters"] / 1e6 for result in results)
    size = f"{sizes[0]:.2f} to {sizes[-1]:.2f} M parameters, one seed. " if sizes else ""
    return (
        f"{size}± is a 95 % interval over held-out rows and over texts; ≤ marks a bound, from 8 mask counts per row. "
        f"Minutes are of training, {alone}; those of the last model include AR's. Texts are written at "
        f"temperature {temperature:g}. Tokens per second: one text at a time, with the model's own sampler. "
        "The last model drafts in blocks and verifies from left to right, where it is the AR model; its nats are those "
        "of the blocks alone."
    )


def _speeds(outcomes: Sequence[StepOutcome]) -> Mapping[str, float]:
    found = (outcome.result["tokens_per_second"] for outcome in outcomes if "tokens_per_second" in outcome.result)
    return next(found, {})


def mark(corpus: str, text: str) -> str:
    """The mark before a sample, which says whether the grammar could have written the story."""
    source = _stories(corpus)
    return "" if source is None else "· " if source.problems(text) else "✓ "


@lru_cache
def _stories(corpus: str) -> Stories | None:
    source = open_source(corpus)
    return source if isinstance(source, Stories) else None


def _floor(corpus: str) -> float | None:
    """Exact nats per story of the process the text comes from, if it is known."""
    source = _stories(corpus)
    return None if source is None else source.entropy()


def _flawless(corpus: str, texts: Sequence[str]) -> Interval:
    """Percent of the texts that the grammar could have told."""
    source = _stories(corpus)
    if source is None or not texts:
        return Interval(0.0, 0.0, 0.0)
    good = sum(not source.problems(text) for text in texts) / len(texts)
    half = _NORMAL * (good * (1 - good) / len(texts)) ** 0.5
    return Interval(100 * good, 100 * (good - half), 100 * (good + half))


def _nats(outcome: StepOutcome, unit: str) -> Interval:
    """Of one run: what the draw of rows and masks leaves open."""
    scores: Mapping[str, Any] = outcome.result["scores"]
    estimate = scores[next(iter(scores))]["nats_per_row" if unit == "story" else "nats_per_token"]
    mean, half = estimate["mean"], _NORMAL * estimate["error"]
    return Interval(mean, mean - half, mean + half, bound=estimate["draws"] > 0)


def _minus(nats: Interval, floor: float) -> Interval:
    return Interval(nats.value - floor, nats.low - floor, nats.high - floor, nats.bound)
