"""What stale anchors cost in quality and save in time: stories sampled with anchors kept for K passes.

    python -m benchmarks.sampling.stale MODEL [MODEL ...] --judge runs/demo/ar

Each model writes stories out of nothing; a left-to-right model trained on the same text says how likely they are. Low
repetitive text scores well on nats alone, so the entropy of a story's own words is reported too.
"""

import argparse
import math
import time
from collections import Counter

import torch

import adlm
from adlm.objectives.bound import mean_of, position_nats
from adlm.randomness import Noise
from adlm.samplers import Ancestral, Canvas
from adlm.types import Batch
from benchmarks._record import record

STALE = (1, 2, 4, 8, 16)


def word_entropy(row: list[int]) -> float:
    counts = Counter(row)
    return -sum(n / len(row) * math.log(n / len(row)) for n in counts.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--judge", default="runs/demo/ar")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=64)
    chosen = parser.parse_args()
    judge = adlm.load(chosen.judge)
    rows = []
    for name in chosen.models:
        model = adlm.load(name)
        roles, length = model.tokenizer.roles, model.config.packing.length
        if model.tokenizer.fingerprint != judge.tokenizer.fingerprint:
            parser.error(f"{name} and the judge have different tokenizers")
        for stale in STALE:
            canvas = Canvas.blank(chosen.rows, length, roles.mask_id)
            start = time.perf_counter()
            sampler = Ancestral(steps=chosen.steps, stale_anchors=stale)
            sample = sampler.sample(model.network, canvas, noise=Noise(0))
            seconds = time.perf_counter() - start
            number = torch.arange(chosen.rows)
            batch = Batch(sample.tokens, torch.ones_like(canvas.frozen), number, number)
            nats = mean_of(position_nats(judge.network, batch, draws=1, noise=Noise(0)).sum(-1), 0)
            texts = [row[: row.index(roles.eos_id)] if roles.eos_id in row else row for row in sample.tokens.tolist()]
            entropy = sum(word_entropy(row) for row in texts if row) / len(texts)
            rows.append(
                {
                    "model": name,
                    "K": stale,
                    "nats per story": nats.mean,
                    "±": nats.error,
                    "word entropy": entropy,
                    "anchor passes per row": sample.anchor_calls / chosen.rows,
                    "seconds": seconds,
                }
            )
            print(rows[-1], flush=True)
    record(
        "sampling_stale",
        rows,
        conclusion={"judge": chosen.judge},
        method=f"{chosen.rows} stories each, ancestral, T={chosen.steps}; nats under a left-to-right judge",
    )


if __name__ == "__main__":
    main()
