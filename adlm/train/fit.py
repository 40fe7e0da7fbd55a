"""Training: a `Run` in, a folder with a model out; on one process or many, in one sitting or several."""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from adlm import registry
from adlm.config import to_json
from adlm.data.loader import LoaderConfig
from adlm.data.tokenizer import Tokenizer
from adlm.distributed import joined, local_rank
from adlm.errors import ConfigError
from adlm.models.io import CONFIG, WEIGHTS, ModelConfig
from adlm.models.language_model import LanguageModel
from adlm.models.network import Vocabulary
from adlm.randomness import Noise
from adlm.train.checkpoint import Checkpoints
from adlm.train.ema import Ema
from adlm.train.folder import check_shared, check_unchanged, claimed, stored_run, write_config
from adlm.train.freeze import freeze
from adlm.train.interruption import noticed
from adlm.train.parallel import ParallelModel
from adlm.train.run import Run
from adlm.train.state import State
from adlm.train.trackers import IDENTITY, Tracker
from adlm.train.trainer import BEST, ProgressCallback, Sample, Trainer, TrainResult

CHECKPOINTS = "checkpoints"


def fit(
    run: Run,
    out: str | Path,
    *,
    device: str = "auto",
    shard: bool = False,
    resume: Literal["auto", "never"] = "auto",
    allow_change: bool = False,
    on_nonfinite: Literal["stop", "skip"] = "stop",
    cache: Path | None = None,
    workers: int = 0,
    watch: ProgressCallback | None = None,
    trackers: Sequence[Tracker] = (),
    sample: Sample | None = None,
    curves: bool = True,
    say: Callable[[str], None] = print,
) -> TrainResult:
    """Train `run` in the folder `out`, or go on where it was stopped there.

    Under `torchrun` every process calls this, and together they train one model.

    Args:
        shard: with several processes: weights, gradients and optimiser states in parts (FSDP2) instead of whole on
            each (DDP).
        resume: auto goes on from the newest whole checkpoint; never starts again and replaces what is in the folder.
        allow_change: go on although parts of the run have changed, if they are parts that may.
        on_nonfinite: what to do when a loss or gradient is not finite: stop before the step, or skip it and count.
        cache: where prepared data is kept, if not in the user's cache.
        workers: processes that read ahead, for each process that trains.
        watch, trackers: told of every step and validation, on the first process.
        sample: after each validation, called with (model, config, tokenizer, step); returns texts to keep.
        curves: draw the run as a picture at its end, which takes seconds.
        say: told what a person should know, on the first process.
    """
    out, run = Path(out), replace(run, imports=tuple(dict.fromkeys((*run.imports, *registry.imported()))))
    _check_folder(out, run, resume=resume, allow_change=allow_change)
    # Before the processes join, since it may take longer than they wait for each other.
    first_here = local_rank() == 0
    data = run.data.prepare(cache=cache, verify=first_here, watch=_Preparing(say) if first_here else None)
    with ExitStack() as stack:
        world = stack.enter_context(joined(device))
        stack.enter_context(torch.random.fork_rng([world.device] if world.device.type == "cuda" else []))
        told = say if world.first else _silent
        world.on_first(lambda: stack.enter_context(claimed(out)))
        check_shared(out, world)
        interruption = stack.enter_context(noticed(told))
        loader = LoaderConfig(run.train.rows(data.train.length), run.train.seed, workers=workers).build(
            data.train, rank=world.rank, world=world.size
        )
        checkpoints = Checkpoints(out / CHECKPOINTS, world, keep=run.checkpoint.keep, say=told)
        stack.callback(checkpoints.close)
        if resume == "never":
            world.on_first(lambda: _clear(out))
        found = checkpoints.newest()
        vocabulary = Vocabulary(data.tokenizer.vocab_size, data.tokenizer.mask_id)
        config = ModelConfig(run.network, vocabulary, data.packing, to_json(run))
        model = _built(run, config, data.tokenizer, world.device, with_weights=found is None)
        some_unused = model.anchor_head is not None and not run.objective.trains_anchor
        spread = ParallelModel(model, world, shard=shard, some_unused=some_unused)
        stack.callback(spread.close)
        ema = Ema(model, run.train.ema_decay) if run.train.ema_decay else None
        state = State(model, run.train.optimizer.build(model), ema)
        if found is not None:
            loader.load_state_dict(found.state["loader"])
            state.restore(checkpoints, found)
            told(f"going on after step {state.numbers.step} ({found.folder})")
        world.on_first(lambda: write_config(out, config))
        trainer = Trainer(
            run, out, world, data, config, loader, spread, state, checkpoints, interruption, told,
            skip=on_nonfinite == "skip", watch=watch, trackers=trackers if world.first else (), sample=sample,
            curves=curves,
        )  # fmt: skip
        return trainer.go()


class _Preparing:
    """Says now and then how far the data is: preparing a large corpus takes longer than training a small model."""

    def __init__(self, say: Callable[[str], None], every: float = 10.0) -> None:
        self.say, self.every, self.said = say, every, time.monotonic()

    def __call__(self, documents: int, characters: int, rows: int) -> None:
        if time.monotonic() - self.said >= self.every:
            self.said = time.monotonic()
            self.say(f"preparing data: {documents:,} documents, {characters / 1e6:,.0f} M characters, {rows:,} rows")


def _silent(text: str) -> None:
    pass


def _check_folder(out: Path, run: Run, *, resume: str, allow_change: bool) -> None:
    if any((out / name).exists() for name in (WEIGHTS, CONFIG)) and stored_run(out) is None:
        raise ConfigError(
            f"asked to train in {out}", "a model that no run of this package left there", "name another --out"
        )
    if resume == "auto":
        check_unchanged(out, run, allow_change=allow_change)


def _clear(out: Path) -> None:
    (out / WEIGHTS).unlink(missing_ok=True)  # first: they must not meet the config of another run
    for name in (CHECKPOINTS, BEST):
        shutil.rmtree(out / name, ignore_errors=True)
    (out / IDENTITY).unlink(missing_ok=True)


def _built(
    run: Run, config: ModelConfig, tokenizer: Tokenizer, device: torch.device, *, with_weights: bool
) -> LanguageModel:
    """The model as it is trained: with its first weights (unless a checkpoint brings them), adapters, frozen parts."""
    torch.manual_seed(Noise(run.train.seed).fork("init").seed % 2**63)
    model = config.build()
    if with_weights:
        run.init.apply(model, tokenizer)
    if run.adapters is not None:
        run.adapters.apply(model)
    freeze(model, run.train.freeze)
    model.to(device).checkpoint_activations(run.train.activation_checkpointing)
    if run.train.compile:
        model.compile_blocks()
    return model.train()
