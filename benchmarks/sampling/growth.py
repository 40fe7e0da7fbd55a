"""How the time of a sample grows with length, steps, vocabulary and batch, here and in the reference.

    python -m benchmarks.sampling.growth

Whole samples of a small ADLM (width 128, 4 + 2 layers), all but one of L=256, T=64, V=8,192 and batch 4 held. The plain
peer computes everything at every step, so one of its steps is timed and counted T times. Draws
results/sampling_growth.svg.
"""

import time

import torch

from adlm.randomness import Noise
from adlm.samplers import Ancestral, Canvas
from adlm_studies.reference import ReferenceAncestral
from benchmarks._record import RESULTS, record
from benchmarks.sampling.speed import SMALL, build, matched_baseline

BASE = {"L": 256, "T": 64, "V": 8192, "batch": 4}
VALUES = {
    "L": (64, 128, 256, 512, 1024),
    "T": (8, 32, 64, 256, 1024, 4096),
    "V": (1024, 4096, 8192, 16384, 65536),
    "batch": (1, 2, 4, 8, 16),
}


def measure(setting: dict[str, int]) -> tuple[float, float | None]:
    """Seconds of a whole sample, and of the reference's where every one of its steps changes something."""
    shape = {**SMALL, "size": setting["V"]}
    model = build(**shape)
    blank = Canvas.blank(setting["batch"], setting["L"], setting["V"] - 1)
    start = time.perf_counter()
    Ancestral(steps=setting["T"]).sample(model, blank, noise=Noise(0))
    ours = time.perf_counter() - start
    if setting["T"] > 2 * BASE["T"]:
        return ours, None
    plain = ReferenceAncestral(matched_baseline(model, shape), torch.Generator().manual_seed(0))
    plain.step(blank.tokens, 1.0, 0.9)
    plain.memo = None
    start = time.perf_counter()
    plain.step(blank.tokens, 1.0, 0.9)
    return ours, (time.perf_counter() - start) * setting["T"]


def main() -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    rows = []
    figure, axes = pyplot.subplots(1, 4, figsize=(13, 3.2), sharey=True, layout="constrained")
    for axis, (name, values) in zip(axes, VALUES.items(), strict=True):
        measured = [measure({**BASE, name: value}) for value in values]
        rows += [
            {"varied": name, "value": value, "adlm s": ours, "plain s": plain}
            for value, (ours, plain) in zip(values, measured, strict=True)
        ]
        axis.plot(values, [ours for ours, _ in measured], "o-", label="adlm", color="#2563eb")
        pairs = [(value, plain) for value, (_, plain) in zip(values, measured, strict=True) if plain is not None]
        axis.plot(*zip(*pairs, strict=True), "s--", label="reference implementation", color="#d97706")
        axis.set(xscale="log", yscale="log", xlabel={"L": "length", "T": "steps", "V": "vocabulary"}.get(name, name))
        axis.set_xticks(values, [f"{value:,}" for value in values], rotation=45)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("seconds per sample of the batch")
    axes[0].legend()
    figure.savefig(RESULTS / "sampling_growth.svg", metadata={"Date": None})
    held = ", ".join(f"{name}={value:,}" for name, value in BASE.items())
    record(
        "sampling_growth",
        rows,
        conclusion={"plot": "benchmarks/results/sampling_growth.svg"},
        method=f"ADLM width 128, 4+2 layers, whole samples; held at {held}, {torch.get_num_threads()} threads",
    )


if __name__ == "__main__":
    main()
