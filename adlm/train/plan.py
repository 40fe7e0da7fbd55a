"""What a run will take, before it begins: parameters, work, memory, time. Networks are built without storage.

Some of it depends on the text: how much of a padded row is padding, how many of its tokens are anchors. What was
counted on the corpora of the recipes is in a table here; for any other, rows are taken as full and every token as an
anchor, so that work and time are at their highest.
"""

import time
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from adlm.anchors.rules import AnchorRule, NoToken, RandomFraction, RareInSequence
from adlm.data.anchored_process import AnchoredProcess
from adlm.data.config import Corpus
from adlm.data.prompts import Prompts
from adlm.data.synthetic import Synthetic
from adlm.data.table import DataConfig
from adlm.data.together import Together
from adlm.data.tokenizer import load_tokenizer
from adlm.diffusion.blocks import BlockMasking
from adlm.errors import ConfigError
from adlm.memory import available_bytes
from adlm.models.costs import Parameters, activation_bytes, count_parameters, forward_work, training_work
from adlm.models.language_model import LanguageModel
from adlm.models.network import Vocabulary
from adlm.objectives.linear_cross_entropy import SLICE_LOGITS
from adlm.objectives.nelbo import AnchoredCrossEntropy, Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy, MaskedObjective, Objective
from adlm.train.execution import Execution, choose, resumed, stored
from adlm.train.muon import MuonOptimizer
from adlm.train.run import Run

# Of what matrix products alone reach on the device. Between .3 and .7 was measured (docs/log.md): less for narrow
# networks and short rows.
EFFICIENCY = 0.4
_PROBE_SECONDS = 0.2

VOCABULARIES = {
    "gpt2": Vocabulary(50_258, 50_257),
    "bert-base-uncased": Vocabulary(30_522, 103),
    "characters": Vocabulary(30, 29),
}
_STORIES = Vocabulary(331, 330)  # the words of the grammar


class Known(NamedTuple):
    """Counted on a corpus: `anchors` is the fraction of the text that occurs at most five times in its row, `text` the
    fraction of positions that are not padding."""

    anchors: float = 1.0
    text: float = 1.0


# By source, tokenizer and length of rows.
KNOWN = {
    ("books", "bpe:2048", 128): Known(0.94),
    ("stories", "words", 64): Known(0.79),
    ("text8", "characters", 256): Known(0.10),
    ("wikitext2", "bpe:8192", 128): Known(0.87),
    ("tinystories", "bpe:4096", 256): Known(0.51),
    ("lm1b", "bert-base-uncased", 128): Known(0.99, text=0.24),
    ("openwebtext", "gpt2", 1024): Known(0.60),
}


def known_vocabulary(data: DataConfig) -> Vocabulary:
    """The vocabulary that `data` will have, before any of it is read."""
    if isinstance(data, Synthetic | AnchoredProcess):
        return Vocabulary(data.vocabulary, data.vocabulary - 1)
    if isinstance(data, Together):
        return known_vocabulary(data.parts[0])
    assert isinstance(data, Corpus | Prompts)
    name = data.tokenizer
    if name in VOCABULARIES:
        return VOCABULARIES[name]
    if name.startswith("bpe:") and name[4:].isdigit():
        return Vocabulary(int(name[4:]), int(name[4:]) - 1)
    if name == "words" and isinstance(data, Corpus) and data.source.startswith("stories"):
        return _STORIES
    if Path(name).exists():
        roles = load_tokenizer(name).roles
        return Vocabulary(roles.vocab_size, roles.mask_id)
    if isinstance(data, Corpus):
        data.open()  # if the file is missing, that is the error to tell
    raise ConfigError(
        f"cannot plan a run with the tokenizer {name!r}",
        "the size of its vocabulary is not known here",
        f"name a file or folder with it, bpe:SIZE, or one of {', '.join(VOCABULARIES)}",
        subject=name,
    )


