"""`fit`: train a run in a folder, on one process or many, and resume it after an interruption."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from adlm import registry
from adlm.distributed import joined, local_rank
from adlm.train.callbacks import Callback, PrintMessages
from adlm.train.curves import DrawCurves
from adlm.train.run import FitOptions, Run
from adlm.train.run_folder import check_folder, check_shared, claimed, clear_folder
from adlm.train.stop_signal import stop_signal
from adlm.train.trainer import Trainer, TrainResult

_EVERY = 10.0  # seconds between messages while data is prepared


def fit(
    run: Run,
    out: str | Path,
    *,
    device: str = "auto",
    options: FitOptions | None = None,
    callbacks: Sequence[Callback] | None = None,
) -> TrainResult:
    """Train `run` in the folder `out`, or resume it there.

    Under `torchrun` every process calls this, and together they train one model. SIGTERM and Ctrl-C finish the step,
    save, and raise `Interrupted`.

    Args:
        device: auto, cpu, cuda or mps.
        options: how the run is carried out: sharding, resuming, workers.
        callbacks: progress, trackers, samples, messages; by default messages are printed and curves are drawn.
    """
    out, options = Path(out), options or FitOptions()
    run = replace(run, imports=tuple(dict.fromkeys((*run.imports, *registry.imported()))))
    callbacks = [PrintMessages(), DrawCurves()] if callbacks is None else list(callbacks)
    check_folder(out, run, resume=options.resume, allow_change=options.allow_change)
    # Before the processes join, since it may take longer than they wait for each other.
    first_here = local_rank() == 0
    progress = _PreparationMessages(callbacks) if first_here else None
    data = run.data.prepare(cache=options.cache, verify=first_here, watch=progress)
    with ExitStack() as stack:
        context = stack.enter_context(joined(device))
        stack.enter_context(torch.random.fork_rng([context.device] if context.device.type == "cuda" else []))
        context.on_first(lambda: stack.enter_context(claimed(out)))
        check_shared(out, context)
        stop = stack.enter_context(stop_signal(_announcing(callbacks if context.first else ())))
        if options.resume == "never":
            context.on_first(lambda: clear_folder(out))
        trainer = Trainer(run, data, out, context, options=options, callbacks=callbacks, stop_signal=stop)
        stack.callback(trainer.close)
        return trainer.run()


def _announcing(callbacks: Sequence[Callback]) -> Callable[[signal.Signals], None]:
    """Logs that a signal will stop the run."""

    def announce(received: signal.Signals) -> None:
        for callback in callbacks:
            callback.log(f"{received.name}: finishing this step, then saving; Ctrl-C again stops at once")

    return announce


class _PreparationMessages:
    """Logs how far the data is: preparing a large corpus takes longer than training a small model."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks, self.logged = callbacks, time.monotonic()

    def __call__(self, documents: int, characters: int, rows: int) -> None:
        if time.monotonic() - self.logged >= _EVERY:
            self.logged = time.monotonic()
            size = f"{documents:,} documents, {characters / 1e6:,.0f} M characters, {rows:,} rows"
            for callback in self.callbacks:
                callback.log(f"preparing data: {size}")
