"""A training step and a sampling pass of ADLM beside the reference implementation, on the same weights.

    python -m benchmarks.core.step [--rows 8] [--rounds 5] [--compile]

Each variant adds one thing to the one before it, so that the gain of each is seen. All run in turn, round after
round, in one process; a ratio is the median over rounds of the ratio within a round, since machines are not
quiet. Memory is the highest resident size of a process of its own, above what it had with weights and optimizer
states in place. Tokens are drawn by Zipf's law, so that some are rare and some repeat in a row.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adlm.anchors.rules import RareInSequence
from adlm.diffusion.corruption import UniformMasking
from adlm.models.costs import training_work
from adlm.models.matrix_products import Library, faster_library, multiplied_by
from adlm.models.network import Vocabulary
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStage, TwoStageConfig
from adlm.objectives.nelbo import Anelbo
from adlm.randomness import Noise
from adlm.train.execution import cpu_multiplies_bf16
from adlm.types import Batch, Corrupted
from adlm_studies.reference import ReferenceAdlm, log_probabilities, reference_loss, reference_probabilities
from benchmarks._record import record

WIDTH, HEADS, LAYERS, DENOISER_LAYERS, SIZE, LENGTH, GAMMA = 512, 8, 8, 4, 50_258, 256, 3e-3
MASK = SIZE - 1
NOISE = Noise(0)

Loss = Callable[[Batch, Corrupted], Tensor]


def rows_of(count: int) -> Batch:
    weights = 1 / torch.arange(3, SIZE + 2, dtype=torch.float64)
    tokens = torch.multinomial(weights, count * LENGTH, True, generator=torch.Generator().manual_seed(0))
    number = torch.arange(count)
    return Batch(tokens.view(count, LENGTH), torch.ones(count, LENGTH, dtype=torch.bool), number, number)


def build() -> TwoStage:
    torch.manual_seed(0)
    stack = StackConfig(WIDTH, HEADS, LAYERS, condition=128)
    model = TwoStageConfig(stack, DENOISER_LAYERS).build(Vocabulary(SIZE, MASK))
    with torch.no_grad():  # away from the zeros it starts from, where losses agree by chance
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    return model


def reference_model(model: TwoStage) -> ReferenceAdlm:
    shape = {"width": WIDTH, "heads": HEADS, "anchor_layers": LAYERS, "denoiser_layers": DENOISER_LAYERS}
    reference = ReferenceAdlm(SIZE, MASK, **shape)
    reference.load_state_dict(model.state_dict(), strict=True)
    return reference


def plain(model: ReferenceAdlm) -> Loss:
    return lambda batch, c: reference_loss(model, batch.tokens, c.x_t, c.t, gamma=GAMMA)[0]


def dense_heads(model: TwoStage) -> Loss:
    """Our stacks and the D x D hand-over; logits at every position."""

    def loss(batch: Batch, c: Corrupted) -> Tensor:
        features = model.features(c.x_t)
        assert features.anchor is not None
        log_p = log_probabilities(model.head.raw(features.final), c.x_t, MASK)
        nll = (-log_p.gather(-1, batch.tokens[..., None])[..., 0] * c.weight).sum()
        logits = model.anchor_head.raw(features.anchor).flatten(0, 1)
        anchor = F.cross_entropy(logits, batch.tokens.flatten(), reduction="none").view_as(batch.tokens)
        return nll + GAMMA * (anchor * RareInSequence(5).mark(batch) * c.weight).sum()

    return loss


def chosen_heads(model: TwoStage) -> Loss:
    """Logits only where the loss reads them, all at once."""

    def loss(batch: Batch, c: Corrupted) -> Tensor:
        features = model.features(c.x_t)
        assert features.anchor is not None
        marks = RareInSequence(5).mark(batch)
        weight = c.weight.expand_as(marks)
        final = F.cross_entropy(model.logits(features.final[c.masked]), batch.tokens[c.masked], reduction="none")
        anchor = F.cross_entropy(model.anchor_logits(features.anchor[marks]), batch.tokens[marks], reduction="none")
        return (final * weight[c.masked]).sum() + GAMMA * (anchor * weight[marks]).sum()

    return loss


class _Fixed(UniformMasking):
    """The corruption that the others were given."""

    def __call__(self, batch: Batch, mask_id: int, noise: Noise, progress: float = 1.0) -> Corrupted:
        return CORRUPTED[len(batch.tokens)]


CORRUPTED: dict[int, Corrupted] = {}


def fused_loss(model: TwoStage, fraction: float = 1.0) -> Loss:
    objective = Anelbo(_Fixed(), RareInSequence(5), GAMMA, fraction=fraction)
    return lambda batch, c: objective(model, batch, progress=1.0, noise=NOISE).loss_sum


class Variant(NamedTuple):
    """A way to take a step."""

    loss: Callable[..., Loss]
    fused: bool = False
    library: Library = "default"
    bf16: bool = False


CHOSEN = faster_library()[0]
VARIANTS = {
    "plain": Variant(plain),
    "D x D hand-over, folded norms": Variant(dense_heads),
    "logits where they are read": Variant(chosen_heads),
    "loss and its gradients in one pass": Variant(fused_loss),
    "fused AdamW": Variant(fused_loss, True),
    "library of products by rule: adlm as it is": Variant(fused_loss, True, CHOSEN),
    "a quarter of the anchors": Variant(lambda model: fused_loss(model, 0.25), True, CHOSEN),
}
if cpu_multiplies_bf16():
    VARIANTS |= {
        "plain, bfloat16": Variant(plain, bf16=True),
        "adlm, bfloat16": Variant(fused_loss, True, CHOSEN, bf16=True),
    }
SHIPPED = "library of products by rule: adlm as it is"


@lru_cache  # variants take steps with a rate of 0: they can share weights, nine copies of which do not fit everywhere
def trained(reference: bool, fused: bool, compiled: bool) -> tuple[nn.Module, torch.optim.AdamW]:
    """A model and its optimizer, with states in place before anything is measured."""
    network = build()
    model: nn.Module = reference_model(network) if reference else network
    if compiled and not reference:
        network.compile_blocks()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0, fused=fused)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def stepper(name: str, batch: Batch, corrupted: Corrupted, *, compiled: bool) -> Callable[[], float]:
    """A function that takes one optimizer step and returns the loss per token."""
    loss, fused, library, bf16 = VARIANTS[name]
    model, optimizer = trained(loss is plain, fused, compiled)
    function = loss(model)

    def step() -> float:
        with multiplied_by(library):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                total = function(batch, corrupted) / batch.tokens.numel()
            total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # with a rate of 0, so that every step sees the same weights
        optimizer.zero_grad(set_to_none=True)
        return total.item()

    return step


def resident(field: str) -> float:
    """MB of this process: VmRSS now, VmHWM at its highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def peak_memory(name: str, rows: int) -> dict[str, float]:
    """Runs in a process of its own."""
    batch = rows_of(rows)
    CORRUPTED[rows] = corrupted = UniformMasking()(batch, MASK, NOISE)
    step = stepper(name, batch, corrupted, compiled=False)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    step()
    return {"above": resident("VmHWM") - before}