def row_length(data: DataConfig) -> int:
    """The number of tokens per row."""
    if isinstance(data, Corpus):
        return data.packing.length
    if isinstance(data, Together):
        return row_length(data.parts[0])
    assert isinstance(data, AnchoredProcess | Synthetic | Prompts)
    return data.length


class WorkFractions(NamedTuple):
    """Of the positions of a batch: those that are computed at all, those whose loss is taken, those whose anchor
    loss is taken."""

    computed: float
    scored: float
    anchors: float


def fractions(run: Run) -> WorkFractions:
    """About: masked models score one half of the text on average, left-to-right ones all of it, and block diffusion
    (b + 1) / 2b.

    Padding is left out of the work (`models/unpadded.py`), except if it is predicted and in time-conditioned networks.
    Block diffusion is counted with it: how much is left out depends on the sizes of blocks.
    """
    known = Known()
    if isinstance(run.data, Corpus):
        source = run.data.source.split(":")[0]  # stories:40000 are stories
        known = KNOWN.get((source, run.data.tokenizer, run.data.packing.length), known)
    scored = 1.0 if run.network.causal else 0.5
    if sizes := block_sizes(run):
        scored = sum(map(_masked, sizes)) / len(sizes)
    anchors = _anchors(run.objective, known, scored) * known.text
    computes_all = run.network.time_conditioned or run.network.attention == "block"
    return WorkFractions(1.0 if computes_all else known.text, scored * known.text, anchors)


def block_sizes(run: Run) -> tuple[int, ...]:
    """The sizes of the blocks that are read in equal parts of a run, 0 for whole rows; empty if rows are not read in
    blocks. If sizes are drawn for each row, all rows of a batch take as much work as those with the smallest."""
    masking = run.objective.corruption if isinstance(run.objective, MaskedObjective) else None
    if not isinstance(masking, BlockMasking):
        return ()
    if masking.progressive:
        return masking.sizes
    return (min((size for size in masking.sizes if size), default=0),)


def _copies(run: Run) -> int:
    """How often each row is read in a step."""
    return run.objective.corruption.copies if isinstance(run.objective, MaskedObjective) else 1


def _masked(block_size: int) -> float:
    """The mean fraction of a block that is masked: of 1 / b, ..., b / b."""
    return (block_size + 1) / (2 * block_size) if block_size else 0.5


def _anchors(objective: Objective, known: Known, scored: float) -> float:
    """Fraction of the text at which the anchor term is taken."""
    if not isinstance(objective, Anelbo | AnchoredCrossEntropy) or objective.gamma == 0:
        return 0.0
    among = scored if isinstance(objective, Anelbo) and objective.masked_only else 1.0
    return among * objective.fraction * _marked(objective.rule, known)


def _marked(rule: AnchorRule, known: Known) -> float:
    if rule == RareInSequence(5):
        return known.anchors
    if isinstance(rule, RandomFraction):
        return rule.fraction
    return 0.0 if isinstance(rule, NoToken) else 1.0


class Summary(NamedTuple):
    """The size and cost of a run, independent of hardware. `rows`, `tokens` and `work` are per step."""

    vocabulary: Vocabulary
    parameters: Parameters
    length: int
    rows: int
    tokens: int
    work: int
    steps: int

    @property
    def all_tokens(self) -> int:
        return self.tokens * self.steps

    @property
    def all_work(self) -> int:
        return self.work * self.steps


def summary(run: Run, *, vocabulary: Vocabulary | None = None, world_size: int = 1) -> Summary:
    """The size and cost of a run; validation is not counted.

    Args:
        vocabulary: where the data is not known by name, its tokenizer's.
        world_size: processes. A logits hand-over is made once for each micro-batch of each of them.
    """
    vocabulary = vocabulary or known_vocabulary(run.data)
    length = row_length(run.data)
    rows = run.train.rows(length)
    fraction = fractions(run)
    step = training_work(
        run.network,
        vocabulary,
        length=length,
        rows=max(1, round(rows * _copies(run) * fraction.computed)),
        scored=fraction.scored / fraction.computed,
        anchors=fraction.anchors / fraction.computed,
        block_sizes=block_sizes(run),
    )
    again = world_size * _micro_batches(run, rows, world_size)[1] - 1
    step += 3 * again * forward_work(run.network, vocabulary, length).once
    parameters = count_parameters(run.network, vocabulary)
    return Summary(vocabulary, parameters, length, rows, rows * length, step, run.train.steps)


