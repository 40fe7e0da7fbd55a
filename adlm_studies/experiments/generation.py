"""How good are the texts, and what do they cost? Every sampler at several numbers of steps, for AR, MDLM and ADLM.

The judge is a left-to-right model that takes no part: the same as the AR model, from another seed. On generated stories
the grammar judges too, and its verdict is exact: which texts it could have told, and how likely it finds those.
"""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.config import to_json
from adlm.data.config import Corpus
from adlm.data.stories import Stories
from adlm.errors import DataError, OutOfRange
from adlm.evaluate.judge import Judge, judge_texts, open_judge
from adlm.evaluate.mauve import mauve
from adlm.evaluate.story_measures import sample_figures
from adlm.evaluate.text_figures import figures
from adlm.samplers.state import StepEvent
from adlm.text_model import TextModel
from adlm.train.run import Run
from adlm_studies.experiments import settings
from adlm_studies.experiments.statistics import exponential, interval_note, over_runs, paired, significant
from adlm_studies.experiments.study import StepContext, StepOutcome, Study, StudyStep, StudyWork, check_names
from adlm_studies.experiments.tables import nats_of, select
from adlm_studies.experiments.training import TrainAndScore, held_out
from adlm_studies.report.sections import Cell, Chart, Interval, ReportPage, ReportTable, Section, Series, Texts

# By the names that `adlm sample` knows, with its defaults.
RULES = ("remdm-cap", "remdm-rescale", "remdm-conf", "remdm-loop", "forward-backward")
ORDERS = ("confidence", "anchor-first", "agreeing")
SAMPLERS = ("ancestral", *RULES, "first-hitting", *ORDERS)
# What MDLM is sampled with too; which of ReMDM's rules is best, one model can tell, in two thirds of the time.
SHARED = ("ancestral", "remdm-cap", "remdm-loop", "first-hitting", "confidence")
KINDS = {"AR": "ar-same-parameters", "MDLM": "mdlm-same-cost", "ADLM": "adlm"}
_GRIDS = {"nano": (4, 8, 16, 32, 64, 128), "small": (8, 16, 32, 64, 128, 256), "paper": (64, 128, 256, 512, 1024, 2048)}
_TEXTS = {"nano": 96, "small": 256, "paper": 1000}
_JUDGES = {"paper": "openai-community/gpt2-large"}  # the field's
_JUDGE_SEED, _SOME = 1000, 0.05  # of no model that is judged; a fraction that tells samplers apart
_JUDGE, _REAL, _FEATURES = "judge", "real", "features.npy"
_STORY = ("flawless", "log-likelihood of flawless", "distinct among flawless")
# Figures by their names, as people call them. The first four are drawn; of three one knows which values are better.
_CALLED = {
    "perplexity": "generative perplexity",
    "mauve": "MAUVE",
    "entropy": "entropy of a text, nats",
    "flawless": "fraction of flawless stories",
    "repetition_4": "4-grams repeated",
    "log-likelihood of flawless": "log p of flawless ones, nats",
    "distinct among flawless": "distinct among them",
}
_DRAWN = tuple(_CALLED)[:4]
_RISES = {"perplexity": False, "mauve": True, "flawless": True}
# What is drawn in one chart: as many lines as there are colors.
_AR, _MDLM = ("AR", "left-to-right"), ("MDLM", "ancestral")
_FAMILIES = {
    "remasking": (_AR, *(("ADLM", each) for each in ("ancestral", *RULES))),
    "orders": (_AR, _MDLM, *(("ADLM", each) for each in ("ancestral", "first-hitting", *ORDERS))),
}