def matmul_peak(seconds: float = 2.0) -> float:
    """FLOP/s of a large float32 product."""
    a, b = torch.randn(2, 2048, 2048)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        a @ b
        best = max(best, 2 * 2048**3 / (time.perf_counter() - start))
    return best


def step_flops(batch: Batch, c: Corrupted) -> int:
    """Of the products of one step of ours, forward and backward."""
    rows, anchors = len(batch.tokens), RareInSequence(5).mark(batch).float().mean().item()
    masked = c.masked.float().mean().item()
    network = TwoStageConfig(StackConfig(WIDTH, HEADS, LAYERS), DENOISER_LAYERS)
    return training_work(network, Vocabulary(SIZE, MASK), length=LENGTH, rows=rows, scored=masked, anchors=anchors)


def in_turn(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return times


def ratio(times: dict[str, list[float]], slow: str, fast: str) -> float:
    return statistics.median(a / b for a, b in zip(times[slow], times[fast], strict=True))


def training(rows: int, rounds: int, compiled: bool) -> None:
    batch = rows_of(rows)
    CORRUPTED[rows] = corrupted = UniformMasking()(batch, MASK, NOISE)
    memory = {}
    # Freed tensors go back to the system at once, so that the resident size is what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    for name in VARIANTS:
        command = [sys.executable, "-m", "benchmarks.core.step", "--memory", name, "--rows", str(rows)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        memory[name] = json.loads(answer.stdout)["above"]
    steps = {name: stepper(name, batch, corrupted, compiled=compiled) for name in VARIANTS}
    losses = {name: step() for name, step in steps.items()}  # and a round to warm up
    with multiplied_by(CHOSEN):
        peak = matmul_peak()
    times = in_turn(steps, rounds)
    table = [
        {
            "variant": name,
            "seconds per step": statistics.median(times[name]),
            "faster than plain": ratio(times, "plain", name),
            "MB above weights and optimizer": memory[name],
            "fraction of plain's": memory[name] / memory["plain"],
            "loss per token": losses[name],
        }
        for name in VARIANTS
    ]
    reached = step_flops(batch, corrupted) / min(times[SHIPPED])
    conclusion = {
        "speed-up": round(ratio(times, "plain", SHIPPED), 2),
        "the fastest, the plain one in float32": round(max(ratio(times, "plain", name) for name in VARIANTS), 2),
        "memory": round(memory[SHIPPED] / memory["plain"], 3),
        "loss differs by": abs(losses[SHIPPED] - losses["plain"]) / losses["plain"],
        "GFLOP/s reached, of": [round(reached / 1e9, 1), round(peak / 1e9, 1)],
        "fraction of the matmul peak": round(reached / peak, 2),
        "masked, anchors, tokens": [
            int(corrupted.masked.sum()),
            int(RareInSequence(5).mark(batch).sum()),
            batch.tokens.numel(),
        ],
    }
    method = (
        f"width {WIDTH}, {LAYERS}+{DENOISER_LAYERS} layers, V={SIZE:,}, L={LENGTH}, {rows} rows, "
        f"{rounds} rounds, {torch.get_num_threads()} threads{', compiled blocks' if compiled else ''}"
    )
    record("core_training" + "_compiled" * compiled, table, conclusion=conclusion, method=method)


def sampling(rounds: int) -> None:
    """The network's part of a step that reveals one token a row, at half of the row masked."""
    table, conclusion = [], {}
    model = build().eval()
    reference = reference_model(model).eval()
    for rows in (1, 8):
        batch = rows_of(rows)
        level = torch.full((rows,), 0.5, dtype=torch.float64)
        x_t = UniformMasking().at(level, batch, MASK, NOISE).x_t
        reveal = torch.zeros_like(x_t, dtype=torch.bool)
        for row in range(rows):
            reveal[row, (x_t[row] == MASK).nonzero()[0, 0]] = True

        def ours(x_t: Tensor = x_t, reveal: Tensor = reveal) -> Tensor:
            return model.logits(model.features(x_t, output_mask=reveal).final).softmax(-1)

        def theirs(x_t: Tensor = x_t) -> Tensor:
            return reference_probabilities(reference, x_t)

        with model.inference_weights():
            differ = (ours() - theirs()[reveal]).abs().max().item()  # and a round to warm up
            times = in_turn({"plain": theirs, "adlm": ours}, rounds * 3)
        gain = ratio(times, "plain", "adlm")
        medians = {name: statistics.median(seconds) for name, seconds in times.items()}
        table.append(
            {
                "rows": rows,
                "plain, seconds": medians["plain"],
                "adlm, seconds": medians["adlm"],
                "faster": gain,
                "probabilities differ by": differ,
            }
        )
        conclusion[f"speed-up, {rows} rows"] = round(gain, 2)
    method = (
        f"width {WIDTH}, {LAYERS}+{DENOISER_LAYERS} layers, V={SIZE:,}, L={LENGTH}, half masked, one token "
        f"a row revealed, {rounds * 3} rounds, {torch.get_num_threads()} threads"
    )
    record("core_sampling", table, conclusion=conclusion, method=method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="compile the blocks of ours")
    parser.add_argument("--only", choices=["training", "sampling"])
    parser.add_argument("--memory", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(peak_memory(options.memory, options.rows)))
        return
    if options.only != "sampling":
        training(options.rows, options.rounds, options.compile)
    if options.only != "training":
        sampling(options.rounds)


if __name__ == "__main__":
    main()
