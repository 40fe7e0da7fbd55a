"""Training runs in processes of their own, to be stopped and killed, and what two runs that did the same agree in.

    torchrun ... -m tests.train.processes RUN.json FOLDER STEP [--shard]

is `adlm train` that tells itself to stop at a given step, whatever else the machine does meanwhile.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from adlm.config import to_json
from adlm.data.synthetic import Synthetic
from adlm.diffusion.corruption import CountMasking
from adlm.models.language_model import LanguageModel
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo
from adlm.randomness import Noise
from adlm.train.callbacks import Callback, PrintMessages
from adlm.train.fit import fit
from adlm.train.metrics import METRICS, StepMetrics, ValidationMetrics, read_metrics
from adlm.train.optimizers import Muon
from adlm.train.run import CheckpointConfig, FitOptions, Run, TrainConfig, ValidationConfig
from adlm.train.run_folder import BEST, CHECKPOINTS, read_run
from adlm.types import Batch, LossTerms

PATIENCE = 120.0  # seconds, before something that never comes is given up
# All that a run can carry from one sitting to the next: dropout, averaged weights, two optimisers, a best model.
SMALL = Run(
    "small",
    Synthetic(vocabulary=64, length=16, count=100),
    TwoStageConfig(StackConfig(width=16, heads=2, layers=1, dropout=0.1), 1),
    Anelbo(CountMasking(), gamma=0.05),
    TrainConfig(steps=12, tokens_per_step=8 * 16, micro_batch_size=2, ema_decay=0.9, optimizer=Muon()),
    ValidationConfig(every=4, num_rows=10, draws=2, micro_batch_size=4),
    CheckpointConfig(every=3),
)


@dataclass(frozen=True)
class Poisoned(Anelbo):
    """One sample costs more than can be counted, or has a gradient that cannot be."""

    sample: int = 0
    gradient: bool = False

    def __call__(self, model: LanguageModel, batch: Batch, *, progress: float, noise: Noise) -> LossTerms:
        terms = super().__call__(model, batch, progress=progress, noise=noise)
        if self.sample not in batch.index:
            return terms
        if not self.gradient:
            return terms._replace(loss_sum=terms.loss_sum * torch.inf)
        return terms._replace(loss_sum=terms.loss_sum + (terms.loss_sum * 0).sqrt())


def larger(run: Run = SMALL, *, steps: int, width: int) -> Run:
    """With a checkpoint at every step, which takes as long to write as the step takes to compute."""
    network = TwoStageConfig(StackConfig(width, heads=2, layers=2, dropout=0.1), 1)
    return replace(run, network=network, train=replace(run.train, steps=steps), checkpoint=CheckpointConfig(every=1))


@dataclass
class Process:
    """A run that is going on."""

    inner: subprocess.Popen[bytes]
    out: Path
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self) -> int:
        """For its end: the exit code."""
        try:
            return self.inner.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise self._stuck("did not end") from None

    def until(self, happened: Callable[[], Any]) -> bool:
        """Look again and again until it has happened; False if the process ended before."""
        limit = time.monotonic() + PATIENCE
        while not happened():
            if self.inner.poll() is not None:
                return False
            if time.monotonic() > limit:
                raise self._stuck("did not get there")
            time.sleep(0.002)
        return True

    def _stuck(self, how: str) -> AssertionError:
        """With what it said, and where its processes were: they write that down when they are aborted."""
        self.clear_away(signal.SIGABRT)
        self.inner.wait()
        return AssertionError(f"{how} in {PATIENCE} s:\n{self.said()}")

    def reached(self, step: int) -> bool:
        """Wait for the report of a step."""
        return self.until(lambda: steps_done(self.out) >= step)

    def kill(self) -> bool:
        """SIGKILL for this process alone; whether it left a checkpoint that it was writing."""
        self.inner.kill()
        self.inner.wait()
        return self.is_writing()

    def kill_while_writing(self) -> None:
        """SIGKILL in the middle of a checkpoint: the process is halted until that is where it stands."""
        while True:
            self.inner.send_signal(signal.SIGSTOP)
            _, status = os.waitpid(self.inner.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), self.said()
            if self.is_writing():
                break
            self.inner.send_signal(signal.SIGCONT)
            time.sleep(0.002)
        self.kill()

    def is_writing(self) -> bool:
        return any((self.out / CHECKPOINTS).glob("*.writing"))

    def clear_away(self, number: int = signal.SIGKILL) -> None:
        """Whatever is left of it."""
        for pid in [*self.workers(), self.inner.pid] if self.inner.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def workers(self) -> list[int]:
        """Numbers of the processes it started, oldest first."""
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
        pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
        return sorted(pid for pid, parent in pairs if parent == self.inner.pid)


def train(run: Run, out: Path, *options: str) -> Process:
    """`adlm train`, begun in a session of its own."""
    return _begin([sys.executable, "-m", "adlm", "train", str(_written(run, out)), "--out", str(out), *options], out)


def train_on_two(run: Run, out: Path, *options: str, restarts: int = 0) -> Process:
    """`adlm train` on two processes."""
    words = ["-m", "adlm", "train", str(_written(run, out)), "--out", str(out), *options]
    return _begin([*_torchrun(restarts), *words], out)


def train_on_two_until(step: int, run: Run, out: Path, *options: str) -> Process:
    """As above, stopped after `step` steps."""
    words = ["-m", "tests.train.processes", str(_written(run, out)), str(out), str(step), *options]
    return _begin([*_torchrun(0), *words], out)


def _torchrun(restarts: int) -> list[str]:
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    return [sys.executable, "-m", "torch.distributed.run", *options]


def _written(run: Run, out: Path) -> Path:
    path = out.with_name(f"{out.name}.json")
    path.write_text(json.dumps(to_json(run)))
    return path


def _begin(command: list[str], out: Path) -> Process:
    # One thread, as the tests themselves have; and processes that torchrun starts again may not share its store.
    settings = {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    root = Path(__file__).resolve().parents[2]
    log = out.with_name(f"{out.name}.log")
    with log.open("ab") as file:
        inner = subprocess.Popen(
            command, cwd=root, env={**os.environ, **settings}, stdout=file, stderr=file, start_new_session=True
        )
    process = Process(inner, out, log)
    atexit.register(process.clear_away)  # where a test gave up on it
    return process


def steps_done(out: Path) -> int:
    """That the metrics know of so far."""
    path = out / METRICS
    if not path.exists():
        return 0
    return max((record["step"] for record in read_metrics(path)), default=0)


def records(out: Path) -> list[dict[str, Any]]:
    """The metrics, without what depends on the machine."""
    return [{key: value for key, value in record.items() if key != "machine"} for record in read_metrics(out / METRICS)]


def losses(out: Path) -> list[float]:
    return [record["loss"] for record in records(out) if "loss" in record]


def checkpoint_steps(out: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (out / CHECKPOINTS).glob("step-?????????"))


def same(one: Path, other: Path) -> dict[str, bool]:
    """What two runs have to agree in, to the last bit, and whether they do."""
    weights = "model.safetensors"
    return {
        "weights": (one / weights).read_bytes() == (other / weights).read_bytes(),
        "best": (one / BEST / weights).read_bytes() == (other / BEST / weights).read_bytes(),
        "metrics": records(one) == records(other),
    }


ALL_THE_SAME = {"weights": True, "best": True, "metrics": True}


class Messages(Callback):
    """Collects the messages of a run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str) -> None:
        self.lines.append(message)


@dataclass(frozen=True)
class At(Callback):
    """Acts after a step or a validation."""

    step: int
    act: Callable[[], None]
    after_validation: bool = False

    def on_step(self, metrics: StepMetrics) -> None:
        if metrics.step == self.step and not self.after_validation:
            self.act()

    def on_validation(self, metrics: ValidationMetrics) -> None:
        if metrics.step == self.step and self.after_validation:
            self.act()


def main(file: str, out: str, step: str, *options: str) -> None:
    # Told after a step, a run stops after the next.
    told = At(int(step) - 1, lambda: signal.raise_signal(signal.SIGTERM))
    fit(read_run(Path(file)), out, options=FitOptions(shard="--shard" in options), callbacks=[PrintMessages(), told])


if __name__ == "__main__":
    main(*sys.argv[1:])
