"""Decoding in blocks with a cache, beside left to right with a cache and masked sampling of whole rows.

    python -m benchmarks.sampling.blocks [--rounds 3] [--threads 1]

One network with random weights, read in the three ways, in turn within each round; the best round of each counts.
Blocks have 16 tokens, 4 of them written per pass; masked sampling writes 4 per pass too.
"""

import argparse
import time

import torch

from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.randomness import Noise
from adlm.samplers.blocks import Blocks
from adlm.samplers.canvas import Canvas
from adlm.samplers.left_to_right import LeftToRight
from adlm.samplers.ordered import Ordered
from adlm.samplers.paces import PerStep
from adlm.samplers.sampler import Sampler
from benchmarks._record import record

SHAPES = {
    "demo (width 96, 4 layers, V 300)": (96, 4, 4, 300),
    "stories15M (width 288, 6 layers, V 4,352)": (288, 6, 6, 4352),
}
PER_PASS = Ordered(pace=PerStep(4))
# Batch and length of each comparison; whole rows are slow, so they are compared once.
CASES = ((1, 256, "left to right"), (16, 256, "left to right"), (1, 1024, "whole rows"))


def seconds(sampler: Sampler, network, batch: int, length: int, seed: int) -> float:
    canvas = Canvas.blank(batch, length, network.vocabulary.mask_id)
    begin = time.perf_counter()
    sampler.sample(network, canvas, noise=Noise(seed))
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    rows = []
    for shape, (width, heads, layers, size) in SHAPES.items():
        torch.manual_seed(0)
        stack = StackConfig(width=width, heads=heads, layers=layers, attention="block")
        config = OneStageConfig(stack, tied=True, block_size=16, shift=True)
        network = config.build(Vocabulary(size, size - 1)).eval()
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.05)
        for batch, length, other in CASES:
            ways: dict[str, tuple[Sampler, object]] = {
                "blocks": (Blocks(inner=PER_PASS, size=16), network),
                other: (LeftToRight(), network) if other == "left to right" else (PER_PASS, network.in_blocks(0)),
            }
            best: dict[str, float] = {}
            for seed in range(chosen.rounds):
                for name, (sampler, read) in ways.items():
                    took = seconds(sampler, read, batch, length, seed)
                    best[name] = min(took, best.get(name, took))
            rates = {name: round(batch * length / took) for name, took in best.items()}
            ratio = round(best[other] / best["blocks"], 2)
            rows.append({"network": shape, "batch": batch, "length": length, "beside": other, "ratio": ratio, **rates})
            print(rows[-1], flush=True)
    conclusion = {f"{row['network']}, batch {row['batch']}, beside {row['beside']}": row["ratio"] for row in rows}
    method = "tokens per second; the same network read in each way, alternating, best round"
    record("sampling_blocks", rows, conclusion=conclusion, method=method)


if __name__ == "__main__":
    main()
