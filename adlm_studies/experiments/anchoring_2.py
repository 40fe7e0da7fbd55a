"""Does anchoring help? The conclusive study: docs/studies/anchoring-2.md has its design, written before it was run.

Its steps go from small to large, so that every hour of computing ends in finished runs: the main comparison at the
smallest size, at a smaller budget, and in full, then every trick, one seed of everything else, more seeds, and the
largest models last.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from adlm_studies.experiments import settings
from adlm_studies.experiments.anchoring_2_report import report_page
from adlm_studies.experiments.anchoring_arms import (
    ARMS,
    CORPORA,
    MAIN,
    SEARCH,
    SEARCH_SEED,
    SIZES,
    TOKENS_PER_STEP,
    TRICKS,
    AnchoringArm,
    arm_run,
    paper_run,
)
from adlm_studies.experiments.paired_rows import TrainAndScoreRows, TrainBestOfSearch, TrainWithCountedRule
from adlm_studies.experiments.study import StepOutcome, Study, StudyStep, StudyWork, check_names
from adlm_studies.report.sections import ReportPage

MILLION = 1_000_000


class Phase(NamedTuple):
    """Runs of one purpose: every arm on a corpus, at a size, with so many tokens, for some seeds."""

    title: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    corpus: str = "books"
    size: str = "A"
    tokens: int = 5 * MILLION


_BASELINES = (
    "AR",
    "MDLM, anchor stage's depth",
    "MDLM, equal parameters",
    "ADLM, logits, γ = 0",
    "ADLM, logits",
    "A2R",
)
_BLOCKS = tuple(name for name in ARMS if name.startswith("blocks of"))
_TRICKS = tuple(name for name in ARMS if name in TRICKS or (name in TRICKS.values() and name not in MAIN))
_SEARCH = "search"


def _others(seed: int) -> tuple[Phase, ...]:
    return (
        Phase("baselines", _BASELINES, (seed,)),
        Phase("blocks", _BLOCKS, (seed,)),
        Phase(_SEARCH, tuple(SEARCH), (seed,)),
        Phase("corpora", MAIN, (seed,), corpus="tinystories"),
        Phase("corpora", MAIN, (seed,), corpus="text8"),
    )


PHASES = (
    Phase("sizes", MAIN, (0, 1, 2, 3, 4), size="S"),
    Phase("tokens", MAIN, (0, 1, 2)),
    Phase("main", MAIN, (0, 1, 2), tokens=20 * MILLION),
    Phase("tricks", _TRICKS, (0,)),
    Phase("sizes", MAIN, (0, 1), size="B"),
    *_others(0),
    Phase("sizes", MAIN, (0, 1), size="S", tokens=20 * MILLION),
    Phase("tricks", _TRICKS, (1,)),
    *_others(1),
    Phase("more seeds", MAIN, (3, 4), tokens=20 * MILLION),
    Phase("large", MAIN, (0, 1), size="B", tokens=40 * MILLION),
)
TITLES = tuple(dict.fromkeys(phase.title for phase in PHASES))
_PAPER_ARMS = (*MAIN, "ADLM, logits, γ = 0", "ADLM, logits", *_BASELINES[:3], "A2R", *_BLOCKS)


@dataclass(frozen=True)
class Anchoring2(Study):
    """Args:
    phases: by title; all by default.
    training_tokens: of every run, for a trial; the phase's own by default.
    rows: held-out rows to score on.
    """

    name: ClassVar[str] = "anchoring-2"
    question: ClassVar[str] = "Does anchoring help at equal compute, and does that change with tokens and size?"

    scale: str = "small"
    seeds: int = 5
    phases: tuple[str, ...] = ()
    training_tokens: int = 0
    rows: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("phase of the study", self.phases, TITLES)

    def steps(self) -> Sequence[StudyStep]:
        found: dict[str, StudyStep] = {}
        for phase in self._phases():
            for seed in phase.seeds:
                if seed < self.seeds:
                    for step in self._of_seed(phase, seed):
                        found.setdefault(step.name, step)
        return list(found.values())

    def _phases(self) -> Iterator[Phase]:
        if self.scale == "paper":
            for corpus in settings.corpora("paper"):
                yield Phase("main", _PAPER_ARMS, tuple(range(self.seeds)), corpus, "published", 0)
            return
        for phase in PHASES:
            if self.phases and phase.title not in self.phases:
                continue
            if self.scale == "nano":
                phase = phase._replace(corpus="stories", size="nano")
            yield phase._replace(tokens=self.training_tokens or phase.tokens)

    def _of_seed(self, phase: Phase, seed: int) -> Iterator[StudyStep]:
        if phase.title == _SEARCH:
            for name in phase.arms:
                yield from self._searched(phase, name, seed)
            return
        for name in phase.arms:
            yield self._step(phase, name, ARMS[name], seed)

    def _step(self, phase: Phase, name: str, arm: AnchoringArm, seed: int) -> StudyStep:
        work: StudyWork = self._work(phase, name, arm, seed)
        if arm.rule_from_data is not None:
            assert isinstance(work, TrainAndScoreRows)
            work = TrainWithCountedRule(work, arm.rule_from_data, arm.anchored_masking)
        return StudyStep(_step_name(phase, name, seed), work, _labels(phase, name, seed))

    def _work(self, phase: Phase, name: str, arm: AnchoringArm, seed: int) -> TrainAndScoreRows:
        title = f"{phase.corpus}-{_slug(name)}"
        if self.scale == "paper":
            run = paper_run(title, arm, phase.corpus, seed=seed)
        else:
            run = arm_run(title, arm, CORPORA[phase.corpus], SIZES[phase.size], tokens=phase.tokens, seed=seed)
        longer = max(1, arm.length // CORPORA["books"].packing.length)
        return TrainAndScoreRows(run, rows=max(1, self.rows // longer))

    def _searched(self, phase: Phase, name: str, seed: int) -> Iterator[StudyStep]:
        """Short runs of every setting with a seed of their own, then the best one as long as the others."""
        short = phase._replace(tokens=max(2 * TOKENS_PER_STEP, phase.tokens // 2))
        own = self._step(phase, name, ARMS[name], seed)
        yield own
        candidates, trained = {}, {}
        for setting, arm in SEARCH[name].items():
            tried = self._step(short, f"{name}, {setting}", arm, SEARCH_SEED)
            yield tried
            candidates[tried.name] = self._work(phase, name, arm, seed)
            if arm == ARMS[name]:
                trained[tried.name] = own.name
        best = f"{name}, best of search"
        needs = (*candidates, own.name)
        work = TrainBestOfSearch(candidates, trained)
        yield StudyStep(_step_name(phase, best, seed), work, _labels(phase, best, seed), needs)

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        return report_page(self.question, outcomes)


def _labels(phase: Phase, name: str, seed: int) -> dict[str, str | int]:
    return {"corpus": phase.corpus, "size": phase.size, "tokens": phase.tokens, "model": name, "seed": seed}


def _step_name(phase: Phase, name: str, seed: int) -> str:
    budget = f"{phase.size}-{phase.tokens / MILLION:g}M" if phase.tokens else phase.size
    return f"{phase.corpus}/{budget}/{_slug(name)}/seed-{seed}"


def _slug(name: str) -> str:
    return "-".join(re.findall(r"[a-z0-9.]+", name.lower().replace("γ = ", "gamma ")))
