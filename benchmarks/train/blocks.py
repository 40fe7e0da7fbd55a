"""What does block diffusion cost in training? A step over two copies of each row beside one of MDLM.

    python -m benchmarks.train.blocks [--rounds 7]

Both read the same tokens with the same network, but for its attention. Forward and backward pass of the loss, without
the optimizer, one thread, the two in turn; ratios are those of the least CPU time, since other programs may run.
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import CountMasking
from adlm.models.costs import training_work
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.objectives.nelbo import Nelbo
from adlm.objectives.objective import Objective
from adlm.randomness import Noise
from adlm.types import Batch
from benchmarks._record import record

SMALL = {"convolution": 5, "query_key_norm": True}
# Stack, vocabulary, rows and their length.
SETTINGS = {
    "demo, width 88": (StackConfig(88, 4, 5, **SMALL), 331, 16, 64),
    "width 256": (StackConfig(256, 4, 6, **SMALL), 8192, 4, 256),
    "width 256, published": (StackConfig(256, 4, 6, condition=128), 8192, 4, 256),
}
SIZES = (4, 16)


def step(network: NetworkConfig, objective: Objective, vocabulary: Vocabulary, batch: Batch) -> Callable[[int], None]:
    """A function that computes the gradients of the step of this number."""
    torch.manual_seed(0)
    model = network.build(vocabulary).train()

    def run(number: int) -> None:
        model.zero_grad()
        objective(model, batch, progress=0.5, noise=Noise(number)).loss_sum.backward()

    return run


def ratios(stack: StackConfig, size: int, rows: int, length: int, rounds: int) -> list[dict[str, float | str]]:
    vocabulary = Vocabulary(size, size - 1)
    tokens = torch.randint(size - 1, (rows, length), generator=torch.Generator().manual_seed(0))
    numbers = torch.arange(rows)
    batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), numbers, numbers)
    mdlm = OneStageConfig(stack, tied=True)
    networks: dict[str, tuple[NetworkConfig, Objective]] = {"MDLM": (mdlm, Nelbo(CountMasking()))}
    for b in SIZES:
        for shift in (False, True):
            network = replace(mdlm, stack=replace(stack, attention="block"), block_size=b, shift=shift)
            networks[f"b = {b}{', shifted' if shift else ''}"] = network, Nelbo(BlockMasking((b,)))
    steps = {name: step(*each, vocabulary, batch) for name, each in networks.items()}
    best = dict.fromkeys(steps, math.inf)
    for number in range(rounds + 1):
        for name, run in steps.items():
            start = time.process_time()
            run(number)
            if number:  # the first warms up
                best[name] = min(best[name], time.process_time() - start)

    def work(network: NetworkConfig) -> int:
        scored = (network.block_size + 1) / (2 * network.block_size) if network.block_size else 0.5
        return training_work(network, vocabulary, length=length, rows=rows, scored=scored)

    return [
        {
            "model": name,
            "ms per step": best[name] * 1e3,
            "of MDLM": best[name] / best["MDLM"],
            "work, of MDLM": work(network) / work(mdlm),
        }
        for name, (network, _) in networks.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [{"setting": name, **row} for name, setting in SETTINGS.items() for row in ratios(*setting, options.rounds)]
    highest = max(float(row["of MDLM"]) for row in rows)
    record(
        "train_blocks",
        rows,
        conclusion={"highest ratio": f"{highest:.2f}, goal at most 1.8"},
        method=f"CPU time, least of {options.rounds} steps, in turn, one thread",
    )


if __name__ == "__main__":
    main()
