"""From a model, a target and data to an ordinary run: OUT/source, OUT/self and the `Run` that starts from them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adlm.adapt.self_text import sample_self, self_data, self_texts
from adlm.adapt.target import Target
from adlm.convert.prune import prune_vocabulary
from adlm.data.catalog import open_source
from adlm.data.config import Corpus
from adlm.data.packing import Packing, Padded, Wrapped
from adlm.data.table import DataConfig
from adlm.data.together import Together
from adlm.errors import ConfigError, OutOfRange
from adlm.models.costs import count_parameters
from adlm.models.io import is_model
from adlm.text_model import TextModel, load
from adlm.train.lora import Lora
from adlm.train.lr_schedules import StableDecay
from adlm.train.optimizers import AdamW, Muon, OptimizerConfig
from adlm.train.run import CheckpointConfig, Run, TrainConfig, ValidationConfig

SOURCE, SELF = "source", "self"
_PASSES, _LEAST_STEPS = 2, 300
_LARGE = 5_000_000  # parameters; see docs/log.md for the learning rates of both sides
_LARGE_LR, _ADAPTER_LR = 1e-4, 1e-3
_MICRO_TOKENS = 4096
_SIZES_PER_STEP = 4  # micro-batches of one block size each; one per step would leave steps to chance


@dataclass(frozen=True)
class AdaptOptions:
    """Options of an adaptation, apart from its target and data.

    Args:
        steps: by default two passes over the data, at least 300 steps.
        lr: peak learning rate; by default 1e-4 (AdamW) from 5 million parameters on, Muon's own below; 1e-3 (AdamW)
            for adapters.
        prune: keep only the tokens that occur in the data.
        lora: rank of low-rank adapters, which are then all that is trained, and merged at the end; 0: none.
        adapter_rank: the same, but kept apart: they act where masked text is read, and the left-to-right reading stays
            exactly that of the source; 0: none.
        freeze: parts that are not trained: anchor, denoiser, or a prefix of parameter names.
        length: tokens per row; by default those of the model.
        rows: per step.
        holes: fraction of whole rows in which only tokens in holes are masked, as infilling meets them.
        seed: of training and sampled texts.
    """

    steps: int | None = None
    lr: float | None = None
    prune: bool = False
    lora: int = 0
    adapter_rank: int = 0
    freeze: tuple[str, ...] = ()
    length: int | None = None
    rows: int = 16
    seed: int = 0
    holes: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("length", self.length), ("rows", self.rows)):
            if value is not None and value < 1:
                raise OutOfRange(name, value, "at least 1")
        if self.lr is not None and not self.lr > 0:
            raise OutOfRange("lr", self.lr, "positive")
        if self.lora < 0:
            raise OutOfRange("lora", self.lora, "at least 0")
        if self.adapter_rank < 0:
            raise OutOfRange("adapter_rank", self.adapter_rank, "at least 0")
        if self.lora and self.adapter_rank:
            raise ConfigError("use either lora or adapter_rank", subject="adapter_rank")


def is_self(name: str) -> bool:
    """Whether a data set is the texts that the model samples: self:N."""
    return name.partition(":")[0] == SELF


def self_count(data: Sequence[str]) -> int:
    """The number of texts to sample: N of self:N, or 0. Refuses data without a name."""
    if not data:
        raise ConfigError("nothing to train on", fix="give --data CORPUS or --data self:5000", subject="data")
    own = [name.partition(":")[2] for name in data if is_self(name)]
    if not own:
        return 0
    if len(own) > 1 or not own[0].isdecimal():
        raise ConfigError(f"write one self:NUMBER, such as self:5000, got self:{own[-1]}", subject="data")
    return int(own[0])


def adapted_packing(model: TextModel, options: AdaptOptions, *, own_text: bool) -> Packing:
    """Rows as the model knows them, unless they hold several documents apart, or sampled texts: then a text each."""
    packing = model.config.packing
    length = options.length or packing.length
    most = model.network.learned_positions
    if most and length > most:
        raise OutOfRange("length", length, f"at most {most}, the positions of the model")
    if isinstance(packing, Wrapped) and (own_text or packing.apart):
        return Padded(length, begin=packing.framed)
    return replace(packing, length=length)


def prepare_source(
    model: TextModel, data: Sequence[str], out: Path, options: AdaptOptions, log: Callable[[str], None]
) -> TextModel:
    """Sample the model's own texts if the data has self:N, prune it, and write it to OUT/source; or what is missing."""
    count = self_count(data)
    packing = adapted_packing(model, options, own_text=count > 0)
    if count:
        sample_self(model, out / SELF, count, length=packing.length, seed=options.seed, log=log)
    folder = out / SOURCE
    if not is_model(folder):
        if options.prune:
            before = model.config.vocabulary.size
            model = prune_vocabulary(model, _documents(data, out))
            log(f"kept {model.config.vocabulary.size:,} of {before:,} tokens")
        model.save(folder)
    return load(folder)