def _micro_batches(run: Run, rows: int, world_size: int) -> tuple[int, int]:
    """Rows of a micro-batch, and how many of them a process computes in a step."""
    mine, rest = divmod(rows, world_size)
    if rest or not mine:
        raise ConfigError(
            f"a step of {rows} rows cannot be divided among {world_size} processes",
            fix=f"set train.tokens_per_step to a multiple of {world_size} rows",
            subject="train.tokens_per_step",
        )
    micro = min(run.train.micro_batch_size, mine)
    return micro, -(-mine // micro)


@lru_cache(maxsize=4)
def _meta(run: Run, vocabulary: Vocabulary) -> LanguageModel:
    """The network with its adapters and frozen parts, without storage."""
    with torch.device("meta"):
        return run.build_model(vocabulary)


class MemoryEstimate(NamedTuple):
    """Estimated bytes on each process."""

    weights: int
    gradients: int
    optimizer: int
    ema: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        return sum(self)

    @property
    def lasting(self) -> int:
        """What is held from the first step to the last."""
        return self.weights + self.gradients + self.optimizer + self.ema


def memory(
    run: Run, vocabulary: Vocabulary, *, rows: int, bf16: bool, parts: int = 1, cpu: bool = False
) -> MemoryEstimate:
    """What training needs, about. What allocators and libraries hold on to comes on top: on a CPU, up to half as much
    again was measured.

    Weights, gradients and averages are float32; in bfloat16 a copy of the weights is kept from the forward pass to
    the backward pass. AdamW has two states a weight, Muon one. Activations are those of `activation_bytes`, of rows
    without padding. Logits are one table of a slice of positions, two in bfloat16, or four where an objective lets
    autograd have them; and for each head whose loss is taken, its gradient before it is added to the others.

    Args:
        rows: of a micro-batch.
        parts: processes over which weights, gradients, optimizer states and averages are spread.
        cpu: whether they compute on a CPU, where attention on short rows keeps more.
    """
    model = _meta(run, vocabulary)
    fraction = fractions(run)
    scored, length = 1.0 if model.causal else 0.5, row_length(run.data)
    if sizes := block_sizes(run):  # the most is kept with small blocks
        scored = max(map(_masked, sizes))
    anchors = fraction.anchors * scored / fraction.scored
    short, tokens = 2 if bf16 else 4, rows * _copies(run) * length
    each = activation_bytes(
        run.network,
        length=length,
        scored=scored,
        anchors=anchors,
        short=short,
        activation_checkpointing=run.train.activation_checkpointing,
        cpu=cpu,
    )
    fused = isinstance(run.objective, Nelbo | CrossEntropy)
    table = min(SLICE_LOGITS, round(tokens * scored) * vocabulary.size)
    heads = 4 * vocabulary.size * run.network.width * (fused + bool(anchors))
    return lasting_memory(run, vocabulary, bf16=bf16, parts=parts)._replace(
        activations=each * tokens, logits=table * ((4 if short == 4 else 4 + short) if fused else 16) + heads
    )


def lasting_memory(run: Run, vocabulary: Vocabulary, *, bf16: bool, parts: int = 1) -> MemoryEstimate:
    """What is held from the first step to the last, of any run; see `memory`."""
    model = _meta(run, vocabulary)
    weights = sum(parameter.numel() for parameter in model.parameters())
    learning = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    states = sum(
        (1 if isinstance(optimizer, MuonOptimizer) else 2) * parameter.numel()
        for optimizer in run.train.optimizer.build(model)
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
    return MemoryEstimate(
        weights=(6 if bf16 else 4) * weights // parts,
        gradients=4 * learning // parts,
        optimizer=4 * states // parts,
        ema=4 * weights * bool(run.train.ema_decay) // parts,
        activations=0,
        logits=0,
    )


class RunPlan(NamedTuple):
    """A run on given processes.

    Args:
        parts: that weights, gradients and optimizer states are in.
        execution: type of matrix products and threads there.
        micro_batch_size, micro_batches: rows of a micro-batch, and how many of them each process computes in a step.
        memory: of each process.
        speed: operations per second of matrix products alone on the device, measured when the plan was made.
    """

    summary: Summary
    world_size: int
    parts: int
    device: str
    execution: Execution
    micro_batch_size: int
    micro_batches: int
    memory: MemoryEstimate
    speed: float

    @property
    def seconds(self) -> float:
        """The estimated seconds per step: its work at `EFFICIENCY` of the speed, good to a factor of two."""
        return self.summary.work / self.world_size / (EFFICIENCY * self.speed)

    @property
    def all_seconds(self) -> float:
        """The estimated seconds of all steps, without validation."""
        return self.seconds * self.summary.steps


def check_memory(run: Run, vocabulary: Vocabulary, *, parts: int = 1) -> None:
    """Refuse a run whose weights and optimizer states alone are more than the memory of this machine that is free."""
    free = available_bytes()
    if free is None or not run.network.stacks:
        return
    needed = lasting_memory(run, vocabulary, bf16=False, parts=parts).total
    if needed > free:
        takes, there = f"{needed / 2**30:.1f} GiB", f"{free / 2**30:.1f} GiB of memory are free"
        raise ConfigError(
            f"cannot train {run.name}: its weights, gradients and optimizer states take {takes}, and {there}; choose a "
            "smaller network, train adapters only, or shard the run over several machines",
            subject="memory",
        )


def plan(
    run: Run,
    *,
    world_size: int = 1,
    device: torch.device | str = "cpu",
    vocabulary: Vocabulary | None = None,
    shard: bool = False,
    folder: Path | None = None,
) -> RunPlan:
    """What `run` needs on this many processes, each with a device like this one.

    Args:
        vocabulary: where the data is not known by name, its tokenizer's.
        shard: weights, gradients and optimizer states are in parts on the processes.
        folder: that of the run. If it has begun, it continues to compute as it began.
    """
    sums = summary(run, vocabulary=vocabulary, world_size=world_size)
    micro_batch_size, micro_batches = _micro_batches(run, sums.rows, world_size)
    device = torch.device(device)
    wanted, before = run.train.precision, None if folder is None else stored(folder)
    execution = None if before is None else resumed(before, wanted, device)
    execution = execution or choose(wanted, run.network, sums.vocabulary, sums.length, device, world_size == 1)
    parts = world_size if shard else 1
    needed = memory(
        run, sums.vocabulary, rows=micro_batch_size, bf16=execution.bf16, parts=parts, cpu=device.type == "cpu"
    )
    with execution.applied():
        speed = matmul_speed(str(device), execution.bf16)
    return RunPlan(sums, world_size, parts, str(device), execution, micro_batch_size, micro_batches, needed, speed)


@cache
def matmul_speed(device: str, bf16: bool) -> float:
    """Operations per second of square matrix products on the device, over a fifth of a second."""
    size = 1024 if torch.device(device).type == "cpu" else 4096
    a = torch.ones(size, size, device=device, dtype=torch.bfloat16 if bf16 else torch.float32)
    (a @ a)[0, 0].item()  # also waits until it is done
    began, products = time.perf_counter(), 0
    while (taken := time.perf_counter() - began) < _PROBE_SECONDS or not products:
        (a @ a)[0, 0].item()
        products += 1
    return products * 2 * size**3 / taken
