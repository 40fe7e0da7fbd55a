"""Takes training steps when told to; the part of `benchmarks.train.against` that runs in each checkout.

    python benchmarks/train/worker.py SIZE float32|default

Started with a checkout on PYTHONPATH, this version or an older one. Reads a number of steps per line from stdin, takes
them, and prints the seconds they took, in all and of the processor.
"""

import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path

from adlm.memory import keep_freed_memory

keep_freed_memory()  # as every command does

from adlm.data.synthetic import Synthetic  # noqa: E402
from adlm.models.stack import StackConfig  # noqa: E402
from adlm.models.two_stage import TwoStageConfig  # noqa: E402
from adlm.objectives.nelbo import Anelbo  # noqa: E402
from adlm.recipes.named import recipe  # noqa: E402
from adlm.train.optimizers import AdamW, Muon  # noqa: E402
from adlm.train.run import Run, TrainConfig  # noqa: E402
from adlm.train.trainer import Trainer  # noqa: E402

SIZES = ("demo-mdlm", "demo-adlm", "box-mdlm", "box-adlm", "wide-adamw", "wide-muon")


def run_of(size: str, precision: str) -> Run:
    """The runs that are measured. Those of the box read random tokens, since its text is not in the repository."""
    if size.startswith("wide"):
        network = TwoStageConfig(StackConfig(512, 8, 8), 4)
        optimizer = AdamW() if size.endswith("adamw") else Muon()
        run = Run(size, Synthetic(50_258, 256, 400), network, Anelbo(), TrainConfig(1000, 8 * 256, 8, optimizer))
    elif size.startswith("box"):
        run = recipe({"box-mdlm": "box-mdlm-same-cost", "box-adlm": "box-adlm"}[size])
        run = replace(run, data=Synthetic(4096, 64, 4000))
    else:
        run = recipe(size)
    if precision == "float32":
        new = any(each.name == "precision" for each in fields(TrainConfig))
        run = replace(run, train=replace(run.train, **({"precision": "float32"} if new else {"bf16": False})))
    return run


def main() -> None:
    run = run_of(*sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(run, run.data.prepare(), Path(folder))
        batches = iter(trainer.loader)
        execution = getattr(trainer, "execution", None)  # of versions that choose how they compute

        def step() -> None:
            trainer.train_step(next(batches))
            trainer.progress.step += 1

        with execution.applied() if hasattr(execution, "applied") else nullcontext():
            step()
            print("ready", trainer.loader.config.batch * trainer.data.train.length, flush=True)
            for line in sys.stdin:
                began, cpu = time.perf_counter(), time.process_time()
                for _ in range(int(line)):
                    step()
                print(time.perf_counter() - began, time.process_time() - cpu, flush=True)


if __name__ == "__main__":
    main()
