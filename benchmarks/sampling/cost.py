"""What does the second stage cost? Tokens per second of AR, MDLM, ADLM and A2R, against steps and batch.

    python -m benchmarks.sampling.cost [--length 1024] [--rounds 3]

The networks have width 512 and GPT-2's vocabulary. A masked model's time is that of its network passes: the quickest of
some passes with r rows, times how often a step of the sampler changes just r rows of the batch, which is counted
over a trajectory without a network. AR and A2R have a cache; their time is that of a token with the row half written.
"""

import argparse
import math
import os
import time
from collections import Counter
from dataclasses import replace

import torch

from adlm.models.language_model import LanguageModel
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.randomness import Noise
from adlm.samplers import Ancestral, Canvas, LeftToRight
from benchmarks._record import record

SIZE = 50_258
STACK = StackConfig(512, 8, 8, condition=128)
STEPS, BATCHES = (32, 128, 512, 1024, 4096), (1, 2, 4, 8, 16)


def networks() -> dict[str, NetworkConfig]:
    causal = replace(STACK, attention="causal", condition=0)
    return {
        "AR, 12 layers, cached": OneStageConfig(replace(causal, layers=12)),
        "A2R, 8 + 4, cached": TwoStageConfig(causal, 4),
        "MDLM, 8 layers": OneStageConfig(STACK),
        "MDLM, 12 layers": OneStageConfig(replace(STACK, layers=12)),
        "ADLM, 8 + 4": TwoStageConfig(STACK, 4),
    }


def changes(rows: int, length: int, steps: int) -> Counter[int]:
    """How many steps of ancestral sampling change r rows, by r."""
    hit = Noise(0).uniform(torch.arange(rows), length)
    step = ((1 - hit) * steps).long().clamp_max(steps - 1)
    changed = torch.zeros(rows, steps, dtype=torch.bool).scatter_(1, step, True)
    return Counter(changed.sum(0).tolist())


def quickest(function, rounds: int) -> float:
    best = math.inf
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def pass_seconds(model: LanguageModel, rows: int, length: int, fresh: int, rounds: int) -> float:
    """One step in which so many tokens of each row are revealed."""
    state = Ancestral().start(model, Canvas.blank(rows, length, SIZE - 1), noise=Noise(0))
    where = (torch.arange(length) % max(1, length // fresh) == 0).expand(rows, -1)
    return quickest(lambda: state.predict(where, 1.0, 0), rounds)


def masked_rate(model: LanguageModel, rows: int, length: int, steps: int, rounds: int) -> float:
    counts = changes(rows, length, steps)
    sizes = [2**k for k in range(rows.bit_length())]
    took = {r: pass_seconds(model, r, length, max(1, length // steps), rounds) for r in sizes}

    def seconds(r: int) -> float:
        low = max(size for size in sizes if size <= r)
        high = min(size for size in sizes if size >= r)
        return took[low] if low == high else took[low] + (took[high] - took[low]) * (r - low) / (high - low)

    return rows * length / sum(count * seconds(r) for r, count in counts.items() if r)


def cached_rate(model: LanguageModel, rows: int, length: int, rounds: int) -> float:
    """Tokens per second with the row half written: 33 tokens after it less 1, over 32."""
    tokens = torch.randint(0, SIZE - 1, (rows, length // 2), generator=torch.Generator().manual_seed(0)).tolist()

    def seconds(more: int) -> float:
        canvas = Canvas.continuing(tokens, length // 2 + more, SIZE - 1)
        return quickest(lambda: LeftToRight().sample(model, canvas, noise=Noise(0)), rounds)

    return rows * 32 / (seconds(33) - seconds(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    table: dict[str, dict[str, float]] = {}
    for name, config in networks().items():
        torch.manual_seed(0)
        model = config.build(Vocabulary(SIZE, SIZE - 1)).eval()
        rates: dict[str, float] = {}
        with model.inference_weights():
            for steps in STEPS:
                if model.causal:
                    rates[f"T={steps}"] = rates.get("T=32") or cached_rate(model, 1, chosen.length, chosen.rounds)
                else:
                    rates[f"T={steps}"] = masked_rate(model, 1, chosen.length, steps, chosen.rounds)
            for rows in BATCHES[1:]:
                if model.causal:
                    rates[f"batch {rows}"] = cached_rate(model, rows, chosen.length, chosen.rounds)
                else:
                    rates[f"batch {rows}"] = masked_rate(model, rows, chosen.length, 128, max(1, chosen.rounds - 1))
        table[name] = rates
        print(name, {key: round(value, 2) for key, value in rates.items()}, flush=True)
    stages, one, deep = (table[name] for name in ("ADLM, 8 + 4", "MDLM, 8 layers", "MDLM, 12 layers"))
    record(
        "sampling_cost",
        [{"tokens per second": name, **rates} for name, rates in table.items()],
        conclusion={
            "the second stage's fraction of the time, T=128": f"{1 - stages['T=128'] / one['T=128']:.0%}",
            "ADLM against an MDLM of as many layers, T=128": f"{stages['T=128'] / deep['T=128']:.2f} x its tokens",
        },
        method=f"width 512, V={SIZE:,}, L={chosen.length}, T at batch 1 and batches at T=128, float32, "
        f"{os.environ.get('OMP_NUM_THREADS', torch.get_num_threads())} threads",
    )


if __name__ == "__main__":
    main()
