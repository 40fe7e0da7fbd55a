"""What the second anchoring study trains: sizes, corpora, and every arm as a value."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from adlm.anchors.rules import AnchorRule, RareInSequence
from adlm.data.config import Corpus
from adlm.data.packing import Wrapped
from adlm.models.hand_over import HandOver, Hidden, Logits
from adlm.models.stack import StackConfig
from adlm.objectives.nelbo import Anelbo
from adlm.recipes import small
from adlm.train.lr_schedules import StableDecay
from adlm.train.optimizers import Muon
from adlm.train.plan import summary
from adlm.train.run import Run
from adlm_studies.experiments import settings
from adlm_studies.experiments.probing import HighTfIdf, RareTokens, RuleFromData

# Chosen in advance, in trials on another corpus (docs/log.md); the search of the study may find a better one.
GAMMA = 0.05
PUBLISHED_GAMMA = 3e-3
TOKENS_PER_STEP = 4096
CURVE_POINTS = 20
SEARCH_SEED = 100  # of no run that is reported


class ModelSize(NamedTuple):
    """Width, heads, and layers of the anchor stage and of the denoiser."""

    width: int
    heads: int
    stages: tuple[int, int]


# Twice as many layers in the anchor stage as in the denoiser, as published.
SIZES = {
    "nano": ModelSize(32, 2, (2, 1)),
    "S": ModelSize(96, 4, (2, 1)),
    "A": ModelSize(128, 4, (4, 2)),
    "B": ModelSize(192, 6, (6, 3)),
}
CORPORA = {
    "books": Corpus("books", "bpe:2048", Wrapped(128)),
    "tinystories": Corpus("tinystories", "bpe:2048", Wrapped(128)),
    "text8": Corpus("text8", "characters", Wrapped(256, separated=False)),
    "stories": settings.NANO["stories"],
}


@dataclass(frozen=True)
class AnchoringArm:
    """A model of the study: a kind of recipe, and what differs from it.

    Args:
        gamma, hand_over, rule, zero_at: of anchored kinds; None is the recipe's own.
        block_size: of kinds that read blocks, which get the operations of ADLM and so fewer steps.
        length: tokens per row, if not the corpus's own.
        lr: factor on the learning rates.
        rule_from_data: a rule that has to be counted first.
        anchored_masking: anchors are masked later; the rule is then `rule_from_data`.
    """

    kind: str
    gamma: float | None = None
    hand_over: HandOver | None = None
    rule: AnchorRule | None = None
    zero_at: float = 0.0
    block_size: int = 0
    length: int = 0
    lr: float = 1.0
    rule_from_data: RuleFromData | None = None
    anchored_masking: bool = False


_COUNTED = RareTokens(100)
MDLM, GAMMA_0, ADLM = "MDLM, equal compute", "ADLM, γ = 0", "ADLM"
MAIN = (MDLM, GAMMA_0, ADLM)
ARMS: dict[str, AnchoringArm] = {
    MDLM: AnchoringArm("mdlm-same-cost"),
    GAMMA_0: AnchoringArm("adlm-gamma0", hand_over=Hidden()),
    ADLM: AnchoringArm("adlm", gamma=GAMMA, hand_over=Hidden()),
    "AR": AnchoringArm("ar-same-cost"),
    "A2R": AnchoringArm("a2r"),
    "MDLM, anchor stage's depth": AnchoringArm("mdlm"),
    "MDLM, equal parameters": AnchoringArm("mdlm-same-parameters"),
    "ADLM, logits, γ = 0": AnchoringArm("adlm-gamma0", hand_over=Logits()),
    "ADLM, logits": AnchoringArm("adlm", gamma=PUBLISHED_GAMMA, hand_over=Logits()),
    **{
        name: arm
        for size in (4, 16)
        for name, arm in (
            (f"blocks of {size}", AnchoringArm("block-same-cost", block_size=size)),
            (f"blocks of {size}, γ = 0", AnchoringArm("adlm-block", gamma=0.0, block_size=size)),
            (f"blocks of {size}, anchored", AnchoringArm("adlm-block", gamma=GAMMA, block_size=size)),
        )
    },
    "rare: once in its row": AnchoringArm("adlm", gamma=GAMMA, rule=RareInSequence(1)),
    "rare: twice in its row": AnchoringArm("adlm", gamma=GAMMA, rule=RareInSequence(2)),
    "rare in the corpus": AnchoringArm("adlm", gamma=GAMMA, rule_from_data=_COUNTED),
    "high tf-idf": AnchoringArm("adlm", gamma=GAMMA, rule_from_data=HighTfIdf(0.3)),
    "annealed to zero": AnchoringArm("adlm", gamma=GAMMA, zero_at=0.5),
    "anchors masked later, MDLM": AnchoringArm("mdlm-same-cost", rule_from_data=_COUNTED, anchored_masking=True),
    "anchors masked later": AnchoringArm("adlm", gamma=GAMMA, rule_from_data=_COUNTED, anchored_masking=True),
    "two towers, γ = 0": AnchoringArm("towers", gamma=0.0, block_size=16),
    "two towers, anchored": AnchoringArm("towers", gamma=GAMMA, block_size=16),
    "rows of 256, MDLM": AnchoringArm("mdlm-same-cost", length=256),
    "rows of 256": AnchoringArm("adlm", gamma=GAMMA, length=256),
}
# Every trick, and the same without anchors.
TRICKS = {
    "rare: once in its row": GAMMA_0,
    "rare: twice in its row": GAMMA_0,
    "rare in the corpus": GAMMA_0,
    "high tf-idf": GAMMA_0,
    "annealed to zero": GAMMA_0,
    "anchors masked later": "anchors masked later, MDLM",
    "two towers, anchored": "two towers, γ = 0",
    "rows of 256": "rows of 256, MDLM",
}


def _settings_of(name: str) -> dict[str, AnchoringArm]:
    """Five settings, of which the arm's own is one: rates, or rates and weights of the anchor loss."""
    arm = ARMS[name]
    weights = (PUBLISHED_GAMMA, GAMMA, 0.5) if arm.gamma else ()
    rates = (0.5, 1.0, 2.0) if weights else (0.25, 0.5, 1.0, 2.0, 4.0)
    found = {f"rate x {lr:g}": replace(arm, lr=lr) for lr in rates}
    return found | {f"γ = {gamma:g}": replace(arm, gamma=gamma) for gamma in weights if gamma != arm.gamma}


