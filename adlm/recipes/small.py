"""Runs for a CPU, minutes to two hours long. They differ from the published ones where docs/log.md found that to help
at this size: Muon, tied embeddings, normalized queries and keys, a short convolution in every block, exact mask counts,
tokens that are read again by the denoiser or by the upper layers, a larger anchor weight at masked anchors only.

Steps are chosen so that, by `train/plan.py`, no kind takes much more than two hours on two cores that reach
80 GFLOP/s in matrix products, at `EFFICIENCY` of that; block diffusion, which reads every row twice, twice as much. All
kinds of a corpus read the same tokens.
"""

from dataclasses import replace

from adlm.anchors.rules import RareInSequence
from adlm.data.config import Corpus
from adlm.data.documents import Lines
from adlm.data.packing import Padded, Wrapped
from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import CountMasking
from adlm.errors import UnknownName
from adlm.models.hand_over import Hidden
from adlm.models.network import NetworkConfig
from adlm.models.one_stage import OneStageConfig
from adlm.models.sizes import SIZES
from adlm.models.stack import Attention, StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import AnchoredCrossEntropy, Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.recipes.matched import MATCHED_BASELINES, matched_baseline
from adlm.train.lr_schedules import StableDecay
from adlm.train.optimizers import Muon
from adlm.train.run import CheckpointConfig, Run, TrainConfig, ValidationConfig

DEMO_KINDS = ("ar", "mdlm", "adlm", "block", "adlm-block", "towers")
BOX_KINDS = ("adlm", "mdlm-same-cost")
KINDS = (
    *("ar", "mdlm", "adlm", "adlm-gamma0", "a2r"),
    *(f"{form}-same-{what}" for form in ("mdlm", "ar") for what in ("parameters", "cost")),
    *("block", "adlm-block", "towers", "block-same-parameters", "block-same-cost"),
)
OFFERED = ("nano", "micro", "tiny")
_ROWS = 16


def demo(kind: str) -> Run:
    """Stories from a grammar, whose exact entropy is known: four layers, two or three minutes per model.

    The stages of anchored models have 3 + 1 layers; the others have the shape that costs as much. Blocks are of 4
    tokens. Padding is predicted, so that a row's likelihood is the story's.
    """
    if kind not in DEMO_KINDS:
        raise UnknownName("model of the demo", kind, DEMO_KINDS)
    data = Corpus("stories:40000", "words", Padded(64, begin=False, crop=True, predict_padding=True))
    own = f"{kind}-same-cost" if kind in ("ar", "mdlm", "block") else kind
    stack = StackConfig(width=96, heads=4, layers=4)
    return cpu_run(f"demo-{kind}", own, data, stack, (3, 1), steps=1500, warmup=50, draws=8, block_size=4)


def text8(kind: str, size: str = "nano") -> Run:
    """Letters of Wikipedia in rows of 256: about an hour and a half for ADLM at its usual size."""
    data = Corpus("text8", "characters", Wrapped(256, separated=False))
    return _sized("text8", kind, size, data, steps=4500)


def wikitext2(kind: str, size: str = "nano") -> Run:
    """WikiText-2 in rows of 128, a BPE of 8,192: four or five times through, an hour and a half for ADLM."""
    return _sized("wikitext2", kind, size, Corpus("wikitext2", "bpe:8192", Wrapped(128)), steps=5500)


def tinystories(kind: str, size: str = "nano") -> Run:
    """TinyStories, one per row of 256 from its beginning, padding predicted: an hour and a half for ADLM.

    A BPE of 4,096. One story in ten is longer and is cut; more than a quarter of the positions are padding.
    """
    data = Corpus("tinystories", "bpe:4096", Padded(256, begin=False, crop=True, predict_padding=True))
    return _sized("tinystories", kind, size, data, steps=3500)


def box(kind: str) -> Run:
    """Paragraphs of TinyStories in rows of 64, a BPE of 4,096: the model that version 0.1 bundled, and its MDLM.

    An hour and a half on one core. Paragraphs, since so small a model cannot keep a whole story together but can write
    a few sentences.
    """
    if kind not in BOX_KINDS:
        raise UnknownName("model of the box", kind, BOX_KINDS)
    rows = Padded(64, begin=False, crop=True, predict_padding=True)
    data = Corpus("tinystories", "bpe:4096", rows, documents=Lines())
    stack = StackConfig(width=160, heads=5, layers=6)
    return cpu_run(f"box-{kind}", kind, data, stack, (4, 2), steps=2500, warmup=100, draws=4, rows=64)


