"""What leaving padding out of the work gains, by the fraction of text in a batch.

    python -m benchmarks.core.padding [--rounds 5]

A training step's forward and backward pass of MDLM on rows of 128 positions, with texts of random length as sentences
have them, once with the padding computed and once with texts put side by side on fewer rows. Same loss.
"""

import argparse
import statistics
import time

import torch

from adlm.diffusion.corruption import CountMasking
from adlm.models import unpadded
from adlm.models.network import Vocabulary
from adlm.models.sizes import published
from adlm.objectives.nelbo import Nelbo
from adlm.randomness import Noise
from adlm.types import Batch
from benchmarks._record import record

ROWS, LENGTH, SIZE = 64, 128, 30_523


def rows_of(mean: float) -> Batch:
    """Lengths are log-normal, as those of sentences nearly are, cut at the row."""
    generator = torch.Generator().manual_seed(0)
    lengths = (mean * torch.exp(0.5 * torch.randn(ROWS, generator=generator))).round().clamp(2, LENGTH).long()
    tokens = torch.randint(0, SIZE - 1, (ROWS, LENGTH), generator=generator)
    number = torch.arange(ROWS)
    return Batch(tokens, torch.arange(LENGTH) < lengths[:, None], number, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    model = published("mdlm", "micro", dropout=0.0).build(Vocabulary(SIZE, SIZE - 1)).train()
    with torch.no_grad():  # away from the zeros it starts from, where blocks do nothing
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    table = []
    for mean in (15, 28, 60, 90, 120):
        batch = rows_of(mean)
        times: dict[float, list[float]] = {0.0: [], 1.0: []}
        losses = {}
        for _ in range(rounds + 1):
            for fraction, seconds in times.items():
                unpadded.WORTHWHILE = fraction
                start = time.perf_counter()
                terms = Nelbo(CountMasking())(model, batch, progress=0.0, noise=Noise(0))
                (terms.loss_sum / terms.tokens).backward()
                seconds.append(time.perf_counter() - start)
                losses[fraction] = (terms.nll_sum / terms.tokens).item()
                model.zero_grad()
        gains = [a / b for a, b in zip(times[0.0][1:], times[1.0][1:], strict=True)]
        table.append(
            {
                "fraction of text": batch.valid.float().mean().item(),
                "padded, seconds": statistics.median(times[0.0][1:]),
                "side by side, seconds": statistics.median(times[1.0][1:]),
                "faster": statistics.median(gains),
                "losses differ by": abs(losses[0.0] - losses[1.0]),
            }
        )
    method = f"MDLM micro, V={SIZE:,}, {ROWS} rows of {LENGTH}, {rounds} rounds, {torch.get_num_threads()} threads"
    conclusion = {f"at {row['fraction of text']:.0%} text": f"{row['faster']:.2f} x" for row in table}
    record("core_padding", table, conclusion=conclusion, method=method)


if __name__ == "__main__":
    main()
