"""The anchoring study at its smallest: AR, MDLM, ADLM, and ADLM in blocks made from the AR, in minutes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from adlm.data.catalog import open_source
from adlm.data.config import Corpus
from adlm.data.packing import Wrapped
from adlm.data.stories import Stories
from adlm.diffusion.blocks import BlockMasking
from adlm.models.hand_over import Continued
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.objective import MaskedObjective
from adlm.recipes import small
from adlm.text_model import TextModel
from adlm.train.run import Run, ValidationConfig
from adlm_studies.experiments.samples import RecordSample, player_of
from adlm_studies.experiments.statistics import exponential
from adlm_studies.experiments.study import StepContext, StepOutcome, Study, StudyStep, StudyWork
from adlm_studies.experiments.tables import curves
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.report.sections import Cell, Interval, ReportPage, ReportTable, Section, Texts

MODELS = {"ar": "AR", "mdlm": "MDLM", "adlm": "ADLM", "adlm-block": "ADLM in blocks, from AR"}
# Of ADLM in blocks, beside those of the others: it begins where AR ended.
_BLOCK_STEPS = 0.4
_STARTED: dict[str, dict[str, Any]] = {"adlm-block": {"start": "ar", "sampler": "draft-and-verify"}}


@dataclass(frozen=True)
class GenerateFromBox(StudyWork):
    """Texts of the model that comes with the package."""

    count: int
    seed: int = 0

    def execute(self, context: StepContext) -> dict[str, Any]:
        return {"texts": TextModel.from_pretrained("box").generate(n=self.count, seed=self.seed)}


@dataclass(frozen=True)
class Demo(Study):
    """Args:
    corpus: the stories, or any other text.
    training_steps: of each model; 0: the recipe's.
    texts: that each model writes.
    shown: of them, in the report.
    seed: the one seed.
    """

    name: ClassVar[str] = "demo"
    question: ClassVar[str] = "What do AR, MDLM, ADLM, and ADLM in blocks learn in a few minutes?"

    seeds: int = 1
    corpus: str = "stories"
    training_steps: int = 0
    rows: int = 500
    texts: int = 100
    shown: int = 3
    seed: int = 0

    def runs(self) -> dict[str, Run]:
        """The runs by the names of their models."""
        return {name: self._run(kind) for kind, name in MODELS.items()}

    def _run(self, kind: str) -> Run:
        run = small.demo(kind)
        steps = self.training_steps or run.train.steps
        if kind == "adlm-block":
            run, steps = _from_ar(run), max(1, round(_BLOCK_STEPS * steps))
        validation = ValidationConfig(every=max(1, steps // 10), num_rows=64, draws=4)
        run = replace(run, train=replace(run.train, steps=steps, seed=self.seed), validation=validation)
        if self.corpus == "stories":
            return run
        # Rows of packed text begin anywhere, so positions mean nothing.
        data = Corpus(self.corpus, "bpe:1024", Wrapped(64))
        return replace(run, data=data, network=run.network.variant(positions=0))

    def steps(self) -> Sequence[StudyStep]:
        trained = [
            StudyStep(
                kind,
                TrainAndScore(run, rows=self.rows, texts=self.texts, **_STARTED.get(kind, {})),
                {"corpus": self.corpus, "model": name, "seed": self.seed},
                needs=("ar",) if kind in _STARTED else (),
            )
            for kind, (name, run) in zip(MODELS, self.runs().items(), strict=True)
        ]
        return [
            *trained,
            StudyStep("player", RecordSample("adlm", seed=self.seed), needs=("adlm",)),
            StudyStep("box", GenerateFromBox(3, seed=self.seed)),
        ]

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        trained = [outcome for outcome in outcomes if "model" in outcome.labels]
        players: list[Section] = [player_of(outcome.result) for outcome in outcomes if "player" in outcome.result]
        written = [
            (outcome.labels["model"], f"{mark(self.corpus, text)}{text}")
            for outcome in trained
            for text in outcome.result["texts"][: self.shown]
        ]
        box = [
            (outcome.name, text) for outcome in outcomes if outcome.name == "box" for text in outcome.result["texts"]
        ]
        marks = "✓ marks a story that the grammar could have told. " if self.corpus == "stories" else ""
        sections = [
            self._table(trained),
            *players,
            Texts("What they write", f"{marks}The first of each, nothing chosen.", written),
            Texts("The model in the box writes", "It came with the package, and was trained for longer.", box),
            curves(self.corpus, trained),
        ]
        return ReportPage("AR, MDLM and ADLM, masked and in blocks, in minutes", self.question, sections)

    def _table(self, outcomes: Sequence[StepOutcome]) -> ReportTable:
        floor = _floor(self.corpus)
        unit = "story" if floor else "row"
        rows: list[list[Cell]] = []
        for outcome in outcomes:
            score = outcome.result["scores"][next(iter(outcome.result["scores"]))]
            row, token = (_interval(score[name]) for name in ("nats_per_row", "nats_per_token"))
            rows.append([
                outcome.labels["model"], f"{outcome.result['parameters'] / 1e6:.2f} M", row, exponential(token),
                f"{outcome.result['seconds'] / 60:.1f}", _flawless(self.corpus, outcome.result["texts"]),
            ])  # fmt: skip
        if floor:
            rows.append(["exact floor", "", floor[0], math.exp(floor[1]), "", "100 %"])
        columns = ["model", "parameters", f"nats per {unit}", "perplexity", "minutes", "flawless stories"]
        if not floor:
            columns, rows = columns[:-1], [row[:-1] for row in rows]
        threads = max((outcome.result["threads"] for outcome in outcomes), default=1)
        alone = "side by side with one thread each" if threads == 1 else f"{threads} threads"
        note = (
            "Held-out text. ± is a 95 % interval over rows; ≤ marks a bound, from 8 stratified mask counts per row. "
            f"Minutes are of training, {alone}; the last model begins with AR's weights, and AR's minutes come on top. "
            "Masked models from scratch lag at this size: they learn to fill any of 2^L patterns of blanks, "
            "of which left-to-right text needs one."
        )
        return ReportTable(
            f"Held-out {self.corpus}", note, columns, rows, ("", "", "low", "low", "", "high")[: len(columns)]
        )


def _from_ar(run: Run) -> Run:
    """ADLM in blocks, of the layers of the demo's AR: as large, and at first the same model."""
    ar = small.demo("ar").network
    lower = -(-2 * ar.layers[0] // 3)
    stack = replace(ar.stacks[0], layers=lower, attention="block")
    network = TwoStageConfig(
        stack,
        ar.layers[0] - lower,
        Continued(),
        tied=True,
        positions=ar.learned_positions,
        block_size=run.network.block_size,
        shift=True,
    )
    # A third of the rows left to right, so that the model still verifies what it drafts.
    size, objective = run.network.block_size, run.objective
    assert isinstance(objective, MaskedObjective)
    return replace(run, network=network, objective=replace(objective, corruption=BlockMasking((1, size, size))))


def mark(corpus: str, text: str) -> str:
    """Before a sample: whether the story is one its grammar could have told."""
    source = _stories(corpus)
    return "" if source is None else "· " if source.problems(text) else "✓ "


@lru_cache
def _stories(corpus: str) -> Stories | None:
    source = open_source(corpus)
    return source if isinstance(source, Stories) else None


def _floor(corpus: str) -> tuple[float, float] | None:
    """Exact nats per row and per token of the process the text comes from, where it is known."""
    source = _stories(corpus)
    if source is None:
        return None
    return source.entropy(), source.entropy() / (source.mean_tokens() + 1)  # the end token is a token


def _flawless(corpus: str, texts: Sequence[str]) -> str:
    source = _stories(corpus)
    if source is None or not texts:
        return ""
    return f"{sum(not source.problems(text) for text in texts) / len(texts):.0%}"


def _interval(estimate: Mapping[str, Any]) -> Interval:
    """Of one run: what the draw of rows and masks leaves open."""
    mean, half = estimate["mean"], 1.96 * estimate["error"]
    return Interval(mean, mean - half, mean + half, bound=estimate["draws"] > 0)
