"""Ancestral sampling of ADLM, compared with a reference implementation of sampler and model on the same weights.

    python -m benchmarks.sampling.speed [--points 20]

A whole trajectory of the plain one takes hours on a CPU, so steps spread evenly over the trajectory are timed, each
from a canvas as it would be at that step, in turn with the plain one's. Whether a step of the plain one can use its
memo is drawn as it would be: when no row of the batch changed in the step before. A smaller model and shorter rows are
sampled whole, to confirm. Memory is the highest resident size above the weights, in a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from adlm.models.network import Vocabulary
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStage, TwoStageConfig
from adlm.randomness import Noise
from adlm.samplers import Ancestral, Canvas
from adlm.samplers.remasking import Never
from adlm_studies.reference import ReferenceAdlm, ReferenceAncestral
from benchmarks._record import record
from benchmarks.core.step import resident

FULL = {"width": 512, "heads": 8, "anchor": 8, "denoiser": 4, "size": 50_258}
SMALL = {"width": 128, "heads": 4, "anchor": 4, "denoiser": 2, "size": 8_192}
ROWS, LENGTH = 4, 1024


def build(width: int, heads: int, anchor: int, denoiser: int, size: int) -> TwoStage:
    torch.manual_seed(0)
    model = TwoStageConfig(StackConfig(width, heads, anchor, condition=128), denoiser).build(Vocabulary(size, size - 1))
    with torch.no_grad():  # away from the zeros it starts from, where every token is equally likely
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    return model.eval()


def matched_baseline(model: TwoStage, shape: dict[str, int]) -> ReferenceAdlm:
    plain = ReferenceAdlm(
        shape["size"],
        shape["size"] - 1,
        width=shape["width"],
        heads=shape["heads"],
        anchor_layers=shape["anchor"],
        denoiser_layers=shape["denoiser"],
    )
    plain.load_state_dict(model.state_dict(), strict=True)
    return plain.eval()


def canvas_at(step: int, steps: int, size: int, seed: int) -> tuple[Tensor, bool]:
    """Rows as they are before a step, with tokens by lot, and whether the step before it changed any of them."""
    noise = Noise(seed)
    rows = torch.arange(ROWS)
    hit = noise.fork("hit", step).uniform(rows, LENGTH)  # the masked share at which each position is revealed
    tokens = (noise.fork("token", step).uniform(rows, LENGTH) * (size - 1)).long()
    t, before = 1 - step / steps, 1 - (step - 1) / steps
    changed = step == 0 or bool(((hit >= t) & (hit < before)).any())
    return tokens.masked_fill(hit < t, size - 1), changed


def seconds(function, *arguments) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def trajectory(steps: int, points: int) -> dict[str, float]:
    """Seconds of a whole trajectory of each, from steps spread over it."""
    model = build(**FULL)
    plain = ReferenceAncestral(matched_baseline(model, FULL), torch.Generator().manual_seed(0))
    sampler, size = Ancestral(steps=steps), FULL["size"]
    ours: list[float] = []
    theirs: list[float] = []
    with model.inference_weights():
        warm = sampler.start(model, Canvas.blank(ROWS, LENGTH, size - 1), noise=Noise(9))
        warm.reveal(warm.blank & (torch.arange(LENGTH) == 0), 1.0, 0)
        for point in range(points):
            step = int((point + 0.5) / points * steps)
            tokens, changed = canvas_at(step, steps, size, seed=point)
            canvas = Canvas(tokens, tokens != size - 1, torch.arange(ROWS))
            if not changed:
                plain.memo = torch.rand(ROWS, LENGTH, size)
            else:
                plain.memo = None
            theirs.append(seconds(plain.step, tokens, 1 - step / steps, 1 - (step + 1) / steps))
            # Ours is quick enough to look at more of the steps around this one.
            nearby = [min(steps - 1, step + k) for k in range(3)]
            for near in nearby:
                state = sampler.start(model, canvas, noise=Noise(point))
                ours.append(seconds(sampler.take, near, state, Never()))
            print(f"  step {step:>5}: plain {theirs[-1]:6.2f} s, adlm {sum(ours[-3:]) / 3:5.2f} s", flush=True)
    mean = {"adlm": sum(ours) / len(ours) * steps, "plain": sum(theirs) / len(theirs) * steps}
    return {**mean, "ratio": mean["plain"] / mean["adlm"]}


def whole(steps: int) -> dict[str, float]:
    """A whole run of each at a size where that takes seconds."""
    model = build(**SMALL)
    plain = ReferenceAncestral(matched_baseline(model, SMALL), torch.Generator().manual_seed(0))
    blank = Canvas.blank(ROWS, 256, SMALL["size"] - 1)
    sampler = Ancestral(steps=steps)
    ours = [seconds(lambda seed=seed: sampler.sample(model, blank, noise=Noise(seed))) for seed in range(3)]
    theirs = seconds(plain.sample, blank.tokens, steps)
    return {"adlm": min(ours), "plain": theirs, "ratio": theirs / min(ours)}


def peak(which: str) -> float:
    """MB above the weights, over one step in the middle of T = 128."""
    model = build(**FULL)
    tokens, _ = canvas_at(64, 128, FULL["size"], seed=0)
    if which == "plain":
        plain = ReferenceAncestral(matched_baseline(model, FULL), torch.Generator().manual_seed(0))
        del model
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        plain.step(tokens, 0.5, 0.5 - 1 / 128)
    else:
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        canvas = Canvas(tokens, tokens != FULL["size"] - 1, torch.arange(ROWS))
        sampler = Ancestral(steps=128)
        with model.inference_weights():
            sampler.take(64, sampler.start(model, canvas, noise=Noise(0)), Never())
    return resident("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--memory", choices=("adlm", "plain"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.memory:
        print(json.dumps(peak(chosen.memory)))
        return
    threads = os.environ.get("OMP_NUM_THREADS", str(torch.get_num_threads()))
    command = [sys.executable, "-m", "benchmarks.sampling.speed", "--memory"]
    memory = {
        which: json.loads(subprocess.run([*command, which], check=True, capture_output=True, text=True).stdout)
        for which in ("adlm", "plain")
    }
    rows = []
    for steps in (1000, 128):
        rows.append({"what": f"T={steps}, seconds per trajectory", **trajectory(steps, chosen.points)})
    rows.append({"what": "whole run, width 128, 4+2, V=8,192, L=256, T=256", **whole(256)})
    rows.append({"what": "peak MB above the weights", **memory, "ratio": memory["plain"] / memory["adlm"]})
    record(
        "sampling_speed",
        rows,
        conclusion={row["what"]: f"{row['ratio']:.1f} x" for row in rows},
        method=f"ADLM width 512, 8+4 layers, V=50,258, L={LENGTH}, batch {ROWS}, float32, {threads} threads; "
        f"{chosen.points} steps spread over the trajectory, in turn",
    )


if __name__ == "__main__":
    main()
