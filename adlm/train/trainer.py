"""The life of a run: a `Run` in, a folder with a model out; on one process or many, in one sitting or several."""

import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import torch

from adlm.configs import to_json
from adlm.data.loader import Loader, LoaderConfig
from adlm.data.table import Prepared
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, Interrupted, MissingExtra
from adlm.evaluate.perplexity import perplexity
from adlm.models.card import Facts
from adlm.models.io import WEIGHTS, ModelConfig, save_model
from adlm.models.language_model import LanguageModel, Vocabulary
from adlm.objectives.nelbo import Nelbo
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.randomness import Noise
from adlm.train.checkpoint import Checkpoints
from adlm.train.curves import draw_curves
from adlm.train.ema import Ema
from adlm.train.folder import check_unchanged, claimed, stored_run, write_config, writing
from adlm.train.freeze import freeze
from adlm.train.interruption import Interruption, noticed
from adlm.train.memory import peak_memory
from adlm.train.metrics import METRICS, MetricsFile, Report, Validated
from adlm.train.nonfinite import keep_batch
from adlm.train.run import Run
from adlm.train.spread import Spread
from adlm.train.state import State
from adlm.train.step import Stepper
from adlm.train.trackers import IDENTITY, Tracker
from adlm.types import Batch, Estimate
from adlm.world import World, joined, local_rank


class Watch(Protocol):
    """Told of every step and validation, to show it."""

    def __call__(self, report: Report) -> None: ...

    def validated(self, validated: Validated) -> None: ...


Sample = Callable[[LanguageModel, ModelConfig, Tokenizer, int], Sequence[str]]
BEST, CHECKPOINTS = "best", "checkpoints"
_WINDOW = 20  # steps over which speed is taken


