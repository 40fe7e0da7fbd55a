"""What does a sampler cost beside its network? Milliseconds of its own work per row and pass, before and after.

    python -m benchmarks.sampling.overhead [MODEL] [--rounds 5] [--against CHECKOUT]
        [--only CASE ...] [--batches 1 16]

A sample's own work is its processor time less that spent in the network, the least of some rounds, divided by the rows
that went through the network. It is measured with the network in between, which leaves nothing of the sampler in the
caches. With `--against`, the same samples are drawn by another checkout of this repository, in turns.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from adlm.memory import keep_freed_memory
from adlm.randomness import Noise
from adlm.samplers import Canvas
from adlm.samplers.network import NetworkWrapper
from adlm.text_model import load

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "left to right": ("left-to-right", {}),
    "left to right, top-p 0.9": ("left-to-right", {"top_p": 0.9}),
    "ancestral, 32 steps": ("ancestral", {"steps": 32}),
    "ancestral, 32 steps, top-p 0.9": ("ancestral", {"steps": 32, "top_p": 0.9}),
    "ancestral, 1,000 steps": ("ancestral", {"steps": 1000}),
    "ancestral in blocks of 16": ("ancestral", {"steps": 8, "block_size": 16}),
    "first-hitting": ("first-hitting", {}),
    "remdm-cap, 32 steps": ("remdm-cap", {"steps": 32}),
    "remdm-conf, 32 steps": ("remdm-conf", {"steps": 32}),
    "confidence, 32 steps": ("confidence", {"steps": 32}),
    "confidence, 32 steps, top-p 0.9": ("confidence", {"steps": 32, "top_p": 0.9}),
    "threshold": ("threshold", {}),
    "entropy-bounded": ("entropy-bounded", {}),
    "analytic, 32 steps": ("analytic", {"steps": 32}),
}
BATCHES = (1, 16)


def _clocked(name: str) -> Any:
    def method(self: "Clocked", *given: Any, **named: Any) -> Any:
        began = time.thread_time()
        found = getattr(self.network, name)(*given, **named)
        self.spent[0] += time.thread_time() - began
        return found

    return method


class Clocked(NetworkWrapper):
    """A network that adds up its processor time, that of its other readings included."""

    def __init__(self, network: Any, spent: list[float] | None = None) -> None:
        super().__init__(network)
        self.spent = [0.0] if spent is None else spent

    def in_blocks(self, size: int) -> "Clocked":
        return Clocked(self.network.in_blocks(size), self.spent)

    extend = _clocked("extend")
    read_block = _clocked("read_block")
    features = _clocked("features")
    anchor_stage = _clocked("anchor_stage")
    denoise = _clocked("denoise")
    logits = _clocked("logits")
    anchor_logits = _clocked("anchor_logits")


def own_milliseconds(model: Any, case: str, rows: int) -> float:
    """Per row and pass."""
    name, options = CASES[case]
    network = Clocked(model.network)
    canvas = Canvas.blank(rows, model.config.packing.length, network.vocabulary.mask_id)
    sampler = model.sampler(name, **options)
    if name == "left-to-right" and not (network.causal or network.shifted):
        return math.nan
    began = time.thread_time()
    sample = sampler.sample(network, canvas, noise=Noise(0))
    return 1000 * (time.thread_time() - began - network.spent[0]) / sample.network_calls


def work(model_name: str) -> None:
    """Measure what is asked for, a line each, until there is no more."""
    keep_freed_memory()  # as the command line and the server do
    torch.set_num_threads(1)
    model = load(model_name)
    model.network.eval()
    for line in sys.stdin:
        case, rows = json.loads(line)
        print(own_milliseconds(model, case, rows), flush=True)


class Checkout:
    """A process that measures with the package of one checkout."""

    def __init__(self, root: Path, model: str) -> None:
        command = [sys.executable, __file__, model, "--work"]
        here = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, cwd=root, env=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, case: str, rows: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([case, rows]) + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="box")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout, the figures before")
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="CASE", help="of the cases; by default all")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        work(chosen.model)
        return
    from benchmarks._record import record

    sides = {"ms": Path(__file__).parents[2].resolve()}
    if chosen.against is not None:
        sides = {"ms before": chosen.against.resolve(), **sides}
    processes = {side: Checkout(root, chosen.model) for side, root in sides.items()}
    table = []
    for case in chosen.only or CASES:
        for rows in chosen.batches:
            found: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(chosen.rounds):
                for side, process in processes.items():
                    found[side].append(process.measure(case, rows))
            if math.isnan(found["ms"][0]):
                continue  # this model cannot be sampled so
            table.append({"sampler": case, "batch": rows, **{side: min(each) for side, each in found.items()}})
            print(table[-1], flush=True)
    for process in processes.values():
        process.process.communicate()
    conclusion: dict[str, Any] = {"most": f"{max(row['ms'] for row in table):.2f} ms per row and pass"}
    if "ms before" in sides:
        ratios = sorted(row["ms before"] / row["ms"] for row in table)
        conclusion["times less than before"] = (
            f"{ratios[0]:.1f} to {ratios[-1]:.1f}, median {ratios[len(ratios) // 2]:.1f}"
        )
    record(
        "sampling_overhead",
        table,
        conclusion=conclusion,
        method=f"processor time outside the network per row and pass, least of {chosen.rounds} rounds in turns, "
        f"model {chosen.model}, 1 thread",
    )


if __name__ == "__main__":
    main()
