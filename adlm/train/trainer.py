"""One sitting of a run: from its start, or a checkpoint, to its end or the next interruption."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from adlm.config import to_json
from adlm.data.loader import Loader
from adlm.data.table import Prepared
from adlm.data.tokenizer import Tokenizer
from adlm.distributed import DistributedContext
from adlm.errors import Interrupted, MissingExtra
from adlm.evaluate.perplexity import perplexity
from adlm.models.card import Facts
from adlm.models.io import ModelConfig, save_model
from adlm.models.language_model import LanguageModel
from adlm.train.checkpoint import Checkpoints
from adlm.train.curves import draw_curves
from adlm.train.folder import writing
from adlm.train.interruption import Interruption
from adlm.train.memory import peak_memory
from adlm.train.metrics import METRICS, MetricsFile, StepMetrics, ValidationMetrics
from adlm.train.nonfinite import keep_batch
from adlm.train.parallel import ParallelModel
from adlm.train.run import Run
from adlm.train.state import State
from adlm.train.step import TrainStep
from adlm.train.trackers import Tracker
from adlm.types import Batch, Estimate


class ProgressCallback(Protocol):
    """Told of every step and validation, to show it."""

    def __call__(self, report: StepMetrics) -> None: ...

    def validated(self, validated: ValidationMetrics) -> None: ...


class Callbacks(NamedTuple):
    """Who attends to a run: `watch` is told of its steps, `say` what a person should know."""

    watch: ProgressCallback | None = None
    say: Callable[[str], None] = print


Sample = Callable[[LanguageModel, ModelConfig, Tokenizer, int], Sequence[str]]
BEST = "best"
_WINDOW = 20  # steps over which speed is taken


class TrainResult(NamedTuple):
    """What a run left: the model, with averaged weights if it keeps them, and what the last validation found.

    Of a model in parts, the first process has the whole.
    """

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    folder: Path
    steps: int
    nats: Estimate | None


@dataclass
class Trainer:
    run: Run
    out: Path
    world: DistributedContext
    data: Prepared
    config: ModelConfig
    loader: Loader
    spread: ParallelModel
    state: State
    checkpoints: Checkpoints
    interruption: Interruption
    say: Callable[[str], None]
    skip: bool
    watch: ProgressCallback | None
    trackers: Sequence[Tracker]
    sample: Sample | None
    curves: bool
    metrics: MetricsFile | None = None
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW + 1))
    began: float = 0.0

    def go(self) -> TrainResult:
        numbers, every = self.state.numbers, self.run.validation.every
        with ExitStack() as stack:
            if self.world.first:
                file = MetricsFile(self.out / METRICS, step=numbers.step, validated=numbers.validated)
                self.metrics = stack.enter_context(file)
            for tracker in self.trackers:
                tracker.open(self.out, self.run.name, to_json(self.run), step=numbers.step)
                stack.callback(tracker.close)
            if every and numbers.step and numbers.step % every == 0:
                self._validate()  # where a run was stopped just before it
            if self._finished:
                self.say(f"all {numbers.step} steps are done already")
                self._validate()
            else:
                self._train()
        return self._end()

    @property
    def _finished(self) -> bool:
        numbers, patience = self.state.numbers, self.run.validation.patience
        return numbers.step >= self.run.train.steps or 0 < patience <= numbers.since_best

    def _train(self) -> None:
        numbers, every = self.state.numbers, self.run.validation.every
        stepper = TrainStep(
            self.spread, self.run.objective, self.state.optimizers, self.state.ema, self.run.train,
            self.loader.config.batch,
        )  # fmt: skip
        saved = numbers.step
        self.began = time.perf_counter()
        self.times.append(self.began)
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

    def _step(self, stepper: TrainStep, batch: Batch) -> None:
        numbers, run = self.state.numbers, self.run
        flags = (self.interruption.asked, self.checkpoints.failed)
        outcome = stepper(batch, numbers.step, flags)
        if not outcome.taken:
            error = keep_batch(self.out, self.world, batch, outcome, numbers.step, run.train.micro_batch_size)
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
        if asked and not self._finished:
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
        report = StepMetrics(
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
                objective=self.run.objective.for_validation(),
                rows=settings.num_rows or None,
                draws=settings.draws,
                batch=settings.micro_batch_size,
                seed=self.run.train.seed,
                world=self.world,
                through=self.spread,
            )
            nats = found.nats_per_token
            best = math.isfinite(nats.mean) and (numbers.best is None or nats.mean < numbers.best)
            if best:
                numbers.best, numbers.since_best = nats.mean, 0
            else:
                numbers.since_best += 1
            numbers.validated, numbers.nats, numbers.error = numbers.step, nats.mean, nats.error
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
            result = ValidationMetrics(numbers.step, nats, found.perplexity, best, seconds, texts)
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
            figures={"nats per token, held out": self._nats} if self._nats is not None else {},
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

    def _end(self) -> TrainResult:
        if self.state.ema is not None:
            self.state.ema.keep(self.spread.model)
        model = self._export(self.out).eval()
        if self.world.first and self.curves:
            try:
                draw_curves(self.out, self.run.name)
            except MissingExtra as error:
                self.say(f"no picture of the curves: {error.fix}")
        return TrainResult(model, self.config, self.data.tokenizer, self.out, self.state.numbers.step, self._nats)
