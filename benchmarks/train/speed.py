"""How fast AR, MDLM and ADLM of matched size train, in how much memory, and what the trainer adds to the bare loop.

    python -m benchmarks.train.speed [--rounds 5] [--steps 10]

The bare loop is what one writes by hand: batch, forward, backward, clip, AdamW. The trainer does the same steps and
keeps metrics, in turn with the bare loop in one process; in the middle of its steps it begins a checkpoint, whose cost
is what those steps take longer than the median. Peak memory is taken in a process of its own.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from adlm.data.loader import LoaderConfig
from adlm.data.synthetic import Synthetic
from adlm.models.costs import count_parameters, training_work
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.sizes import published
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.randomness import Noise
from adlm.recipes.matched import same_cost, same_parameters
from adlm.train.fit import fit
from adlm.train.lr_schedules import Constant
from adlm.train.metrics import read_metrics
from adlm.train.optimizers import AdamW
from adlm.train.run import CheckpointConfig, Run, TrainConfig, ValidationConfig
from benchmarks._record import record

VOCABULARY, LENGTH, ROWS = 8192, 256, 4


def models() -> dict[str, tuple[NetworkConfig, Objective]]:
    adlm = published("adlm", "micro", dropout=0.0)
    words = Vocabulary(VOCABULARY, VOCABULARY - 1)
    matched = same_parameters(adlm, words)
    cheap = same_cost(adlm, words, length=LENGTH, rows=ROWS, anchors=1.0)
    causal = matched.variant(attention="causal", condition=0)
    return {
        "AR, parameters of ADLM": (causal, CrossEntropy()),
        "MDLM, parameters of ADLM": (matched, Nelbo()),
        "MDLM, work of ADLM": (cheap, Nelbo()),
        "ADLM": (adlm, Anelbo()),
    }


def run_of(name: str, steps: int) -> Run:
    network, objective = models()[name]
    train = TrainConfig(steps, ROWS * LENGTH, ROWS, AdamW(), Constant(1))
    data = Synthetic(VOCABULARY, LENGTH, count=2000)
    validation = ValidationConfig(every=0, num_rows=1, draws=1)
    return Run("speed", data, network, objective, train, validation, CheckpointConfig(max(1, steps // 2)))


def bare(run: Run, model: nn.Module, loader, optimizer, first: int) -> list[float]:
    """Seconds of each step, written by hand."""
    noise, seconds = Noise(0).fork("train"), []
    for step in range(first, first + run.train.steps):
        start = time.perf_counter()
        batch = loader.batch(step)
        terms = run.objective(model, batch, progress=0.5, noise=noise)  # type: ignore[arg-type]
        (terms.loss_sum / terms.tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), run.train.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
    return seconds


def trainer(run: Run, folder: Path) -> list[float]:
    """Seconds of each step but the first, by the trainer's own record."""
    fit(run, folder, device="cpu", callbacks=[])
    times = [line["machine"]["seconds"] for line in read_metrics(folder / "metrics.jsonl") if "loss" in line]
    return [after - before for before, after in pairwise(times)]


def measure(name: str, rounds: int, steps: int) -> dict[str, float]:
    """Of one model."""
    network, objective = models()[name]
    data = Synthetic(VOCABULARY, LENGTH, count=2000)
    train = TrainConfig(steps, ROWS * LENGTH, ROWS, AdamW(), Constant(1))
    run = Run(
        "speed",
        data,
        network,
        objective,
        train,
        ValidationConfig(every=0, num_rows=1, draws=1),
        CheckpointConfig(10**6),
    )
    prepared = data.prepare()
    model = network.build(Vocabulary(VOCABULARY, VOCABULARY - 1)).train()
    (optimizer,) = AdamW().build(model)
    loader = LoaderConfig(ROWS).build(prepared.train)
    bare(replace(run, train=replace(train, steps=2)), model, loader, optimizer, 0)
    ours: list[float] = []
    theirs: list[float] = []
    saving: list[float] = []
    for i in range(rounds):
        hand = bare(run, model, loader, optimizer, 2 + i * steps)
        with tempfile.TemporaryDirectory() as folder:
            machine = trainer(run, Path(folder))
        ours += machine
        theirs += hand
        saving.append(sum(machine) - len(machine) * statistics.median(machine))
    return {
        "seconds": statistics.median(ours),
        "bare": statistics.median(theirs),
        # The quickest steps of each: what disturbs a machine only ever adds.
        "ratio": min(ours) / min(theirs),
        "saving": statistics.median(saving),
    }


def peak(name: str) -> float:
    """Megabytes above those of the imports, after three steps of the trainer."""
    run = run_of(name, 3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        fit(run, folder, device="cpu", callbacks=[])
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        found = {"peak": peak(chosen.one)} if chosen.memory else measure(chosen.one, chosen.rounds, chosen.steps)
        print(json.dumps(found))
        return
    rows = []
    for name, (network, objective) in models().items():
        words = Vocabulary(VOCABULARY, VOCABULARY - 1)
        command = [sys.executable, "-m", "benchmarks.train.speed", "--one", name]
        command += ["--rounds", str(chosen.rounds), "--steps", str(chosen.steps)]
        found = {}
        for more in ([], ["--memory"]):
            done = subprocess.run([*command, *more], check=True, capture_output=True, text=True, env=os.environ)
            found |= json.loads(done.stdout.splitlines()[-1])
        causal = isinstance(objective, CrossEntropy)
        anchors = 1.0 if isinstance(objective, Anelbo) else 0.0
        work = training_work(network, words, length=LENGTH, rows=ROWS, scored=1.0 if causal else 0.5, anchors=anchors)
        rows.append(
            {
                "model": name,
                "parameters, M": count_parameters(network, words).total / 1e6,
                "tokens per second": ROWS * LENGTH / found["seconds"],
                "GFLOP/s": work / found["seconds"] / 1e9,
                "peak memory, MB": found["peak"],
                "seconds per step": found["seconds"],
                "bare loop": found["bare"],
                "trainer / bare": found["ratio"],
                "a checkpoint, seconds": found["saving"],
            }
        )
    method = (
        f"published networks, micro, V={VOCABULARY:,}, {ROWS} rows of {LENGTH}, float32, AdamW, "
        f"{torch.get_num_threads()} threads; medians of {chosen.rounds} rounds of {chosen.steps} steps in turn with "
        "the bare loop, their ratio that of the quickest steps; GFLOP/s counts every token as an anchor"
    )
    worst = max(row["trainer / bare"] for row in rows)
    conclusion = {"the trainer adds, at most": f"{worst - 1:+.1%} to the bare forward, backward, clip and AdamW"}
    record("train_speed", rows, conclusion=conclusion, method=method)


if __name__ == "__main__":
    main()
