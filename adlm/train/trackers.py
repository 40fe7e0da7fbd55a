"""Trackers: callbacks that send the metrics of a run to TensorBoard, Weights & Biases or Trackio.

Making a tracker imports its library, so that a missing one is named before anything is prepared. A run keeps its
identity in `tracking.json` of its folder, so that a resumed run continues as the same one.
"""

import json
import math
import os
import uuid
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adlm.config import to_json
from adlm.errors import TrainingError, UnknownName, optional_module
from adlm.files import write_atomically
from adlm.train.callbacks import Callback
from adlm.train.metrics import StepMetrics, ValidationMetrics
from adlm.train.run_folder import TRACKING, writing

if TYPE_CHECKING:
    from adlm.train.trainer import Trainer


class Tracker(Callback, ABC):
    """Sends metrics somewhere between `open` and `close`."""

    _last = 0  # the step an interrupted run had reached, if what was sent cannot be taken back

    def open(self, trainer: "Trainer") -> None:
        run = trainer.run_config
        self.start(trainer.out, run.name, to_json(run), step=trainer.progress.step)

    @abstractmethod
    def start(self, folder: Path, name: str, config: dict[str, Any], *, step: int = 0) -> None:
        """Start, or resume after `step`, the run in `folder`; `config` is the run as JSON."""

    @abstractmethod
    def _log(self, values: dict[str, float], step: int) -> None:
        """Send finite numbers by name."""

    @abstractmethod
    def _show(self, samples: tuple[str, ...], step: int) -> None:
        """Send texts of the model at this step."""

    def on_step(self, metrics: StepMetrics) -> None:
        if metrics.step <= self._last:
            return  # repeated after an interruption, with the same result
        values = {f"train/{name}": getattr(metrics, name) for name in ("loss", "bound", "grad_norm", "lr", "tokens")}
        machine = {"machine/speed": metrics.speed, "machine/memory": metrics.memory}
        self._log(_finite({**values, "train/skipped": metrics.skipped, **machine}), metrics.step)

    def on_validation(self, metrics: ValidationMetrics) -> None:
        nats = metrics.nats
        values = {"nats": nats.mean, "error": nats.error, "perplexity": metrics.perplexity}
        self._log(_finite({f"validation/{name}": value for name, value in values.items()}), metrics.step)
        if metrics.samples:
            self._show(metrics.samples, metrics.step)


class TensorBoard(Tracker):
    """Event files in FOLDER/tensorboard: `tensorboard --logdir FOLDER`."""

    def __init__(self) -> None:
        optional_module("tensorboard", extra="track", purpose="tracking a run with TensorBoard")

    def start(self, folder: Path, name: str, config: dict[str, Any], *, step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writing = partial(writing, str(folder / "tensorboard"), folder / "tensorboard")
        with self._writing():
            # Steps that an interrupted run had reached and that are repeated are hidden.
            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1, flush_secs=30)
            if not step:
                self._writer.add_text("config", _code(json.dumps({"name": name, **config}, indent=2)), 0)

    def _log(self, values: dict[str, float], step: int) -> None:
        with self._writing():
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def _show(self, samples: tuple[str, ...], step: int) -> None:
        with self._writing():
            self._writer.add_text("validation/samples", _page(samples), step)

    def close(self) -> None:
        with self._writing():
            self._writer.close()


class Wandb(Tracker):
    """Weights & Biases, with its own environment variables: WANDB_MODE=offline needs neither account nor network."""

    def __init__(self) -> None:
        self._wandb: Any = optional_module("wandb", extra="wandb", purpose="tracking a run with Weights & Biases")

    def start(self, folder: Path, name: str, config: dict[str, Any], *, step: int = 0) -> None:
        project = None if os.environ.get("WANDB_PROJECT") else "adlm"
        try:
            self._run = self._wandb.init(
                project=project, name=name, id=_identity(folder), resume="allow", dir=str(folder), config=config
            )
        except self._wandb.Error as error:
            fix = "run `wandb login`, or set WANDB_MODE=offline and upload later with `wandb sync`"
            asked = f"cannot track {name!r} with Weights & Biases"
            raise TrainingError(asked, str(error), fix, subject="wandb") from error
        # An axis of our own: on theirs, a validation that was interrupted could not be logged later.
        self._run.define_metric("*", step_metric="step")
        self._run.define_metric("validation/nats", step_metric="step", summary="min")
        self._last = self._run.summary.get("step", 0)

    def _log(self, values: dict[str, Any], step: int) -> None:
        self._run.log({"step": step, **values})

    def _show(self, samples: tuple[str, ...], step: int) -> None:
        table = self._wandb.Table(columns=["text"], data=[[text] for text in samples])
        self._log({"validation/samples": table}, step)

    def close(self) -> None:
        self._run.finish()


class Trackio(Tracker):
    """Trackio, in its own folder on this machine or, with TRACKIO_SPACE_ID, on a Space: `trackio show`."""

    def __init__(self) -> None:
        self._trackio: Any = optional_module("trackio", extra="trackio", purpose="tracking a run with Trackio")

    def start(self, folder: Path, name: str, config: dict[str, Any], *, step: int = 0) -> None:
        # It resumes the run of the same name, so two folders must not share one.
        unique = f"{name}-{_identity(folder)[:6]}"
        self._run = self._trackio.init(project="adlm", name=unique, config=config, resume="allow", embed=False)
        # No public name tells how far a run is. Without this one, repeated steps would be logged twice.
        self._last = getattr(self._run, "_next_step", 0) - 1

    def _log(self, values: dict[str, Any], step: int) -> None:
        self._run.log(values, step=step)

    def _show(self, samples: tuple[str, ...], step: int) -> None:
        self._log({"validation/samples": self._trackio.Markdown(_page(samples))}, step)

    def close(self) -> None:
        self._trackio.finish()


_TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": Wandb, "trackio": Trackio}


def tracker(name: str) -> Tracker:
    """A tracker by name: tensorboard, wandb or trackio."""
    if name not in _TRACKERS:
        raise UnknownName("tracker", name, _TRACKERS)
    return _TRACKERS[name]()


def _identity(folder: Path) -> str:
    """The id of the run in this folder: made once, and read again when it is resumed."""
    path = folder / TRACKING
    if not path.exists():
        write_atomically(path, json.dumps({"id": uuid.uuid4().hex[:12]}) + "\n")
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError) as error:
        fix = "delete it: the run is then tracked as a new one"
        asked = f"cannot resume tracking the run in {folder}"
        raise TrainingError(f"{asked}: no id in {path}; {fix}", subject=str(path)) from error


def _finite(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _page(samples: tuple[str, ...]) -> str:
    return "\n\n---\n\n".join(map(_code, samples))


def _code(text: str) -> str:
    """As Markdown that shows the text as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines())
