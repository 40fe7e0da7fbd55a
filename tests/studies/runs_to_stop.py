"""Three small runs side by side, to be stopped and started again.

python -m tests.studies.runs_to_stop FOLDER

While FOLDER/slow exists, a step takes a moment, and FOLDER/NAME.runs says that it was taken.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from adlm.errors import Interrupted
from adlm.train.callbacks import Callback
from adlm.train.fit import fit
from adlm.train.metrics import StepMetrics
from adlm_studies.jobs import run_jobs
from adlm_studies.worker_processes import ProcessJob
from tests.train.processes import SMALL

NAMES = ("a", "b", "c")


class Slow(Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step(self, metrics: StepMetrics) -> None:
        if (self.folder.parent / "slow").exists():
            self.folder.with_suffix(".runs").touch()
            time.sleep(0.5)


def train(tell: Callable[[Any], None], folder: Path, seed: int) -> int:
    run = replace(SMALL, train=replace(SMALL.train, seed=seed))
    return fit(run, folder, callbacks=[Slow(folder)]).steps


def main(root: Path) -> int:
    jobs = [ProcessJob(name, train, (root / name, seed)) for seed, name in enumerate(NAMES)]
    try:
        print(run_jobs(jobs, workers=2))
    except Interrupted as error:
        print(error)
        return 128 + error.signal
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