class Fitted(NamedTuple):
    """What a run left: the model, with averaged weights if it keeps them, and what the last validation found.

    Of a model in parts, the first process has the whole.
    """

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    folder: Path
    steps: int
    nats: Estimate | None


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
    watch: Watch | None = None,
    trackers: Sequence[Tracker] = (),
    sample: Sample | None = None,
    say: Callable[[str], None] = print,
) -> Fitted:
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
        say: told what a person should know, on the first process.
    """
    out = Path(out)
    _check_folder(out, run, resume=resume, allow_change=allow_change)
    # Before the processes join, since it may take longer than they wait for each other.
    data = run.data.prepare(cache=cache, verify=local_rank() == 0)
    with ExitStack() as stack:
        world = stack.enter_context(joined(device))
        stack.enter_context(torch.random.fork_rng([] if world.device.type == "cpu" else [world.device]))
        told = say if world.first else _silent
        world.on_first(lambda: stack.enter_context(claimed(out)))
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
        spread = Spread(model, world, shard=shard, some_unused=some_unused)
        ema = Ema(model, run.train.ema) if run.train.ema else None
        state = State(model, run.train.optimizer.build(model), ema)
        if found is not None:
            loader.load_state_dict(found.state["loader"])
            state.restore(checkpoints, found)
            told(f"going on after step {state.numbers.step} ({found.folder})")
        world.on_first(lambda: write_config(out, config))
        sitting = _Sitting(
            run, out, world, data, config, loader, spread, state, checkpoints, interruption, told,
            skip=on_nonfinite == "skip", watch=watch, trackers=trackers if world.first else (), sample=sample,
        )  # fmt: skip
        return sitting.go()


def _silent(text: str) -> None:
    pass


def _check_folder(out: Path, run: Run, *, resume: str, allow_change: bool) -> None:
    if (out / WEIGHTS).exists() and stored_run(out) is None:
        raise ConfigError(
            f"asked to train in {out}", "a model that no run of this package left there", "name another --out"
        )
    if resume == "auto":
        check_unchanged(out, run, allow_change=allow_change)


def _clean(objective: Objective) -> Objective | None:
    """The bound to validate with: SEDD and D3PM have their own; for others the one with the least variance."""
    return None if isinstance(objective, CrossEntropy | Nelbo) else objective


def _clear(out: Path) -> None:
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
        run.start.apply(model, tokenizer)
    if run.adapters is not None:
        run.adapters.apply(model)
    freeze(model, run.train.freeze)
    model.to(device).checkpoint_activations(run.train.recompute)
    if run.train.compile:
        model.compile()
    return model.train()


@dataclass
class _Sitting:
    """From a start, or a checkpoint, to the end of the run or the next interruption."""

    run: Run
    out: Path
    world: World
    data: Prepared
    config: ModelConfig
    loader: Loader
    spread: Spread
    state: State
    checkpoints: Checkpoints
    interruption: Interruption
    say: Callable[[str], None]
    skip: bool
    watch: Watch | None
    trackers: Sequence[Tracker]
    sample: Sample | None
    metrics: MetricsFile | None = None
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW + 1))
    began: float = 0.0

    def go(self) -> Fitted:
        numbers = self.state.numbers
        with ExitStack() as stack:
            if self.world.first:
                self.metrics = stack.enter_context(MetricsFile(self.out / METRICS, step=numbers.step))
            for tracker in self.trackers:
                tracker.open(self.out, self.run.name, to_json(self.run), step=numbers.step)
                stack.callback(tracker.close)
            if self._finished:
                self.say(f"all {numbers.step} steps are done already")
            else:
                self._train()
        return self._end()

    @property
    def _finished(self) -> bool:
        numbers, patience = self.state.numbers, self.run.validation.patience
        return numbers.step >= self.run.train.steps or 0 < patience <= numbers.since_best

    def _train(self) -> None:
        numbers, every = self.state.numbers, self.run.validation.every
        stepper = Stepper(
            self.spread, self.run.objective, self.state.optimizers, self.state.ema, self.run.train,
            self.loader.config.batch,
        )  # fmt: skip
        saved = numbers.step
        self.began = time.perf_counter()
        self.times.append(self.began)
        if every and numbers.step and numbers.step % every == 0:
            self._validate()  # where a run was stopped just before it
        for batch in self.loader:
            self._step(stepper, batch)
            if every and numbers.step % every == 0:
                self._validate()
            if self._finished:
                break
            if numbers.step % self.run.checkpoint.every == 0:
                self._save()
                saved = numbers.step
        self._validate()
        if saved != numbers.step:
            self._save()
        self.checkpoints.wait()

    def _step(self, stepper: Stepper, batch: Batch) -> None:
        numbers, run = self.state.numbers, self.run
        flags = (self.interruption.asked, self.checkpoints.failed)
        outcome = stepper(batch, numbers.step, flags)
        if not outcome.taken:
            error = keep_batch(self.out, self.world, batch, outcome, numbers.step, run.train.micro_rows)
            if not self.skip:
                # Before the step that failed: with --on-nonfinite skip, or other data, the run goes on from here.
                self.loader.given = numbers.step
                self._save()
                self.checkpoints.wait()
                raise error
            numbers.skipped += 1
            self.say(f"step {numbers.step + 1} left out: {error.found}")
        numbers.step += 1
        numbers.tokens += self.loader.config.batch * self.data.train.length
        self._report(outcome.loss, outcome.bound, outcome.gradient, outcome.rate)
        asked, failed = outcome.flags
        if failed:
            self.checkpoints.wait()  # raises, on all processes
        if asked:
            self._save()
            self.checkpoints.wait()
            raise Interrupted(
                f"asked to stop while training {run.name}",
                f"{numbers.step} of {run.train.steps} steps are done and saved in {self.out}",
                "run the same command again to go on from there",
                max(self.world.all(self.interruption.asked)),
            )

    def _report(self, loss: float, bound: float, gradient: float, rate: float) -> None:
        if self.metrics is None:
            return
        numbers, now = self.state.numbers, time.perf_counter()
        self.times.append(now)
        tokens = (len(self.times) - 1) * self.loader.config.batch * self.data.train.length
        report = Report(
            step=numbers.step,
            steps=self.run.train.steps,
            loss=loss,
            bound=bound,
            gradient=gradient,
            rate=rate,
            tokens=numbers.tokens,
            seconds=now - self.began,
            speed=tokens / (now - self.times[0]),
            memory=peak_memory(self.world.device),
            skipped=numbers.skipped,
        )
        self.metrics.report(report)
        if self.watch is not None:
            self.watch(report)
        for tracker in self.trackers:
            tracker.report(report)

    def _validate(self) -> None:
        """The clean bound with the weights that will be kept; once for each step it is asked at."""
        numbers, settings, table = self.state.numbers, self.run.validation, self.data.valid
        if table is None or numbers.validated == numbers.step:
            return
        began = time.perf_counter()
        model, ema = self.spread.model, self.state.ema
        model.eval()
        with ema.applied(model) if ema is not None else nullcontext():
            found = perplexity(
                model,
                table,
                objective=_clean(self.run.objective),
                rows=settings.rows or None,
                draws=settings.draws,
                batch=settings.micro_rows,
                seed=self.run.train.seed,
                world=self.world,
                through=self.spread,
            ).nats_a_token
            best = numbers.best is None or found.mean < numbers.best
            if best:
                numbers.best, numbers.since_best = found.mean, 0
            else:
                numbers.since_best += 1
            numbers.validated, numbers.nats, numbers.error = numbers.step, found.mean, found.error
            texts: tuple[str, ...] = ()
            if self.sample is not None:
                call, step = self.sample, numbers.step
                with torch.no_grad():
                    texts = tuple(self.spread(lambda model: call(model, self.config, self.data.tokenizer, step)))
            if best:
                self._export(self.out / BEST)
        model.train()
        seconds = time.perf_counter() - began
        self.times.clear()  # speed is that of training
        self.times.append(time.perf_counter())
        if self.metrics is not None:
            result = Validated(numbers.step, found, math.exp(found.mean), best, seconds, texts)
            self.metrics.validated(result)
            if self.watch is not None:
                self.watch.validated(result)
            for tracker in self.trackers:
                tracker.validated(result)

    def _save(self) -> None:
        if self.metrics is not None:
            self.metrics.sync()
        self.state.save(self.checkpoints, loader=self.loader.state_dict(), run=to_json(self.run))

    def _whole(self) -> LanguageModel:
        """A plain model with the weights of this moment: no parts, no adapters; on the first process, if it takes
        putting together."""
        if not self.spread.sharded and self.run.adapters is None:
            return self.spread.model
        weights = self.spread.whole_weights()
        if not self.world.first:
            return self.spread.model
        model = self.config.build()
        if self.run.adapters is not None:
            self.run.adapters.apply(model)
        model.load_state_dict(weights, strict=False)  # names of tied weights are there once
        if self.run.adapters is not None:
            self.run.adapters.merge(model)
        return model.eval()

    def _export(self, folder: Path) -> LanguageModel:
        """Write a model folder."""
        model, numbers, run = self._whole(), self.state.numbers, self.run
        facts = Facts(
            data=f"`{self.data.train.name}`: {numbers.step:,} steps of {self.loader.config.batch} rows, "
            f"{numbers.tokens:,} tokens, by `adlm train` (run `{run.name}`, seed {run.train.seed}).",
            figures={"nats a token, held out": self._nats} if self._nats is not None else {},
        )

        def save() -> None:
            with writing(f"a model to {folder}"):
                save_model(folder, model, self.config, self.data.tokenizer, facts=facts)

        self.world.on_first(save)
        return model

    @property
    def _nats(self) -> Estimate | None:
        numbers, causal = self.state.numbers, self.spread.model.causal
        if numbers.nats is None or numbers.error is None:
            return None
        return Estimate(numbers.nats, numbers.error, 0 if causal else self.run.validation.draws)

    def _end(self) -> Fitted:
        if self.state.ema is not None:
            self.state.ema.keep(self.spread.model)
        model = self._export(self.out).eval()
        if self.world.first:
            try:
                draw_curves(self.out, self.run.name)
            except MissingExtra as error:
                self.say(f"no picture of the curves: {error.fix}")
        return Fitted(model, self.config, self.data.tokenizer, self.out, self.state.numbers.step, self._nats)
