"""How often a killed run ends as if it had not been killed.

    python -m benchmarks.train.kill [--kills 50] [--restarts 20] [--seed 0]

Runs are killed with SIGKILL at random moments, while they start, train, validate and write checkpoints (one after each
step), and started again until they are done; then runs on two processes, of which one is killed and torchrun starts
both again. Weights, the best model and metrics are compared with those of a run that was left alone, to the last bit.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks._record import record
from tests.train.processes import (
    ALL_THE_SAME,
    Process,
    checkpoint_steps,
    larger,
    same,
    steps_done,
    train,
    train_on_two,
)

ALONE = larger(steps=40, width=192)
TOGETHER = larger(steps=40, width=64)


def killed_alone(kills: int, luck: random.Random, folder: Path, *options: str) -> dict[str, Any]:
    """Runs of one process until so many kills have been made."""
    expected = folder / "whole"
    assert train(ALONE, expected).wait() == 0
    made = runs = equal = starting = writing = lost = 0
    while made < kills:
        out = folder / f"killed-{runs}"
        while True:
            process = train(ALONE, out, *options)
            before = steps_done(out)
            if luck.random() < 0.2:
                time.sleep(luck.uniform(0, 6))  # most of this is imports, then the checkpoint is read
                going = process.inner.poll() is None
            else:
                going = process.reached(before + luck.randint(1, 6))
                time.sleep(luck.uniform(0, 0.5))
                going = going and process.inner.poll() is None
            if not going:
                break
            writing += process.kill()
            made += 1
            starting += steps_done(out) == before
            newest = max(checkpoint_steps(out), default=0)
            lost = max(lost, steps_done(out) - newest)
            print(f"kill {made}: step {steps_done(out)}, newest checkpoint {newest}", file=sys.stderr)
        assert process.wait() == 0, process.said()
        assert "damaged" not in process.said(), process.said()
        runs, equal = runs + 1, equal + (same(out, expected) == ALL_THE_SAME)
        print(f"run {runs}: {same(out, expected)}", file=sys.stderr)
    return {
        "runs": runs,
        "kills": made,
        "before the first step of a sitting": starting,
        "while a checkpoint was being written": writing,
        "most steps done again": lost,
        "runs that ended the same": equal,
    }


def killed_together(restarts: int, luck: random.Random, folder: Path) -> dict[str, Any]:
    """Runs of two processes, in each of which one is killed once."""
    expected = folder / "whole"
    assert train_on_two(TOGETHER, expected).wait() == 0
    equal = ended = first = 0
    seconds = []
    for number in range(restarts):
        out = folder / f"restarted-{number}"
        process = train_on_two(TOGETHER, out, restarts=3)
        assert process.reached(luck.randint(1, 25)), process.said()
        time.sleep(luck.uniform(0, 0.3))
        rank, begun = luck.randrange(2), _beginnings(process)
        os.kill(process.workers()[rank], signal.SIGKILL)
        killed = time.monotonic()
        process.until(lambda: _beginnings(process) > begun)  # noqa: B023
        seconds.append(time.monotonic() - killed)
        ended += process.wait() == 0
        first += rank == 0
        equal += same(out, expected) == ALL_THE_SAME
        print(f"restart {number + 1}: {seconds[-1]:.1f} s, {same(out, expected)}", file=sys.stderr)
    return {
        "runs": restarts,
        "kills": restarts,
        "of the first process": first,
        "exit code 0": ended,
        "seconds from the kill until training resumed, median and maximum": [
            round(statistics.median(seconds), 1),
            round(max(seconds), 1),
        ],
        "runs that ended the same": equal,
    }


def _beginnings(process: Process) -> int:
    """How often the run has begun, at a checkpoint or without one."""
    return process.said().count("going on after step") + process.said().count(" step 1/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    luck = random.Random(options.seed)
    found = {}
    with TemporaryDirectory() as name:
        for label, call in (
            ("one process", lambda folder: killed_alone(options.kills, luck, folder)),
            ("one process, 2 workers", lambda folder: killed_alone(options.kills // 5, luck, folder, "--workers", "2")),
            ("two processes under torchrun", lambda folder: killed_together(options.restarts, luck, folder)),
        ):
            folder = Path(name) / label.replace(" ", "-")
            folder.mkdir()
            found[label] = call(folder)
    rows = [
        {"what": label, **{key: figures[key] for key in ("kills", "runs", "runs that ended the same")}}
        for label, figures in found.items()
    ]
    method = (
        f"SIGKILL at random moments (seed {options.seed}), a checkpoint after each of {ALONE.train.steps} steps; a run "
        "counts as the same if weights, best model and metrics equal those of an uninterrupted run bit for bit"
    )
    record("train_kill", rows, conclusion=found, method=method)


if __name__ == "__main__":
    main()