@dataclass(frozen=True)
class MeasureRealText(StudyWork):
    """Have the judge read held-out rows: samples are compared with one half, and the other is measured as they are.

    Args:
        model, run: the step whose tokens and rows are used, and what it trained.
        judge: by name; empty: the study's own.
    """

    model: str
    run: Run
    texts: int
    judge: str = ""

    def execute(self, context: StepContext) -> dict[str, Any]:
        model = TextModel.from_pretrained(context.folder_of(self.model))
        corpus = _corpus(self.run)
        table = held_out(corpus, model.tokenizer, context.cache)
        if len(table) < 2 * self.texts:
            raise DataError(
                f"the {len(table)} held-out rows of {corpus.source} are enough for {len(table) // 2} texts, not for "
                f"{self.texts}",
                subject="texts",
            )
        # From all over the split, in which neighbors may be of one document.
        chosen = np.linspace(0, len(table) - 1, 2 * self.texts).astype(np.int64)
        begin, end = model.config.packing.frame(model.tokenizer.roles)[0], model.tokenizer.roles.eos_id
        rows = [row[len(begin) :] for row in table.tokens(chosen).tolist()]
        texts = [model.tokenizer.decode(row[: [*row, end].index(end)]) for row in rows]  # as `generate` gives them
        judge = open_judge(self.judge or str(context.folder_of(_JUDGE)))
        features = judge_texts(judge, texts[::2]).features
        context.folder.mkdir(parents=True, exist_ok=True)
        np.save(context.folder / _FEATURES, features)
        return {"figures": _measured(judge, features, texts[1::2], corpus), "texts": texts[1:4:2]}


@dataclass(frozen=True)
class GenerateTexts(StudyWork):
    """Texts of a trained model by one sampler, what they cost and how good they are.

    Args:
        model, run: the step that trained it, and how.
        sampler, steps: by name, as in `adlm sample`.
        judge: as in `MeasureRealText`.
    """

    model: str
    sampler: str
    steps: int | None
    run: Run
    texts: int
    seed: int = 0
    judge: str = ""

    def execute(self, context: StepContext) -> dict[str, Any]:
        model = TextModel.from_pretrained(context.folder_of(self.model))
        sampler, calls = model.sampler(self.sampler, steps=self.steps), 0

        def count(view: StepEvent) -> None:
            nonlocal calls
            calls += int(view.fresh.any(-1).sum())  # a row goes through the network where something is written in it

        model.generate(max_new_tokens=1, sampler=sampler)  # what only a first call pays for stays out of the time
        began = time.perf_counter()
        texts = model.generate(n=self.texts, seed=self.seed, sampler=sampler, on_step=count)
        seconds = time.perf_counter() - began
        judge = open_judge(self.judge or str(context.folder_of(_JUDGE)))
        features = np.load(context.folder_of(_REAL) / _FEATURES, allow_pickle=False)
        found = _measured(judge, features, texts, _corpus(self.run))
        tokens = sum(map(len, model.tokenizer.encode_batch(texts)))
        found |= {"calls": calls / self.texts, "seconds": seconds, "tokens_per_second": tokens / seconds}
        return {"figures": found, "sampler": to_json(sampler), "threads": torch.get_num_threads(), "texts": texts[:2]}


def _corpus(run: Run) -> Corpus:
    assert isinstance(run.data, Corpus)
    return run.data


def _measured(judge: Judge, real: NDArray[np.float32], texts: Sequence[str], corpus: Corpus) -> dict[str, float | None]:
    """Figures by name; None where there is no number."""
    found: dict[str, float] = {}
    with suppress(DataError):  # texts that are all empty, or of words that the judge does not know, have none of its
        judged = judge_texts(judge, texts)
        found = {name: figure.value for name, figure in figures(judged).items()}
        found["mauve"] = mauve(real, judged.features).mean
    if isinstance(source := corpus.open(), Stories):
        exact = sample_figures(texts, source)
        found |= {name: exact[name].value for name in _STORY if name in exact}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


