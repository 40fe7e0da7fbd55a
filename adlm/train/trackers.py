"""Where a run can be watched: TensorBoard, Weights & Biases, Trackio.

Making a tracker imports its library, so that a missing one is named before anything is prepared. A run keeps its
identity in `tracking.json` of its folder, so that one that is resumed goes on as the same run.
"""

import json
import math
import os
import uuid
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import Any

from adlm.data.shards import write_atomically
from adlm.errors import TrainingError, UnknownName, optional_module
from adlm.train.folder import writing
from adlm.train.metrics import StepMetrics, ValidationMetrics

IDENTITY = "tracking.json"


class Tracker(ABC):
    """Told of every step and every validation between `open` and `close`."""

    _last = 0  # step that an interrupted run had got to, where what was told cannot be taken back

    @abstractmethod
    def open(self, folder: Path, name: str, config: dict[str, Any], *, step: int = 0) -> None:
        """Begin, or go on after `step`.

        Args:
            folder: of the run.
            config: the run as plain JSON.
        """

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _log(self, values: dict[str, float], step: int) -> None:
        """Finite numbers by name."""

    @abstractmethod
    def _show(self, samples: tuple[str, ...], step: int) -> None:
        """Texts of the model at this step."""

    def report(self, report: StepMetrics) -> None:
        if report.step <= self._last:
            return  # taken again after an interruption, with the same result
        values = {f"train/{name}": getattr(report, name) for name in ("loss", "bound", "gradient", "rate", "tokens")}
        machine = {"machine/speed": report.speed, "machine/memory": report.memory}
        self._log(_finite({**values, "train/skipped": report.skipped, **machine}), report.step)

    def validated(self, validated: ValidationMetrics) -> None:
        nats, perplexity = validated.nats, validated.perplexity
        values = {"nats": nats.mean, "error": nats.error, "perplexity": perplexity}
        self._log(_finite({f"validation/{name}": value for name, value in values.items()}), validated.step)
        if validated.samples:
            self._show(validated.samples, validated.step)


class TensorBoard(Tracker):
    """Event files in FOLDER/tensorboard: `tensorboard --logdir FOLDER`."""

    def __init__(self) -> None:
        optional_module("tensorboard", extra="track", purpose="tracking a run with TensorBoard")

    def open(self, folder: Path, name: str, config: dict[str, Any], *, step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writing = partial(writing, str(folder / "tensorboard"))
        with self._writing():
            # Steps that an interrupted run had got to and that are taken again are hidden.
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

    def open(self, folder: Path, name: str, config: dict[str, Any], *, step: int = 0) -> None:
        project = None if os.environ.get("WANDB_PROJECT") else "adlm"
        try:
            self._run = self._wandb.init(
                project=project, name=name, id=_identity(folder), resume="allow", dir=str(folder), config=config
            )
        except self._wandb.Error as error:
            fix = "run `wandb login`, or set WANDB_MODE=offline and upload later with `wandb sync`"
            raise TrainingError(f"asked to track {name!r} with Weights & Biases", str(error), fix) from error
        # An axis of our own: on theirs, a validation that was interrupted could not be told later.
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

    def open(self, folder: Path, name: str, config: dict[str, Any], *, step: int = 0) -> None:
        # It goes on with the run of the same name, so two folders must not share one.
        unique = f"{name}-{_identity(folder)[:6]}"
        self._run = self._trackio.init(project="adlm", name=unique, config=config, resume="allow", embed=False)
        # No public name tells how far a run is. Without this one, steps that are taken again are there twice.
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
    """Of the run in this folder: made once, and found again when it is resumed."""
    path = folder / IDENTITY
    if not path.exists():
        write_atomically(path, json.dumps({"id": uuid.uuid4().hex[:12]}) + "\n")
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError) as error:
        fix = "delete it: the run is then tracked as a new one"
        raise TrainingError(f"asked to go on tracking the run in {folder}", f"no id in {path}", fix) from error


def _finite(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _page(samples: tuple[str, ...]) -> str:
    return "\n\n---\n\n".join(map(_code, samples))


def _code(text: str) -> str:
    """As Markdown that shows the text as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines())
