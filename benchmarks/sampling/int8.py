"""What products in 8 bits save in time and cost in the bound.

    python -m benchmarks.sampling.int8 runs/demo/adlm runs/demo/ar

Time: the quickest of some passes of the ADLM of `benchmarks.sampling.speed`, one row of 1,024 tokens, in turn with
float32.
Bound: of each model named, on the same 200 held-out stories with the same masks.
"""

import argparse
import math
import os
import time
from pathlib import Path

import torch

import adlm
from adlm.data.config import Corpus
from adlm.objectives.likelihood import table_perplexity
from adlm_studies.experiments.demo import Demo
from adlm_studies.experiments.training import held_out
from benchmarks._record import record
from benchmarks.sampling.speed import FULL, LENGTH, build


def pass_seconds(rounds: int) -> dict[str, float]:
    model = build(**FULL)
    tokens = torch.randint(0, FULL["size"] - 1, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    output_mask = torch.arange(LENGTH)[None] == 0
    best = {"float32": math.inf, "int8": math.inf}
    for name in [*best] * rounds:
        model.use_int8(name == "int8")
        with model.inference_weights():
            model.features(tokens, output_mask=output_mask)  # makes what is made once
            start = time.perf_counter()
            model.features(tokens, output_mask=output_mask)
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="trained on stories")
    parser.add_argument("--rounds", type=int, default=6)
    chosen = parser.parse_args()
    took = pass_seconds(chosen.rounds)
    rows = [{"what": "seconds per pass", **took, "±": 0.0}]
    for name in chosen.models:
        model = adlm.load(name)
        network, found = model.network, {}
        data = Demo().runs()["ADLM"].data
        assert isinstance(data, Corpus)
        table = held_out(data, model.tokenizer, Path("runs/demo/data"))
        for precision in took:
            network.use_int8(precision == "int8")
            found[precision] = table_perplexity(network, table, num_rows=200, draws=4).nats_per_row
        means = {precision: each.mean for precision, each in found.items()}
        rows.append({"what": f"nats per story, {name}", **means, "±": found["float32"].error})
    record(
        "sampling_int8",
        rows,
        conclusion={"a pass": f"{took['float32'] / took['int8']:.2f} x"},
        method=f"width 512, 8+4 layers, one row of {LENGTH}, {os.environ.get('OMP_NUM_THREADS', '?')} threads; "
        "200 held-out stories, 4 draws, the same masks",
    )


if __name__ == "__main__":
    main()