@dataclass(frozen=True)
class Generation(Study):
    """The study of how good samples are and what they cost, for every sampler and several numbers of steps.

    Args:
        corpus: by its name at the scale; the first there by default.
        samplers: of `SAMPLERS`, all by default. MDLM is sampled with those that are in `SHARED` too.
        grid: numbers of steps; the scale's own by default. Rules that mask again take every other one.
        texts: of each setting; the scale's own by default.
        judge: as in `adlm evaluate generation`; by default a model of the study's own, at paper scale GPT-2 large.
        training_steps: the scale's own by default.
        rows: held-out rows that models are scored on.
    """

    name: ClassVar[str] = "generation"
    question: ClassVar[str] = "Which sampler writes best at equal cost, and does anchoring improve the text?"

    corpus: str = ""
    samplers: tuple[str, ...] = ()
    grid: tuple[int, ...] = ()
    texts: int = 0
    judge: str = ""
    training_steps: int = 0
    rows: int = 250

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("sampler of the study", self.samplers, SAMPLERS)
        if any(steps < 1 for steps in self.grid):
            raise OutOfRange("grid", self.grid, "1 or more each")

    def steps(self) -> Sequence[StudyStep]:
        judge, texts = self.judge or _JUDGES.get(self.scale, ""), self.texts or _TEXTS[self.scale]
        known = settings.corpora(self.scale)
        corpus = self.corpus or ("stories" if "stories" in known else known[0])  # which have an exact judge
        trained = [
            self._trained(corpus, model, f"{corpus}/{kind}/seed-{seed}", seed)
            for seed in range(self.seeds)
            for model, kind in KINDS.items()
        ]
        judges = [] if judge else [self._trained(corpus, "judge", _JUDGE, _JUDGE_SEED)]
        first, run = (judges or trained)[0]
        real = StudyStep(_REAL, MeasureRealText(first.name, run, texts, judge), {"model": "real text"}, (first.name,))
        written = [
            StudyStep(
                f"texts/{step.labels['model']}/{sampler}/{steps or 'own'}/seed-{step.labels['seed']}",
                GenerateTexts(step.name, sampler, steps, run, texts, step.labels["seed"], judge),
                {**step.labels, "sampler": sampler, "steps": steps},
                (step.name, _REAL),
            )
            for step, run in trained
            for sampler, steps in self._settings(step.labels["model"], _corpus(run).packing.length)
        ]
        return [*(step for step, _ in (*judges, *trained)), real, *written]

    def _trained(self, corpus: str, model: str, name: str, seed: int) -> tuple[StudyStep, Run]:
        kind = KINDS.get(model, KINDS["AR"])
        run = settings.study_run(self.scale, corpus, kind, seed=seed, steps=self.training_steps or None)
        return StudyStep(
            name, TrainAndScore(run, self.rows, texts=0), {"corpus": corpus, "model": model, "seed": seed}
        ), run

    def _settings(self, model: str, length: int) -> list[tuple[str, int | None]]:
        """What a model is sampled with: (sampler, steps)."""
        if model == "AR":
            return [("left-to-right", None)]
        grid = self.grid or _GRIDS[self.scale]
        numbers: dict[str, Sequence[int | None]] = {
            "first-hitting": (None,),
            **dict.fromkeys(RULES, grid[1::2] or grid),
            **dict.fromkeys(ORDERS, tuple(steps for steps in grid if steps <= length)),  # a token a step is the least
        }
        chosen = [name for name in self.samplers or SAMPLERS if model == "ADLM" or name in SHARED]
        return [(name, steps) for name in chosen for steps in numbers.get(name, grid)]

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        written = [outcome for outcome in outcomes if "sampler" in outcome.labels]
        real = select(outcomes, model="real text")
        numbers = sorted({outcome.labels["steps"] for outcome in written} - {None})
        shown = numbers[1::2] or numbers
        middle = shown[len(shown) // 2] if shown else 0
        sections: list[Section] = []
        if written:
            tables = [_table(written, real, steps) for steps in shown]
            sections = [_equal_cost(written, shown), _advantage(written), *tables, *_charts(written, real)]
            sections.append(_samples(written, real, middle))
        trained = [outcome for outcome in outcomes if "scores" in outcome.result]
        # The grammar knows best, where there is one and masked models write some stories that it could have told.
        fractions = [each.result["figures"].get("flawless", 0.0) for each in written if each.labels["model"] != "AR"]
        measure = "flawless" if max(fractions, default=0.0) > _SOME else "mauve"
        found = [_winner(written, measure, middle), _verdict(written, measure, trained)]
        return ReportPage("What samplers write", " ".join([self.question, *filter(None, found)]), sections)


def _values(outcomes: Sequence[StepOutcome], measure: str) -> dict[int, float]:
    """By seed: perplexities as their logarithms, of which means and differences are taken."""
    each = {outcome.labels.get("seed", 0): outcome.result["figures"].get(measure) for outcome in outcomes}
    found = {seed: value for seed, value in each.items() if value is not None}
    return {seed: math.log(value) for seed, value in found.items()} if measure == "perplexity" else found


def _mean(values: Sequence[float], measure: str) -> Interval | None:
    if not values:
        return None
    return exponential(over_runs(values)) if measure == "perplexity" else over_runs(values)


def _figure(outcomes: Sequence[StepOutcome], measure: str) -> Interval | None:
    return _mean(list(_values(outcomes, measure).values()), measure)


def _present(outcomes: Sequence[StepOutcome], measures: Sequence[str] = _DRAWN) -> list[str]:
    return [measure for measure in measures if any(_values([each], measure) for each in outcomes)]


def _labels(outcomes: Sequence[StepOutcome], *names: str) -> list[tuple[Any, ...]]:
    """The combinations of these labels that occur."""
    return list(dict.fromkeys(tuple(outcome.labels[name] for name in names) for outcome in outcomes))


def _named(outcomes: Sequence[StepOutcome]) -> str:
    return f"{outcomes[0].labels['model']}, {outcomes[0].labels['sampler']}"


def _table(written: Sequence[StepOutcome], real: Sequence[StepOutcome], steps: int) -> ReportTable:
    measures = _present(written, tuple(_CALLED))
    rows: list[list[Cell]] = [["real text", "", None, None, *(_figure(real, each) for each in measures)]]
    for model, sampler in _labels(written, "model", "sampler"):
        here = select(written, model=model, sampler=sampler)
        if here := select(here, steps=steps) or select(here, steps=None):
            rows.append([model, sampler, *(_figure(here, each) for each in ("calls", "tokens_per_second", *measures))])
    said = interval_note(len(_labels(written, "seed")))
    note = (
        f"{said}; speeds depend on the machine and its load. A call of AR computes one token, that of other models "
        "a row."
    )
    columns = ("model", "sampler", "calls per text", "tokens per second", *(_CALLED[each] for each in measures))
    return ReportTable(f"Samplers at {steps} steps", note, columns, rows)


def _charts(written: Sequence[StepOutcome], real: Sequence[StepOutcome]) -> list[Section]:
    """All that can be drawn against calls; against the clock where AR, MDLM and ADLM are side by side."""
    whole = [("calls", "network calls per text", family) for family in _FAMILIES]
    note = "Each line goes from few steps to many; bands are 95 % intervals over seeds."
    found: list[Section] = []
    for cost, label, family in (*whole, ("tokens_per_second", "tokens per second", "orders")):
        for measure in _present(written):
            each = [_line(select(written, model=a, sampler=b), cost, measure) for a, b in _FAMILIES[family]]
            lines, called = [line for line in each if line.x], _CALLED[measure]
            levels = [("real text", level.value)] if (level := _figure(real, measure)) else []
            title = f"{called[0].upper()}{called[1:]} against {label}: {family}"
            found.append(Chart(title, note, label, called, lines, True, measure == "perplexity", levels))
    return found


def _line(outcomes: Sequence[StepOutcome], cost: str, measure: str) -> Series:
    each = [select(outcomes, steps=steps) for (steps,) in _labels(outcomes, "steps")]
    pairs = [(_figure(here, cost), _figure(here, measure)) for here in each]
    points = [(calls.value, figure) for calls, figure in pairs if calls and figure]
    y, low, high = ([getattr(each, part) for _, each in points] for part in ("value", "low", "high"))
    return Series(_named(outcomes) if outcomes else "", [x for x, _ in points], y, low, high)


def _ranked(written: Sequence[StepOutcome], measure: str, budget: int) -> list[tuple[Interval, list[StepOutcome]]]:
    """Every model but AR with every sampler, at the most calls it makes within a budget, the best first."""
    dearest: dict[str, tuple[float, list[StepOutcome]]] = {}
    for model, sampler, steps in _labels(written, "model", "sampler", "steps"):
        here = select(written, model=model, sampler=sampler, steps=steps)
        calls = _figure(here, "calls")
        if model != "AR" and calls and dearest.get(_named(here), (0.0,))[0] < calls.value <= budget:
            dearest[_named(here)] = calls.value, here
    found = [(mean, here) for _, here in dearest.values() if (mean := _figure(here, measure))]
    return sorted(found, key=lambda pair: pair[0].value, reverse=_RISES[measure])


def _equal_cost(written: Sequence[StepOutcome], budgets: Sequence[int]) -> ReportTable:
    measures = _present(written, tuple(_RISES))
    rows: list[list[Cell]] = []
    for budget in budgets:
        best = (_ranked(written, measure, budget)[:1] for measure in measures)
        rows.append([
            budget, *(f"{_named(each[0][1])}: {each[0][0]}" if each and each[0][0].value else "none" for each in best)
        ])  # fmt: skip
    note = (
        "All models but AR, at the most calls within the limit. The best of many looks better than it is, and likely "
        "text may be dull."
    )
    columns = ("calls per text, at most", *(f"by {_CALLED[measure]}" for measure in measures))
    return ReportTable("Best at equal cost", note, columns, rows)


def _advantage(written: Sequence[StepOutcome]) -> ReportTable:
    measures = _present(written)
    samplers = [sampler for (sampler,) in _labels(select(written, model="MDLM"), "sampler")]
    rows: list[list[Cell]] = [
        [sampler or "all of them", *(_difference(written, measure, sampler) for measure in measures)]
        for sampler in (*samplers, None)
    ]
    note = "ADLM minus MDLM (perplexity: the ratio), mean over all steps. ± is a 95 % interval over paired seeds."
    return ReportTable("ADLM against MDLM in samples", note, ("sampler", *(_CALLED[each] for each in measures)), rows)


def _difference(written: Sequence[StepOutcome], measure: str, sampler: str | None = None) -> Interval | None:
    """ADLM less MDLM, or the ratio of perplexities, over the settings that both have."""
    gaps: dict[int, list[float]] = {}
    for name, steps in _labels(select(written, model="MDLM"), "sampler", "steps"):
        if sampler in (None, name):
            here = select(written, sampler=name, steps=steps)
            ours, theirs = (_values(select(here, model=model), measure) for model in ("ADLM", "MDLM"))
            for seed in ours.keys() & theirs.keys():
                gaps.setdefault(seed, []).append(ours[seed] - theirs[seed])
    return _mean([math.fsum(each) / len(each) for each in gaps.values()], measure)


def _samples(written: Sequence[StepOutcome], real: Sequence[StepOutcome], steps: int) -> Texts:
    first = [each for each in select(written, seed=0) if each.labels["steps"] in (steps, None)]
    texts = [("real text", each.result["texts"][0]) for each in real]
    texts += [(_named([each]), each.result["texts"][0]) for each in first]
    return Texts("Samples", f"The first text of each with seed 0, in {steps} steps if the sampler has steps.", texts)


def _gap(ours: dict[int, float], theirs: dict[int, float]) -> Interval | None:
    shared = sorted(ours.keys() & theirs.keys())
    return paired([ours[seed] for seed in shared], [theirs[seed] for seed in shared]) if shared else None


def _winner(written: Sequence[StepOutcome], measure: str, budget: int) -> str:
    ranked = _ranked(written, measure, budget)
    if not ranked:
        return ""
    best, here = ranked[0]
    found = (
        f"With at most {budget} network calls per text, the best {_CALLED[measure]} is that of {_named(here)}: {best}"
    )
    plain = f"{here[0].labels['model']}, ancestral"
    for mean, other in (pair for pair in ranked[1:] if _named(pair[1]) == plain):
        told = significant(_gap(_values(here, measure), _values(other, measure)))
        found += f" (ancestral: {mean}{'' if told else '; not significantly different'})"
    return f"{found}."


def _verdict(written: Sequence[StepOutcome], measure: str, trained: Sequence[StepOutcome]) -> str:
    """Whether a better bound is better text."""
    gap, ratio = _difference(written, measure), _difference(written, "perplexity")
    bound = _gap(*(nats_of(select(trained, model=model)) for model in ("ADLM", "MDLM")))
    if gap is None or ratio is None or bound is None:
        return ""
    said = f"ADLM writes {'better' if gap.value > 0 else 'worse'} texts than MDLM"
    said = said if significant(gap) else "the texts of ADLM and MDLM do not differ significantly"
    found = (
        f"{_CALLED[measure]} differs by {gap}, perplexity by a factor of {ratio}, and bounds by {bound} nats per token"
    )
    return f"At equal cost, {said}: {found}."
