"""float32 products by MKL, as PyTorch has it, and by oneDNN: speed and largest error, and what it means for a step.

    OMP_NUM_THREADS=1 python -m benchmarks.core.products

Products of (positions x in) with (in x out), as the models have them; then training steps of the sizes that
`benchmarks.train.against` measures. Both ways in turn, the fastest of each.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from adlm.memory import keep_freed_memory
from adlm.models.matrix_products import Library, faster_library, multiplied_by
from adlm.train.trainer import Trainer
from benchmarks._record import record
from benchmarks.train.worker import run_of

LIBRARIES: tuple[Library, ...] = ("default", "onednn")
SHAPES = [
    *((positions, 96, 384) for positions in (1, 16, 64, 1024)),
    *((positions, 288, 768) for positions in (1, 4, 16, 1024)),
    *((positions, 512, 2048) for positions in (1, 4, 16, 1024)),
]
RUNS = ("demo-mdlm", "demo-adlm", "box-adlm", "wide-adamw")


def in_turn(call: Callable[[], object], rounds: int, times: int) -> dict[Library, float]:
    """Seconds of a call with each library: the fastest round."""
    found: dict[Library, list[float]] = {library: [] for library in LIBRARIES}
    for number in range(rounds + 1):
        for library, seconds in found.items():
            with multiplied_by(library):
                began = time.perf_counter()
                for _ in range(times):
                    call()
                if number:  # the first round is for caches
                    seconds.append((time.perf_counter() - began) / times)
    return {library: min(seconds) for library, seconds in found.items()}


def product(positions: int, inner: int, outer: int) -> dict[str, Any]:
    x, weight = torch.randn(positions, inner), torch.randn(outer, inner)
    exact = x.double() @ weight.double().mT
    errors = {}
    for library in LIBRARIES:
        with multiplied_by(library):
            errors[library] = float(((x @ weight.mT).double() - exact).abs().max() / exact.abs().max())
    seconds = in_turn(lambda: torch.nn.functional.linear(x, weight), 5, max(3, 10**8 // (positions * inner * outer)))
    work = 2e-9 * positions * inner * outer
    return _row(f"{positions} x {inner} to {outer}", {name: work / each for name, each in seconds.items()}, errors)


def training(name: str) -> dict[str, Any]:
    run = run_of(name, "float32")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(run, run.data.prepare(), Path(folder))
        batches = iter(trainer.loader)
        seconds = in_turn(lambda: trainer.train_step(next(batches)), 4, 1 if name.startswith("wide") else 3)
    tokens = trainer.loader.config.batch * trainer.data.train.length
    return _row(f"step of {name}", {library: tokens / each for library, each in seconds.items()}, {})


def _row(what: str, speeds: dict[Library, float], errors: dict[Library, float]) -> dict[str, Any]:
    ratio = round(speeds["onednn"] / speeds["default"], 2)
    shown = {f"{library}, GFLOP/s or tokens/s": speeds[library] for library in LIBRARIES}
    return {"what": what, **shown, "ratio": ratio, **{f"error, {name}": errors.get(name, "") for name in LIBRARIES}}


def main() -> None:
    keep_freed_memory()  # as every command does
    torch.manual_seed(0)
    rows = [product(*shape) for shape in SHAPES] + [training(name) for name in RUNS]
    library, why = faster_library()
    method = f"{torch.get_num_threads()} thread(s), float32, in turn, fastest round; error relative to the largest"
    record("core_products", rows, conclusion={"library": library, "why": why}, method=method)


if __name__ == "__main__":
    main()
