"""The trainer of a run: steps, validations, checkpoints, and the model it saves.

Losses and gradients are sums until they are divided once, by the tokens of the global batch. Noise depends on the ids
of samples and dropout on those of micro-batches, so neither the number of processes nor an interruption changes them.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from adlm.config import to_json
from adlm.data.loader import LoaderConfig
from adlm.data.table import Prepared
from adlm.data.tokenizer import Tokenizer
from adlm.distributed import DistributedContext, peak_memory
from adlm.errors import Interrupted, TrainingError
from adlm.memory import release_freed_memory
from adlm.models.card import Facts
from adlm.models.io import ModelConfig, save_model
from adlm.models.language_model import LanguageModel
from adlm.models.network import Vocabulary
from adlm.objectives.likelihood import table_perplexity
from adlm.randomness import Noise
from adlm.train.callbacks import Callback
from adlm.train.checkpoint import Checkpoints, RunProgress, TrainState
from adlm.train.ema import Ema
from adlm.train.execution import EXECUTION, Execution, choose, store
from adlm.train.lora import merged_model
from adlm.train.metrics import METRICS, MetricsFile, StepClock, StepMetrics, StepResult, ValidationMetrics
from adlm.train.parallel import ParallelModel, TrainingModule
from adlm.train.plan import check_memory
from adlm.train.run import FitOptions, Run
from adlm.train.run_folder import BEST, CHECKPOINTS, NONFINITE, keep_batch, write_config, writing
from adlm.types import Batch, Estimate


class TrainResult(NamedTuple):
    """A trained model, with averaged weights if the run keeps them, and the bound of its last validation.

    If the model was sharded, the first process has it whole.
    """

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    folder: Path
    steps: int
    nats: Estimate | None


class Trainer:
    """Trains one `Run` in a folder; `run()` does everything, the other methods are its parts.

    Args:
        data: the prepared data of the run.
        out: the folder of the run.
        context: the processes that train together.
        callbacks: called with steps, validations and messages.
        stop_signal: number of the signal that asked this process to stop; 0 if none did.
    """

    def __init__(
        self,
        run: Run,
        data: Prepared,
        out: Path,
        context: DistributedContext | None = None,
        *,
        options: FitOptions | None = None,
        callbacks: Sequence[Callback] = (),
        stop_signal: Callable[[], int] = lambda: 0,
    ) -> None:
        self.run_config, self.data, self.out = run, data, out
        self.context, self.options = context or DistributedContext(), options or FitOptions()
        self.callbacks, self._stop_signal = list(callbacks), stop_signal
        self.progress = RunProgress()
        order = LoaderConfig(run.train.rows(data.train.length), run.train.seed, workers=self.options.workers)
        self.loader = order.build(data.train, rank=self.context.rank, world_size=self.context.size)
        self.checkpoints = Checkpoints(out / CHECKPOINTS, self.context, keep=run.checkpoint.keep, log=self.log)
        self._saved = self.checkpoints.newest()

        vocabulary = Vocabulary(data.tokenizer.vocab_size, data.tokenizer.mask_id)
        self.config = ModelConfig(run.network, vocabulary, data.packing, to_json(run))
        if self.context.device.type == "cpu":
            check_memory(run, vocabulary, parts=self.context.size if self.options.shard else 1)
        self.model = self._build_model()
        module = TrainingModule(self.model, run.objective, Noise(run.train.seed).fork("train"))
        self.parallel = ParallelModel(module, self.context, shard=self.options.shard)
        self.ema = Ema(self.model, run.train.ema_decay) if run.train.ema_decay else None
        self.optimizers = run.train.optimizer.build(self.model)
        self.state = TrainState(self.model, self.optimizers, self.ema)
        self._peak_lrs = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.execution = self.context.on_first(self._choose_execution)
        self._dropout = Noise(run.train.seed).fork("dropout")
        self._clock = StepClock()

    def run(self) -> TrainResult:
        """Train from the newest checkpoint, or from the beginning, to the end; save the model."""
        self.resume()
        self.context.on_first(self._write_start)
        progress, every = self.progress, self.run_config.validation.every
        with ExitStack() as stack:
            stack.enter_context(self.execution.applied())
            self._open_callbacks(stack)
            if every and progress.step and progress.step % every == 0:
                self.validate()  # the run was stopped just before it
            if self._finished:
                self.log(f"all {progress.step} steps are done already")
                self.validate()
            else:
                self._train()
            if self.ema is not None:
                self.ema.keep(self.model)
            model = self._export(self.out).eval()
            if self.context.first:
                for callback in self.callbacks:
                    callback.on_end(self)
        return TrainResult(model, self.config, self.data.tokenizer, self.out, progress.step, self._nats)

    def resume(self) -> None:
        """Restore the checkpoint that the folder had when the trainer was made, if it had one."""
        if self._saved is None:
            return
        self.loader.load_state_dict(self._saved.state["loader"])
        self.checkpoints.load(self._saved, self.state.allocate(self._saved))
        self.progress = RunProgress.from_json(self._saved.state)
        if self.ema is not None:
            self.ema.updates = self.progress.averaged
        self.log(f"resuming after step {self.progress.step} ({self._saved.folder})")

    def train_step(self, batch: Batch) -> StepResult:
        """Take one optimizer step with this process's part of a global batch: step `progress.step`, counted from 0.

        Sums, gradient norm and flags are read from the device together, which is the only host sync.
        """
        config, step = self.run_config.train, self.progress.step
        parts = batch.split(config.micro_batch_size)
        sums = torch.stack([self._backward(part, i, last=i == len(parts) - 1) for i, part in enumerate(parts)])
        flags = torch.tensor([self._stop_signal() != 0, self.checkpoints.failed], dtype=sums.dtype)
        totals = self.context.sum(torch.cat([sums.sum(0), flags.to(sums.device, non_blocking=True)]))
        tokens = totals[2].clamp_min(1)
        norm = self.parallel.grad_norm().to(totals.dtype) / tokens
        self.parallel.scale_gradients((config.grad_clip / (norm + 1e-6)).clamp_max(1) / tokens)
        lr = self._set_lr(step)

        loss, bound, count, stop, failed, grad_norm = torch.cat([totals, norm[None]]).tolist()
        taken = math.isfinite(loss) and math.isfinite(grad_norm)
        if taken:
            for optimizer in self.optimizers:
                optimizer.step()
            if self.ema is not None:
                self.ema.update(self.model)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        suspects: list[int] = []
        if not taken:
            wrong = (~sums[:, 0].isfinite()).nonzero()[:, 0].tolist()
            suspects = [index for i in wrong for index in parts[i].index.tolist()]
        count = max(count, 1.0)
        return StepResult(
            loss / count, bound / count, grad_norm, lr, taken, tuple(suspects), stop > 0, failed > 0
        )  # fmt: skip

    def validate(self) -> None:
        """Measure the clean bound with the weights that will be kept; at most once per step."""
        progress, settings, table = self.progress, self.run_config.validation, self.data.valid
        if table is None or progress.validated == progress.step:
            return
        began = time.perf_counter()
        self.model.eval()
        with self.ema.applied(self.model) if self.ema is not None else nullcontext():
            with self.parallel.full_weights():
                found = table_perplexity(
                    self.model,
                    table,
                    objective=self.run_config.objective.for_validation(),
                    num_rows=settings.num_rows or None,
                    draws=settings.draws,
                    batch=settings.micro_batch_size,
                    seed=self.run_config.train.seed,
                    context=self.context,
                )
                samples = tuple(text for callback in self.callbacks for text in callback.samples(self))
            nats = found.nats_per_token
            best = math.isfinite(nats.mean) and (progress.best is None or nats.mean < progress.best)
            progress.validated, progress.nats, progress.error = progress.step, nats.mean, nats.error
            progress.since_best = 0 if best else progress.since_best + 1
            if best:
                progress.best = nats.mean
                self._export(self.out / BEST)
        self.model.train()
        # Every step masks another number of tokens: freed memory breaks into pieces that later steps do not fit into.
        release_freed_memory()
        seconds = time.perf_counter() - began
        self._clock.pause()
        if self.context.first:
            metrics = ValidationMetrics(progress.step, nats, found.perplexity, best, seconds, samples)
            for callback in self.callbacks:
                callback.on_validation(metrics)

    def save(self) -> None:
        """Start writing a checkpoint, in the background."""
        self.progress.averaged = self.ema.updates if self.ema is not None else 0
        self.context.on_first(self._flush_callbacks)
        numbers = {"progress": asdict(self.progress), "loader": self.loader.state_dict(), "run": self.config.run}
        self.checkpoints.save(self.progress.step, self.state.tensors(), numbers)

    def log(self, message: str) -> None:
        """A message for the user, on the first process."""
        if self.context.first:
            for callback in self.callbacks:
                callback.log(message)

    def close(self) -> None:
        """Finish what is being written and release the process group."""
        self.checkpoints.close()
        self.parallel.close()

    @property
    def _tokens_per_step(self) -> int:
        return self.loader.config.batch * self.data.train.length

    @property
    def _finished(self) -> bool:
        patience = self.run_config.validation.patience
        return self.progress.step >= self.run_config.train.steps or 0 < patience <= self.progress.since_best

    @property
    def _nats(self) -> Estimate | None:
        """The bound of the last validation."""
        if self.progress.nats is None or self.progress.error is None:
            return None
        draws = 0 if self.model.causal else self.run_config.validation.draws
        return Estimate(self.progress.nats, self.progress.error, draws)

    def _build_model(self) -> LanguageModel:
        """The model on its device, with its initial weights unless a checkpoint brings them."""
        run = self.run_config
        torch.manual_seed(Noise(run.train.seed).fork("init").seed % 2**63)
        model = run.build_model(self.config.vocabulary, self.data.tokenizer if self._saved is None else None)
        model.to(self.context.device).checkpoint_activations(run.train.activation_checkpointing)
        if run.train.compile:
            model.compile_blocks()
        return model.train()

    def _choose_execution(self) -> Execution:
        run, length, folder = self.run_config, self.data.train.length, None if self._saved is None else self.out
        alone, device = self.context.size == 1, self.context.device
        vocabulary = self.config.vocabulary
        return choose(run.train.precision, run.network, vocabulary, length, device, alone, folder=folder)

    def _write_start(self) -> None:
        write_config(self.out, self.config)
        with writing(str(self.out / EXECUTION), self.out / EXECUTION):
            store(self.out, self.execution)

    def _open_callbacks(self, stack: ExitStack) -> None:
        if not self.context.first:
            return
        path, progress = self.out / METRICS, self.progress
        self.callbacks.insert(0, MetricsFile(path, step=progress.step, validated=progress.validated))
        for callback in self.callbacks:
            callback.open(self)
            stack.callback(callback.close)

    def _flush_callbacks(self) -> None:
        for callback in self.callbacks:
            callback.on_checkpoint(self.progress.step)

    def _train(self) -> None:
        progress, validation, saved = self.progress, self.run_config.validation, self.progress.step
        self._clock.start()
        for batch in self.loader:
            result = self.train_step(batch)
            if not result.taken:
                self._handle_nonfinite(batch, result)
            progress.step += 1
            progress.tokens += self._tokens_per_step
            self._report(result)
            if result.save_failed:
                self.checkpoints.wait()  # raises, on all processes
            if result.stop and not self._finished:
                self._stop()
            if validation.every and progress.step % validation.every == 0:
                self.validate()
            if self._finished:
                break
            if progress.step % self.run_config.checkpoint.every == 0:
                self.save()
                saved = progress.step
        self.validate()
        if saved != progress.step:
            self.save()
        self.checkpoints.wait()

    def _backward(self, part: Batch, number: int, *, last: bool) -> Tensor:
        """Add the gradients of a micro-batch; returns its sums [3]: loss, bound, tokens."""
        config, step, device = self.run_config.train, self.progress.step, self.context.device
        rows = self.loader.config.batch
        first = step * rows + self.context.rank * (rows // self.context.size) + number * config.micro_batch_size
        torch.manual_seed(self._dropout.fork(first).seed % 2**63)
        with self.parallel.accumulating(last=last):
            with torch.autocast(device.type, torch.bfloat16, enabled=self.execution.bf16):
                terms = self.parallel(part.to(device), step / config.steps)
            self.parallel.backward(terms.loss_sum)
        wide = torch.float32 if device.type == "mps" else torch.float64
        return torch.stack([value.detach().to(wide) for value in terms])

    def _set_lr(self, step: int) -> float:
        fraction = self.run_config.train.lr_schedule.fraction(step, self.run_config.train.steps)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, peak in zip(groups, self._peak_lrs, strict=True):
            group["lr"] = peak * fraction
        return float(self._peak_lrs[0] * fraction)

    def _report(self, result: StepResult) -> None:
        if not self.context.first:
            return
        progress = self.progress
        seconds, steps_per_second = self._clock.tick()
        metrics = StepMetrics(
            step=progress.step,
            steps=self.run_config.train.steps,
            loss=result.loss,
            bound=result.bound,
            grad_norm=result.grad_norm,
            lr=result.lr,
            tokens=progress.tokens,
            seconds=seconds,
            speed=steps_per_second * self._tokens_per_step,
            memory=peak_memory(self.context.device),
            skipped=progress.skipped,
        )
        for callback in self.callbacks:
            callback.on_step(metrics)

    def _handle_nonfinite(self, batch: Batch, result: StepResult) -> None:
        """Keep the batch; then skip the step, or save the state before it and raise."""
        step = self.progress.step + 1
        where = keep_batch(self.out, self.context, batch, step, result.suspects)
        found = f"loss {result.loss}, gradient norm {result.grad_norm}: {where}"
        if self.options.on_nonfinite == "skip":
            self.progress.skipped += 1
            self.log(f"step {step} skipped: {found}")
            return
        self.loader.given = self.progress.step  # the step is taken again when the run is resumed
        self.save()
        self.checkpoints.wait()
        raise TrainingError(
            f"training step {step} cannot be taken",
            found,
            f"the weights are those before the step, and the batch is in {self.out / NONFINITE}; lower the learning "
            "rate, look at the samples, or skip such steps with --on-nonfinite skip",
            subject=f"step {step}",
        )

    def _stop(self) -> None:
        self.save()
        self.checkpoints.wait()
        raise Interrupted(
            f"training of {self.run_config.name} was interrupted",
            f"{self.progress.step} of {self.run_config.train.steps} steps are done and saved in {self.out}",
            "run the same command again to resume",
            max(self.context.all(self._stop_signal())),
        )

    def _export(self, folder: Path) -> LanguageModel:
        """Write a model folder with the weights of this moment."""
        model, progress, run = self._plain_model(), self.progress, self.run_config
        facts = Facts(
            data=f"`{self.data.train.name}`: {progress.step:,} steps of {self.loader.config.batch} rows, "
            f"{progress.tokens:,} tokens, by `adlm train` (run `{run.name}`, seed {run.train.seed}).",
            figures={"nats per token, held out": self._nats} if self._nats is not None else {},
        )

        def save() -> None:
            with writing(f"a model to {folder}", folder):
                save_model(folder, model, self.config, self.data.tokenizer, facts=facts)

        self.context.on_first(save)
        return model

    def _plain_model(self) -> LanguageModel:
        """The model without shards and adapters; a sharded one on the first process only."""
        adapters = self.run_config.adapters
        if not self.parallel.sharded and adapters is None:
            return self.model
        weights = self.parallel.gathered_weights()
        return merged_model(self.config, adapters, weights) if self.context.first else self.model