def _documents(data: Sequence[str], out: Path) -> Iterator[str]:
    """All text of the data, to train on and held out."""
    for name in data:
        if is_self(name):
            yield from self_texts(out / SELF)
        else:
            source = open_source(name)
            for split in source.splits:
                if split != "test":
                    yield from source.documents(split)


def adaptation_data(data: Iterable[str], folder: Path, packing: Packing, own: Path) -> tuple[DataConfig, ...]:
    """Each data set as rows of the model in `folder`; the sampled texts are in `own`."""
    return tuple(
        self_data(own, str(folder), packing)
        if is_self(name) and isinstance(packing, Padded)
        else Corpus(name, str(folder), packing)
        for name in data
    )


def adaptation_run(
    source: TextModel,
    target: Target,
    data: tuple[DataConfig, ...],
    folder: Path,
    options: AdaptOptions,
    *,
    name: str,
    length: int,
    rows: int,
) -> Run:
    """The run that adapts the model in `folder`.

    Args:
        length: tokens per row.
        rows: of the data, for the default number of steps.
    """
    config = source.config
    network = target.network(config.network)
    if options.adapter_rank:
        network = network.variant(adapter_rank=options.adapter_rank)
    steps = options.steps or max(_LEAST_STEPS, -(-_PASSES * rows // options.rows))
    parameters = count_parameters(network, config.vocabulary).total
    micro_batch = max(1, min(options.rows, _MICRO_TOKENS // length))
    if len(target.readings) > 1 and not target.progressive:
        micro_batch = max(1, min(micro_batch, options.rows // _SIZES_PER_STEP))
    train = TrainConfig(
        steps=steps,
        tokens_per_step=options.rows * length,
        micro_batch_size=micro_batch,
        optimizer=AdamW(lr=options.lr or _ADAPTER_LR) if options.adapter_rank else _optimizer(parameters, options.lr),
        lr_schedule=StableDecay(warmup=min(50, steps // 10), decay=0.3),
        freeze=options.freeze,
        seed=options.seed,
    )
    return Run(
        name,
        data[0] if len(data) == 1 else Together(data),
        network,
        target.objective(together=micro_batch, left_to_right=not options.adapter_rank, holes=options.holes),
        train,
        ValidationConfig(every=max(100, steps // 10), num_rows=64, draws=2, micro_batch_size=train.micro_batch_size),
        CheckpointConfig(every=100),
        init=target.init(str(folder), config.network),
        adapters=Lora(options.lora, alpha=2.0 * options.lora) if options.lora else None,
    )


def _optimizer(parameters: int, lr: float | None) -> OptimizerConfig:
    if parameters >= _LARGE:
        return AdamW(lr=lr or _LARGE_LR)
    own = Muon()
    return own if lr is None else replace(own, lr=lr, matrix_lr=lr * own.matrix_lr / own.lr)
