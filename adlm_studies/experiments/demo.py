"""The anchoring study at its smallest: AR, MDLM, ADLM, and ADLM in blocks made from the AR, in minutes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from adlm.data.config import Corpus
from adlm.data.packing import Wrapped
from adlm.diffusion.blocks import BlockMasking
from adlm.models.hand_over import Continued
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo
from adlm.recipes import small
from adlm.train.lr_schedules import StableDecay
from adlm.train.optimizers import Muon
from adlm.train.run import Run, ValidationConfig
from adlm_studies.experiments.demo_report import demo_report
from adlm_studies.experiments.samples import RecordSample
from adlm_studies.experiments.study import StepOutcome, Study, StudyStep
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.experiments.writing_speed import TimeWriting
from adlm_studies.report.sections import ReportPage

MODELS = {"ar": "AR", "mdlm": "MDLM", "adlm": "ADLM", "adlm-block": "ADLM in blocks, from AR"}
# One core trains AR and then ADLM in blocks, the other MDLM and ADLM, for about as long.
STEPS = {"ar": 2000, "mdlm": 950, "adlm": 950, "adlm-block": 300}
# Models learn to copy names sooner with these (docs/log.md).
_AR_ROWS, _AR_RATE, _EMBEDDING_RATE = 8, 1.6, 1e-2
LEFT_TO_RIGHT = ("ar", "adlm-block")
TEMPERATURE = 0.6  # of all models' texts: at 1 a third of what even AR writes after so few steps is flawless
_STARTED: dict[str, dict[str, Any]] = {"adlm-block": {"start": "ar", "sampler": "draft-and-verify"}}


@dataclass(frozen=True)
class Demo(Study):
    """The demo: the anchoring study at its smallest.

    Args:
        corpus: the stories, or any other text.
        training_steps: of AR, the others in proportion; 0: as many as fit into five minutes on two cores.
        texts: that AR and the model made from it write; masked ones, which write slowly and get no story right in so
            few steps, write a quarter as many.
        shown: of them, in the report.
        seed: the one seed.
    """

    name: ClassVar[str] = "demo"
    question: ClassVar[str] = "What do AR, MDLM, ADLM, and ADLM in blocks learn in a few minutes?"

    seeds: int = 1
    corpus: str = "stories"
    training_steps: int = 0
    rows: int = 300
    texts: int = 200
    shown: int = 3
    seed: int = 0

    def runs(self) -> dict[str, Run]:
        """The runs by the names of their models."""
        return {name: self._run(kind) for kind, name in MODELS.items()}

    def _run(self, kind: str) -> Run:
        run = small.demo(kind)
        embeddings = _EMBEDDING_RATE if self.corpus == "stories" else None  # higher bounds on KJV (docs/log.md)
        if kind == "ar":
            run = _with_rows(_with_rate(run, _AR_RATE, embeddings), _AR_ROWS)
        elif kind in _STARTED:
            run = _from_ar(run)
        else:
            run = _with_rate(run, 1, embeddings)
        steps = max(1, round(STEPS[kind] * (self.training_steps or STEPS["ar"]) / STEPS["ar"]))
        validation = ValidationConfig(every=max(1, steps // 6), num_rows=64, draws=4)
        run = replace(run, train=replace(run.train, steps=steps, seed=self.seed), validation=validation)
        if self.corpus == "stories":
            return run
        # Rows of packed text begin anywhere, so positions mean nothing.
        data = Corpus(self.corpus, "bpe:1024", Wrapped(64))
        return replace(run, data=data, network=run.network.variant(positions=0))

    def steps(self) -> Sequence[StudyStep]:
        texts = {kind: self.texts if kind in LEFT_TO_RIGHT else max(self.shown, self.texts // 4) for kind in MODELS}
        trained = [
            StudyStep(
                kind,
                TrainAndScore(
                    run, rows=self.rows, texts=texts[kind], temperature=TEMPERATURE, **_STARTED.get(kind, {})
                ),
                {"corpus": self.corpus, "model": name, "seed": self.seed},
                needs=("ar",) if kind in _STARTED else (),
            )
            for kind, (name, run) in zip(MODELS, self.runs().items(), strict=True)
        ]
        return [
            *trained,
            StudyStep("player", RecordSample("adlm", seed=self.seed), needs=("adlm",)),
            StudyStep("speed", TimeWriting(tuple(MODELS), rounds=5, seed=self.seed), needs=tuple(MODELS)),
        ]

    def report(self, outcomes: Sequence[StepOutcome]) -> ReportPage:
        return demo_report(self.corpus, outcomes, shown=self.shown, temperature=TEMPERATURE)


def _from_ar(run: Run) -> Run:
    """ADLM in blocks: the layers of the demo's AR in two stages, and adapters that read masked text.

    From left to right it stays that AR, so what it drafts in blocks is verified without loss. Training all weights
    gives a lower bound in blocks, and loses flawless stories from left to right (docs/log.md).
    """
    ar, size = small.demo("ar").network, run.network.block_size
    lower = -(-2 * ar.layers[0] // 3)
    network = TwoStageConfig(
        replace(ar.stacks[0], layers=lower, attention="block", adapter_rank=32),
        ar.layers[0] - lower,
        Continued(),
        tied=True,
        positions=ar.learned_positions,
        block_size=size,
        shift=True,
    )
    assert isinstance(run.objective, Anelbo)
    objective = replace(run.objective, corruption=BlockMasking((2, size)))
    train = replace(run.train, lr_schedule=StableDecay(warmup=50, decay=0.9))
    return _with_rate(replace(run, network=network, objective=objective, train=train), 7.5)


def _with_rate(run: Run, factor: float, embeddings: float | None = None) -> Run:
    """The run with its learning rates multiplied, and one of their own for embeddings."""
    old = run.train.optimizer
    assert isinstance(old, Muon)
    optimizer = replace(old, lr=factor * old.lr, matrix_lr=factor * old.matrix_lr, embedding_lr=embeddings)
    return replace(run, train=replace(run.train, optimizer=optimizer))


def _with_rows(run: Run, rows: int) -> Run:
    """The run with so many rows per step."""
    assert isinstance(run.data, Corpus)
    tokens = rows * run.data.packing.length
    return replace(run, train=replace(run.train, tokens_per_step=tokens, micro_batch_size=rows))
