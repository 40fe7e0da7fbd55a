"""The demo: AR, MDLM and ADLM of one size, on one corpus, for minutes on a laptop's CPU.

The paper's recipe is made for days on many GPUs. These runs differ from it where docs/log.md found that to help
in minutes: Muon, tied embeddings, normalised queries and keys, a short convolution in every block.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from adlm.anchors.rules import RareInSequence
from adlm.data.loader import LoaderConfig
from adlm.data.packing import Packing, Padded, Wrapped
from adlm.data.prepare import prepare
from adlm.data.shards import Shards
from adlm.data.source import Source
from adlm.data.stories import Stories
from adlm.data.tokenizer import Tokenizer, train_bpe, train_words
from adlm.diffusion.corruption import CountMasking
from adlm.errors import DataError
from adlm.evaluate.perplexity import Perplexity, perplexity
from adlm.models.hand_over import Continued
from adlm.models.io import ModelConfig
from adlm.models.language_model import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.randomness import Noise
from adlm.text_model import TextModel
from adlm.train.optimizer import Muon
from adlm.train.rates import StableDecay
from adlm.train.trainer import Report, TrainConfig, train

LENGTH = 64
STEPS = 1500


@dataclass(frozen=True)
class DemoRun:
    """One model of the demo."""

    name: str
    network: NetworkConfig
    objective: Objective
    train: TrainConfig
    batch: int = 16
    seed: int = 0


class Trained(NamedTuple):
    """What a run left."""

    model: TextModel
    parameters: int
    seconds: float
    score: Perplexity


class DemoData(NamedTuple):
    """The corpus, prepared. Rows that begin with their document let a model learn places (`positions`)."""

    source: Source
    tokenizer: Tokenizer
    packing: Packing
    train: Shards
    test: Shards

    @property
    def positions(self) -> int:
        return self.packing.length if self.packing.pads else 0


def runs(*, steps: int = STEPS, seed: int = 0, positions: int = 0) -> list[DemoRun]:
    """AR, MDLM and ADLM, four layers each: the same compute, and the same parameters but for a norm and a bias."""
    stack = StackConfig(width=96, heads=4, layers=4, convolution=5, query_key_norm=True)
    masking = CountMasking()
    rate = StableDecay(warmup=50, decay=0.3)
    config = TrainConfig(steps=steps, optimizer=Muon(lr=3e-3, matrix_lr=2e-2), rate=rate, seed=seed)
    models: list[tuple[str, NetworkConfig, Objective]] = [
        ("AR", OneStageConfig(replace(stack, causal=True), tied=True, positions=positions), CrossEntropy()),
        ("MDLM", OneStageConfig(stack, tied=True, positions=positions), Nelbo(masking)),
        (
            "ADLM",
            TwoStageConfig(replace(stack, layers=3), 1, Continued(), tied=True, positions=positions),
            Anelbo(masking, RareInSequence(5), gamma=0.05, masked_only=True),
        ),
    ]
    return [DemoRun(name, network, objective, config, seed=seed) for name, network, objective in models]


def data(source: Source, cache: Path) -> DemoData:
    """Tokenizer and shards: words and a row a story for `stories`, BPE and packed rows for any other text."""
    held_out = next((split for split in ("test", "valid") if split in source.splits), None)
    if held_out is None:
        raise DataError(
            f"asked to train and score models on {source.name}",
            f"only the splits {', '.join(source.splits)}: nothing held-out to score on",
            "add a file with test or valid in its name, or rename the file so that it is cut into splits",
        )
    packing: Packing
    if isinstance(source, Stories):
        tokenizer = train_words(source.beginning("train"))
        # Padding is predicted, so that a row's likelihood is the story's and can be held against its entropy.
        packing = Padded(LENGTH, begin=False, crop=True, predict_padding=True)
    else:
        tokenizer = train_bpe(source.beginning("train"), 1024)
        packing = Wrapped(LENGTH)
    shards = [prepare(source, split, tokenizer, packing, cache=cache) for split in ("train", held_out)]
    return DemoData(source, tokenizer, packing, *shards)


def execute(
    run: DemoRun,
    corpus: DemoData,
    *,
    test_rows: int = 1000,
    draws: int = 8,
    watch: Callable[[Report], None] | None = None,
    watch_test: Callable[[int, int], None] | None = None,
) -> Trained:
    """Train and score one model."""
    tokenizer = corpus.tokenizer
    config = ModelConfig(run.network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), corpus.packing)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Noise(run.seed).fork("init", run.name).seed % 2**63)
        network = config.build()
    loader = LoaderConfig(run.batch, seed=run.seed).build(corpus.train)
    seconds = 0.0

    def timed(report: Report) -> None:
        nonlocal seconds
        seconds = report.seconds
        if watch is not None:
            watch(report)

    train(network, run.objective, loader, run.train, watch=timed)
    score = perplexity(network, corpus.test, rows=test_rows, draws=draws, seed=run.seed, watch=watch_test)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Trained(TextModel(network, config, tokenizer), parameters, seconds, score)
