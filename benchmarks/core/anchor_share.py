"""What a random fraction of the anchor positions saves, and the noise it adds to the gradient.

    python -m benchmarks.core.anchor_share [--steps 200]

An ADLM is trained for a while on Python's own documentation. Then, batch after batch, its gradient with all anchors is
compared with that of a fraction of them, and with that of the next batch: the noise every step has anyway.
"""

import argparse
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from adlm.data.config import Corpus
from adlm.data.loader import LoaderConfig
from adlm.data.packing import Wrapped
from adlm.models.language_model import LanguageModel
from adlm.models.sizes import published
from adlm.objectives.nelbo import Anelbo
from adlm.objectives.objective import Objective
from adlm.randomness import Noise
from adlm.train.fit import fit
from adlm.train.optimizers import Muon
from adlm.train.run import FitOptions, Run, TrainConfig
from adlm.types import Batch
from benchmarks._record import record

SIZE, LENGTH, ROWS, BATCHES = 8192, 128, 32, 12
ADDED = "variance added, of the batch's own"


def gradient(model: LanguageModel, objective: Objective, batch: Batch, seed: int) -> tuple[Tensor, float]:
    start = time.perf_counter()
    model.zero_grad()
    terms = objective(model, batch, progress=1.0, noise=Noise(seed))
    (terms.loss_sum / terms.tokens).backward()
    seconds = time.perf_counter() - start
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    network = published("adlm", "nano", dropout=0.0)
    data = Corpus("pydocs", f"bpe:{SIZE}", Wrapped(LENGTH))
    train = TrainConfig(steps, ROWS * LENGTH, ROWS, Muon())
    table = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "data"
        run, options = Run("anchors", data, network, Anelbo(), train), FitOptions(cache=cache)
        model = fit(run, Path(folder) / "run", options=options).model
        loader = LoaderConfig(ROWS).build(data.prepare(cache=cache).train)
        model.train()
        batches = [loader.batch(steps + i) for i in range(BATCHES + 1)]
        everything = [gradient(model, Anelbo(), batch, seed=9) for batch in batches]
        sampling = [(a - b).square().sum().item() / 2 for (a, _), (b, _) in pairwise(everything)]
        for fraction in (1.0, 0.5, 0.25, 0.125, 1 / 16):
            noise, ratios = [], []
            for batch, (whole, _) in zip(batches, everything, strict=True):
                _, slow = gradient(model, Anelbo(), batch, seed=9)
                part, fast = gradient(model, Anelbo(fraction=fraction), batch, seed=9)
                noise.append((part - whole).square().sum().item())
                ratios.append(slow / fast)
            table.append(
                {
                    "fraction of the anchors": fraction,
                    "forward and backward, faster": statistics.median(ratios),
                    ADDED: statistics.mean(noise) / statistics.mean(sampling),
                }
            )
    method = (
        f"ADLM nano, V={SIZE:,}, {ROWS} rows of {LENGTH}, gamma 3e-3 at all anchors, after {steps} "
        f"steps on pydocs; {BATCHES + 1} batches"
    )
    quarter = table[2]
    conclusion = {
        "a quarter of the anchors": f"{quarter['forward and backward, faster']:.2f} x faster, "
        f"{quarter[ADDED]:.1e} of the gradient's variance added"
    }
    record("core_anchor_share", table, conclusion=conclusion, method=method)


if __name__ == "__main__":
    main()