SEARCH = {name: _settings_of(name) for name in (*MAIN, "ADLM, logits")}


def arm_run(name: str, arm: AnchoringArm, corpus: Corpus, size: ModelSize, *, tokens: int, seed: int) -> Run:
    """The run of an arm that reads so many tokens; in blocks, one that takes as many operations as ADLM on them."""
    if arm.length:
        corpus = replace(corpus, packing=replace(corpus.packing, length=arm.length))
    run = _changed(_recipe(name, arm, corpus, size), arm)
    steps = max(2, tokens // run.train.tokens_per_step)
    if arm.block_size:
        adlm = _recipe(name, replace(arm, kind="adlm", block_size=0), corpus, size)
        steps = max(2, round(steps * summary(adlm).work / summary(run).work))
    optimizer, schedule = run.train.optimizer, run.train.lr_schedule
    assert isinstance(optimizer, Muon)
    assert isinstance(schedule, StableDecay)
    train = replace(
        run.train,
        steps=steps,
        seed=seed,
        precision="float32",  # machines differ in bfloat16, and figures of several are compared
        optimizer=replace(optimizer, lr=optimizer.lr * arm.lr, matrix_lr=optimizer.matrix_lr * arm.lr),
        lr_schedule=replace(schedule, warmup=min(schedule.warmup, steps // 10)),
    )
    # At the same token counts in every run of a budget, however many of them it reads.
    every = max(1, tokens // run.train.tokens_per_step // CURVE_POINTS)
    validation = replace(run.validation, every=every, num_rows=256)
    return replace(run, train=train, validation=validation, checkpoint=replace(run.checkpoint, every=every))


def paper_run(name: str, arm: AnchoringArm, corpus: str, *, seed: int) -> Run:
    """The published recipe of an arm, as many steps for all."""
    kind = arm.kind.replace("block", f"block{arm.block_size}") if arm.block_size else arm.kind
    return replace(_changed(settings.study_run("paper", corpus, kind, seed=seed), arm), name=name)


def _recipe(name: str, arm: AnchoringArm, corpus: Corpus, size: ModelSize) -> Run:
    stack = StackConfig(width=size.width, heads=size.heads, layers=size.stages[0])
    rows = max(1, TOKENS_PER_STEP // corpus.packing.length)
    return small.cpu_run(
        name, arm.kind, corpus, stack, size.stages, steps=1, warmup=100, draws=4, rows=rows,
        block_size=arm.block_size or 16,
    )  # fmt: skip


def _changed(run: Run, arm: AnchoringArm) -> Run:
    network, objective = run.network, run.objective
    if arm.hand_over is not None:
        network = network.variant(hand_over=arm.hand_over)
    if isinstance(objective, Anelbo):
        changes = {"gamma": arm.gamma, "rule": arm.rule, "zero_at": arm.zero_at}
        objective = replace(objective, **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]
    return replace(run, network=network, objective=objective)
