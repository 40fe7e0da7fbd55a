"""The published runs, and what they leave open: LM1B and OpenWebText, 512 rows per step, AdamW.

Settings are those of ADLM (arXiv 2505.18456), which are MDLM's (arXiv 2406.07524): 3e-4 after 2,500 steps of warm-up,
no weight decay, gradients clipped at 1, averaged weights of .9999, dropout .1, bfloat16. As MDLM's baselines, SEDD and
D3PM have the same network and are conditioned on time.

Block diffusion is BD3-LM (arXiv 2503.09573): MDLM's settings, whole rows for the first 85 % of the run, then blocks of
4, 8 or 16 tokens. Noise levels are mask counts, stratified over the blocks of a row, instead of times from a clipped
range. Two towers have the block size of Nemotron-TwoTower (arXiv 2606.26493).

The papers count half of the tokens that these runs read (33B for a million steps of LM1B, 262B of OpenWebText), and
give figures after two million steps too: `--set train.steps=2000000`.
"""

from adlm.anchors.rules import RareInSequence
from adlm.data.config import Corpus
from adlm.data.packing import Padded, Wrapped
from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import UniformMasking
from adlm.diffusion.times import Antithetic
from adlm.errors import UnknownName
from adlm.models.hand_over import Hidden
from adlm.models.network import NetworkConfig
from adlm.models.sizes import SIZES, published
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.d3pm import D3pm
from adlm.objectives.nelbo import AnchoredCrossEntropy, Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.objectives.score_entropy import ScoreEntropy
from adlm.recipes.matched import BLOCK_SIZES, MATCHED_BASELINES, matched_baseline
from adlm.train.lr_schedules import Constant
from adlm.train.optimizers import AdamW
from adlm.train.run import CheckpointConfig, Run, TrainConfig, ValidationConfig

ROWS = 512
STEPS = 1_000_000


def lm1b(kind: str, size: str = "small") -> Run:
    """LM1B: one sentence per row of 128, never packed; bert-base-uncased's tokens."""
    data = Corpus("lm1b", "bert-base-uncased", Padded(128, crop=True))
    # A step shared out to as many as eight GPUs is computed in the same micro-batches as on one.
    return _run(f"lm1b-{kind}", kind, size, data, micro_batch_size=64)


def openwebtext(kind: str, size: str = "small") -> Run:
    """OpenWebText: one stream in rows of 1,024, each between begin and end tokens; GPT-2's tokens."""
    data = Corpus("openwebtext", "gpt2", Wrapped(1024, framed=True))
    # What fits on a GPU of 80 GB by the estimate of train/plan.py, for the largest of the kinds; and one to sixteen
    # GPUs compute the same micro-batches.
    return _run(f"openwebtext-{kind}", kind, size, data, micro_batch_size=16 if size == "medium" else 32)


def _run(name: str, kind: str, size: str, data: Corpus, *, micro_batch_size: int) -> Run:
    if size != "small":
        name = f"{name}-{size}"
    if kind in MATCHED_BASELINES:
        anchored = _run(name, MATCHED_BASELINES[kind], size, data, micro_batch_size=micro_batch_size)
        return matched_baseline(anchored, kind, name=name)
    network, objective = _model(kind, size)
    if network.block_size:  # twice the sites, and twice the memory
        micro_batch_size //= 2
    return Run(
        name,
        data,
        network,
        objective,
        TrainConfig(
            steps=STEPS,
            tokens_per_step=ROWS * data.packing.length,
            micro_batch_size=micro_batch_size,
            optimizer=AdamW(lr=3e-4, betas=(0.9, 0.999)),
            lr_schedule=Constant(warmup=2500),
            grad_clip=1.0,
            ema_decay=0.9999,
        ),
        ValidationConfig(every=10_000, num_rows=4096, draws=4, micro_batch_size=micro_batch_size),
        CheckpointConfig(every=2500),
    )


def _model(kind: str, size: str) -> tuple[NetworkConfig, Objective]:
    times = Antithetic(ROWS)
    masking, rule = UniformMasking(times=times), RareInSequence(5)
    models: dict[str, tuple[str, Objective]] = {
        "ar": ("ar", CrossEntropy()),
        "mdlm": ("mdlm", Nelbo(masking)),
        "adlm": ("adlm", Anelbo(masking, rule, gamma=3e-3)),
        "adlm-gamma0": ("adlm", Anelbo(masking, rule, gamma=0.0)),
        "a2r": ("a2r", AnchoredCrossEntropy(rule, gamma=3e-3)),
        "sedd": ("mdlm", ScoreEntropy(masking)),
        "d3pm": ("mdlm", D3pm(UniformMasking(steps=1000, times=times))),
    }
    if kind in models:
        form, objective = models[kind]
        network = published(form, size)
        return network.variant(timed=True) if kind in ("sedd", "d3pm") else network, objective
    if kind == "towers":
        anchor = published("ar", size).stacks[0]
        block_size = BLOCK_SIZES[-1]
        network = TwoStageConfig(
            anchor, anchor.layers // 2, Hidden(), block_size=block_size, denoiser_attention="block"
        )
        return network, Anelbo(BlockMasking((block_size,)), rule, gamma=3e-3)
    anchored, _, number = kind.rpartition("block")
    if kind not in KINDS:
        raise UnknownName("published kind of model", kind, KINDS)
    block_size = int(number)
    blocks = BlockMasking((0,) * 17 + (block_size,) * 3, progressive=True)
    network = published("adlm" if anchored else "mdlm", size).variant(attention="block", block_size=block_size)
    return network, Anelbo(blocks, rule, gamma=3e-3) if anchored else Nelbo(blocks)


KINDS = (
    *("ar", "mdlm", "adlm", "adlm-gamma0", "a2r"),
    *(f"{form}-same-{what}" for form in ("mdlm", "ar") for what in ("parameters", "cost")),
    *("sedd", "d3pm"),
    *(f"{anchored}block{size}" for anchored in ("", "adlm-") for size in BLOCK_SIZES),
    "towers",
    *(f"block{size}-same-{what}" for size in BLOCK_SIZES for what in ("parameters", "cost")),
)
OFFERED = ("small", *(size for size in SIZES if size != "small"))
