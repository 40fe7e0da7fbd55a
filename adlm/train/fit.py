"""`fit`: train a run in a folder, on one process or many, and resume it after an interruption."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from adlm import registry
from adlm.distributed import joined, local_rank
from adlm.train.callbacks import Callback, PrintMessages
from adlm.train.curves import DrawCurves
from adlm.train.run import FitOptions, Run
from adlm.train.run_folder import check_folder, check_shared, claimed, clear_folder
from adlm.train.trainer import Trainer, TrainResult

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
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
        stop = stack.enter_context(_stop_signals(callbacks if context.first else ()))
        if options.resume == "never":
            context.on_first(lambda: clear_folder(out))
        trainer = Trainer(run, data, out, context, options=options, callbacks=callbacks, stop_signal=stop)
        stack.callback(trainer.close)
        return trainer.run()


@contextmanager
def _stop_signals(callbacks: Sequence[Callback]) -> Iterator[Callable[[], int]]:
    """Inside, SIGTERM and Ctrl-C are noted: yields a function that returns the signal's number, 0 before.

    A second Ctrl-C stops at once. Signals belong to the main thread; in any other nothing is noted.
    """
    received = 0
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        first, received = not received, number
        if first:
            # A signal may come in the middle of a print, and Python refuses another one then.
            with suppress(RuntimeError):
                for callback in callbacks:
                    callback.log(
                        f"{signal.Signals(number).name}: finishing this step, then saving; Ctrl-C again stops at once"
                    )

    before: dict[signal.Signals, Any] = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield lambda: received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
