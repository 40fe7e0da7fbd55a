"""Training steps of this checkout and of another one, in turn: how many times faster this one is.

    python -m benchmarks.train.against PATH [--sizes demo-mdlm box-adlm wide-adamw] [--rounds 9] [--side-by-side]

Both keep a process each that takes some steps when told to, one after the other, so that what else the machine is doing
disturbs both alike; a figure is the median over rounds of the ratio within a round. One thread each, float32, by the
time of the processor. With --side-by-side, the demo's models have a second figure, by the clock: two processes of this
checkout at the same time, one thread each, against one of the other as it is started without options, with all threads
and the precision that it chooses. That needs a machine that does nothing else: threads that wait for each other beside
busy neighbors take many times as long.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks._record import record
from benchmarks.train.worker import SIZES

HERE = Path(__file__).resolve().parents[2]
STEPS = {"demo": 5, "box": 1, "wide": 1}  # of a turn


class Worker:
    """A process that trains in a checkout; `threads` None leaves their number to it."""

    def __init__(self, checkout: Path, size: str, *, precision: str = "float32", threads: int | None = 1) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        environment["PYTHONPATH"] = str(checkout)
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        command = [sys.executable, str(HERE / "benchmarks/train/worker.py"), size, precision]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=checkout, env=environment
        )
        self.tokens = int(self._line()[1])

    def begin(self, steps: int) -> None:
        """Tell it to take some steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()

    def seconds(self, *, cpu: bool) -> float:
        """What the steps took, when they are done: by the clock, or of the processor."""
        return float(self._line()[cpu])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _line(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with code {self.process.wait()}")
        return line.split()


def tokens_per_second(workers: list[Worker], steps: int, *, cpu: bool) -> float:
    """Of all workers at the same time."""
    for worker in workers:
        worker.begin(steps)
    return sum(worker.tokens * steps / worker.seconds(cpu=cpu) for worker in workers)


def compared(
    name: str, before: list[Worker], after: list[Worker], steps: int, rounds: int, *, cpu: bool
) -> dict[str, Any]:
    """Both in turn, so many rounds; the workers end with it."""
    try:
        found = [[tokens_per_second(side, steps, cpu=cpu) for side in (before, after)] for _ in range(rounds)]
    finally:
        for worker in (*before, *after):
            worker.close()
    ratios = sorted(new / old for old, new in found)
    return {
        "what": name,
        "before, tokens/s": statistics.median(old for old, _ in found),
        "after, tokens/s": statistics.median(new for _, new in found),
        "ratio": round(statistics.median(ratios), 2),
        "from": round(ratios[len(ratios) // 4], 2),
        "to": round(ratios[-1 - len(ratios) // 4], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("against", type=Path, help="a checkout of another version")
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=["demo-mdlm", "demo-adlm", "box-adlm", "wide-adamw"]
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--side-by-side", action="store_true", help="also two of ours against one of theirs")
    options = parser.parse_args()
    other, rounds = options.against.resolve(), options.rounds
    rows = []
    for size in options.sizes:
        steps = STEPS[size.split("-")[0]]
        rows.append(
            compared(f"{size}, one thread", [Worker(other, size)], [Worker(HERE, size)], steps, rounds, cpu=True)
        )
        if options.side_by_side and size.startswith("demo"):
            one = [Worker(other, size, precision="default", threads=None)]
            two = [Worker(HERE, size, precision="default") for _ in range(2)]
            rows.append(
                compared(f"two {size} side by side, against one as it was run", one, two, steps, rounds, cpu=False)
            )
    method = (
        f"in turn, {rounds} rounds, median and quartiles of the ratio; 16 rows of 64, width 96 (demo); 64 rows of 64, "
        "width 160 (box); 8 rows of 256, width 512, 8 + 4 layers, V = 50,258 (wide)"
    )
    commit = ["git", "-C", str(other), "rev-parse", "--short", "HEAD"]
    before = subprocess.run(commit, capture_output=True, text=True).stdout.strip()
    conclusion = {row["what"]: row["ratio"] for row in rows} | {"before": before}
    record("train_against", rows, conclusion=conclusion, method=method)


if __name__ == "__main__":
    main()