def _sized(corpus: str, kind: str, size: str, data: Corpus, *, steps: int) -> Run:
    """As published, the anchor stage has the MDLM's layers and the denoiser half as many."""
    if size not in OFFERED:
        raise UnknownName(f"size for {corpus}", size, OFFERED)
    name = f"{corpus}-{kind}" if size == OFFERED[0] else f"{corpus}-{kind}-{size}"
    stack = SIZES[size]
    return cpu_run(name, kind, data, stack, (stack.layers, stack.layers // 2), steps=steps, warmup=100, draws=4)


def cpu_run(
    name: str,
    kind: str,
    data: Corpus,
    stack: StackConfig,
    stages: tuple[int, int],
    *,
    steps: int,
    warmup: int,
    draws: int,
    rows: int = _ROWS,
    block_size: int = 16,
) -> Run:
    """A run of this kind on any corpus.

    Args:
        stages: layers of the anchor stage and of the denoiser.
        draws: mask counts per row, in validation.
        rows: of a step.
        block_size: of block diffusion.
    """
    if kind in MATCHED_BASELINES:
        anchored = cpu_run(
            name,
            MATCHED_BASELINES[kind],
            data,
            stack,
            stages,
            steps=steps,
            warmup=warmup,
            draws=draws,
            rows=rows,
            block_size=block_size,
        )
        run = matched_baseline(anchored, kind, name=name)
        return replace(run, network=_reinjecting(run.network, stages[0]))
    positions = data.packing.length if data.packing.pads else 0
    network, objective = _model(kind, stack, stages, positions=positions, block_size=block_size)
    train = TrainConfig(
        steps=steps,
        tokens_per_step=rows * data.packing.length,
        micro_batch_size=rows,
        optimizer=Muon(lr=3e-3, matrix_lr=2e-2),
        lr_schedule=StableDecay(warmup=warmup, decay=0.3),
    )
    validation = ValidationConfig(every=500, num_rows=256, draws=draws, micro_batch_size=rows)
    return Run(name, data, network, objective, train, validation, CheckpointConfig(every=500))


def _reinjecting(network: NetworkConfig, anchor_layers: int) -> NetworkConfig:
    """Masked models of one stage read their tokens again at the depth where the anchored models they match do.

    Shifted models read them once: left to right, reading them twice did not help, and a left-to-right model may start
    a block model.
    """
    if network.shifted:
        return network
    return network.variant(input_reinjection=min(anchor_layers, network.layers[0] - 1))


def _model(
    kind: str, stack: StackConfig, stages: tuple[int, int], *, positions: int, block_size: int
) -> tuple[NetworkConfig, Objective]:
    """Rows that begin with their text let a model learn positions (`positions`)."""
    stack = replace(stack, convolution=5, query_key_norm=True)
    masking, blocks, rule = CountMasking(), BlockMasking((block_size,)), RareInSequence(5)

    def one(attention: Attention = "full") -> NetworkConfig:
        size = block_size if attention == "block" else 0
        network = OneStageConfig(replace(stack, attention=attention), True, positions, size, shift=size > 0)
        return _reinjecting(network, stages[0])

    def two(attention: Attention = "full", denoiser: Attention | None = None) -> NetworkConfig:
        anchor = replace(stack, layers=stages[0], attention=attention)
        size = block_size if "block" in (attention, denoiser) else 0
        return TwoStageConfig(anchor, stages[1], Hidden(), True, positions, size, size > 0, denoiser)

    anchored_blocks = Anelbo(blocks, rule, gamma=0.05, masked_only=True)
    models: dict[str, tuple[NetworkConfig, Objective]] = {
        "ar": (one("causal"), CrossEntropy()),
        "mdlm": (one(), Nelbo(masking)),
        "adlm": (two(), Anelbo(masking, rule, gamma=0.05, masked_only=True)),
        "adlm-gamma0": (two(), Anelbo(masking, rule, gamma=0.0, masked_only=True)),
        "a2r": (two("causal"), AnchoredCrossEntropy(rule, gamma=0.05)),
        "block": (one("block"), Nelbo(blocks)),
        "adlm-block": (two("block"), anchored_blocks),
        "towers": (two("causal", "block"), anchored_blocks),
    }
    if kind not in models:
        raise UnknownName("kind of model", kind, KINDS)
    return models[kind]
