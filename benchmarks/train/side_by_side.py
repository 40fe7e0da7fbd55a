"""Two models of the demo side by side with one thread each, and one after the other with all threads.

    python -m benchmarks.train.side_by_side [--rounds 3] [--steps 60]

Both ways take turns, each in fresh processes. The time is that from the first step of either model to the last step of
either; importing, preparing data and validation are not in it.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from adlm.recipes.small import demo
from adlm.train.callbacks import Callback
from adlm.train.fit import fit
from adlm.train.metrics import StepMetrics
from adlm.train.run import FitOptions, ValidationConfig
from adlm_studies.jobs import default_workers, run_jobs
from adlm_studies.worker_processes import ProcessJob
from benchmarks._record import record

KINDS = ("mdlm", "adlm")
WARM_UP = 5


class _Clock(Callback):
    """When the steps after the first few began and ended, by a clock that all processes share."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0

    def on_step(self, metrics: StepMetrics) -> None:
        self.ended = time.monotonic()
        if metrics.step == WARM_UP:
            self.began = self.ended


def train(tell: Callable[[Any], None], kind: str, folder: Path, steps: int) -> tuple[float, float]:
    run = demo(kind)
    validation = ValidationConfig(every=0, num_rows=16, draws=1)
    run = replace(run, train=replace(run.train, steps=WARM_UP + steps), validation=validation)
    clock = _Clock()
    fit(run, folder / kind, options=FitOptions(resume="never", cache=folder / "data"), callbacks=[clock])
    return clock.began, clock.ended


def seconds(folder: Path, steps: int, workers: int) -> float:
    """Of all steps of both models."""
    jobs = [ProcessJob(kind, train, (kind, folder, steps)) for kind in KINDS]
    spans = run_jobs(jobs, workers=workers).values()
    if workers == 1:
        return sum(ended - began for began, ended in spans)
    return max(ended for _, ended in spans) - min(began for began, _ in spans)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    chosen = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line sets it
    ways: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(chosen.rounds):
            for workers, taken in ways.items():
                taken.append(seconds(Path(folder), chosen.steps, workers))
    tokens = len(KINDS) * chosen.steps * demo(KINDS[0]).train.tokens_per_step
    names = {1: f"in turn, {torch.get_num_threads()} threads", 2: "side by side, 1 thread each"}
    rows = [
        {
            "way": names[workers],
            "tokens per second, best": tokens / min(taken),
            "tokens per second, median": tokens / statistics.median(taken),
        }
        for workers, taken in ways.items()
    ]
    method = (
        f"{' and '.join(f'demo-{kind}' for kind in KINDS)}, {chosen.steps} steps each after {WARM_UP}, {chosen.rounds} "
        f"rounds in which both ways take turns, {default_workers()} cores"
    )
    best = min(ways[1]) / min(ways[2])
    middle = statistics.median(ways[1]) / statistics.median(ways[2])
    conclusion = {"side by side is faster": f"{best:.2f} times by the best rounds, {middle:.2f} by the medians"}
    record("train_side_by_side", rows, conclusion=conclusion, method=method)


if __name__ == "__main__":
    main()
