"""Checkpoints: everything a run needs to resume, written in the background, complete or not there at all.

    FOLDER/step-000000500/state.json             progress, and the size and checksum of every other file; written last
    FOLDER/step-000000500/shard-00001-….safetensors    tensors by name, in shards; one file per process

Written by torch.distributed.checkpoint under a temporary name and renamed when complete, so a process killed at any
moment leaves the checkpoints before it as they were. Shards know their position in the whole tensor: any number of
processes reads what any number wrote. Nothing is pickled. Noise, data order and dropout are functions of the seed and
the step, so no state of a random generator is saved.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.optim import Optimizer

from adlm.distributed import DistributedContext
from adlm.errors import TrainingError
from adlm.files import file_checksum, write_atomically
from adlm.models.language_model import LanguageModel
from adlm.resumable import checksum
from adlm.train.ema import Ema
from adlm.train.run_folder import RETRY, writing

STATE = "state.json"
FORMAT = 1
_NAME = re.compile(r"step-(\d{9})")
_WRITING, _DAMAGED = ".writing", ".damaged"
# torch warns of a single process, which is what is meant then.
_ALONE = "torch.distributed is disabled, unavailable or uninitialized"


@dataclass
class RunProgress:
    """The progress of a run, as stored in its checkpoints.

    Args:
        step: steps done.
        tokens: trained on.
        skipped: steps skipped because something was not finite.
        validated: the step of the last validation; -1 before the first.
        nats, error: its bound per token and standard error.
        best: the lowest bound so far.
        since_best: validations after that one.
        averaged: updates of the averaged weights.
    """

    step: int = 0
    tokens: int = 0
    skipped: int = 0
    validated: int = -1
    nats: float | None = None
    error: float | None = None
    best: float | None = None
    since_best: int = 0
    averaged: int = 0

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "RunProgress":
        """The progress stored in a checkpoint; version 0.1 stored it as `numbers`."""
        stored, known = state.get("progress", state.get("numbers", {})), {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in stored.items() if key in known})


class SavedCheckpoint(NamedTuple):
    """A complete checkpoint on disk: its state.json and the shapes of its tensors."""

    folder: Path
    state: dict[str, Any]
    shapes: dict[str, torch.Size]


class TrainState:
    """All tensors of a run by the names they have in a checkpoint: weights, optimizer states, averaged weights."""

    def __init__(self, model: LanguageModel, optimizers: Sequence[Optimizer], ema: Ema | None) -> None:
        self.model, self.optimizers, self.ema = model, optimizers, ema

    def tensors(self) -> dict[str, Tensor]:
        """Name -> tensor, to save or to fill. Scalars are stored as tensors [1]."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            tensors[f"model.{name}"] = parameter.detach()
            for optimizer in self.optimizers:
                # .get: `state` is a defaultdict, and a parameter that has had no gradient has no state.
                for key, value in optimizer.state.get(parameter, {}).items():
                    tensors[f"optimizer.{name}.{key}"] = value.detach() if value.ndim else value.detach().view(1)
        if self.ema is not None:
            tensors.update({f"ema.{name}": mean for name, mean in self.ema.mean.items()})
        return tensors

    def allocate(self, saved: SavedCheckpoint) -> dict[str, Tensor]:
        """The tensors to fill from a checkpoint. Optimizers create their state with the first gradient, so it is
        created here."""
        for name, parameter in self.model.named_parameters():
            for optimizer in self.optimizers:
                if not any(parameter is one for group in optimizer.param_groups for one in group["params"]):
                    continue
                prefix = f"optimizer.{name}."
                keys = [key.removeprefix(prefix) for key in sorted(saved.shapes) if key.startswith(prefix)]
                state = {key: _zeros(parameter, key) for key in keys if "." not in key}
                if state:
                    optimizer.state[parameter] = state
        tensors = self.tensors()
        if missing := sorted(tensors.keys() - saved.shapes.keys()):
            raise TrainingError(
                f"cannot resume from {saved.folder}",
                f"no {missing[0]} in it" + (f", and {len(missing) - 1} others are missing" if missing[1:] else ""),
                "the checkpoint belongs to another model: name another --out",
                subject=str(saved.folder),
            )
        return tensors


def _zeros(parameter: nn.Parameter, key: str) -> Tensor:
    return torch.zeros((), device=parameter.device) if key == "step" else torch.zeros_like(parameter.detach())


class Checkpoints:
    """The checkpoints of a run. Every method but `failed` is called by all processes together.

    Args:
        keep: how many of the last ones are kept.
        log: called with messages for the user, on the first process.
    """

    def __init__(
        self, folder: Path, context: DistributedContext, *, keep: int, log: Callable[[str], None] = print
    ) -> None:
        self.folder, self.context, self.keep, self.log = folder, context, keep, log
        # Its own group: writing in the background must not interleave with the collectives of training.
        self._group = dist.new_group(backend="gloo") if context.size > 1 else None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        context.on_first(self._settle)

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Start writing; the tensors may change as soon as this returns. Waits for the checkpoint before."""
        self.wait()
        unfinished = self.folder / f"step-{step:09d}{_WRITING}"
        problem = None
        if self.context.first:
            try:
                unfinished.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                problem = str(error)
        self._raise_together(problem)
        warnings.filterwarnings("ignore", message=_ALONE)
        written: Any = async_save(
            tensors,
            storage_writer=HuggingFaceStorageWriter(str(unfinished), save_distributed=True),
            process_group=self._group,
            no_dist=self._group is None,
        )
        self._pending = self._writer.submit(self._finish, written, unfinished, {**state, "step": step})

    def wait(self) -> None:
        """Wait until the last checkpoint is written; if that failed, all processes raise."""
        problem = self._problem()
        self._pending = None
        self._raise_together(problem)

    def _raise_together(self, problem: str | None) -> None:
        for rank, found in enumerate(self.context.all(problem)):
            if found is not None:
                raise TrainingError(
                    f"cannot write a checkpoint to {self.folder}",
                    found if self.context.size == 1 else f"process {rank}: {found}",
                    RETRY,
                    subject=str(self.folder),
                )

    @property
    def failed(self) -> bool:
        """Whether this process already knows that the next `wait` will raise."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def newest(self) -> SavedCheckpoint | None:
        """The newest complete checkpoint; None if there is none at all. Damaged ones are renamed, with a message."""
        name = self.context.on_first(self._newest)
        if name is None:
            return None
        folder = self.folder / name
        shapes = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        return SavedCheckpoint(folder, state, {key: torch.Size(value.size) for key, value in shapes.items()})  # type: ignore[union-attr]

    def load(self, saved: SavedCheckpoint, tensors: dict[str, Tensor]) -> None:
        """Fill `tensors` in place from a checkpoint."""
        warnings.filterwarnings("ignore", message=_ALONE)
        load(
            dict(tensors),
            storage_reader=HuggingFaceStorageReader(str(saved.folder)),
            process_group=self._group,
            no_dist=self._group is None,
        )

    def close(self) -> None:
        """Finish what is being written, or remove it if that fails."""
        self._problem()
        self._writer.shutdown()

    def _folders(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*") if _NAME.fullmatch(path.name))

    def _newest(self) -> str | None:
        damaged: dict[Path, str] = {}
        for folder in reversed(self._folders()):
            problem = _problem_in(folder)
            if problem is None:
                for other, why in damaged.items():
                    aside = other.with_name(other.name + _DAMAGED)
                    with writing(str(aside), aside):
                        shutil.rmtree(aside, ignore_errors=True)
                        other.replace(aside)
                    self.log(f"checkpoint {other.name} is damaged ({why}): renamed to {aside.name}")
                return folder.name
            damaged[folder] = problem
        if damaged:
            # No reason to start over without asking: they stay where they are until someone has looked.
            raise TrainingError(
                f"cannot resume from the checkpoints in {self.folder}",
                "all are damaged: " + "; ".join(f"{folder.name}: {why}" for folder, why in damaged.items()),
                "restore a copy of one, or train from the beginning with --resume never",
                subject=str(self.folder),
            )
        return None

    def _settle(self) -> None:
        """Publish what a killed process had finished writing, and remove what it had not."""
        for unfinished in self.folder.glob(f"step-*{_WRITING}"):
            if _problem_in(unfinished) is None:
                with writing(f"to {self.folder}", self.folder):
                    self._publish(unfinished)
            else:
                shutil.rmtree(unfinished, ignore_errors=True)

    def _publish(self, finished: Path) -> None:
        target = finished.with_name(finished.name.removesuffix(_WRITING))
        shutil.rmtree(target, ignore_errors=True)  # one of the same step, from before its validation
        finished.replace(target)
        _sync(self.folder)

    def _finish(self, written: Any, unfinished: Path, state: dict[str, Any]) -> None:
        """In the background: when the first process's future is done, all processes have written."""
        written.result()
        if not self.context.first:
            return
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": file_checksum(path)} for path in unfinished.iterdir()
        }
        body = {"format": FORMAT, **state, "files": files}
        write_atomically(unfinished / STATE, json.dumps({"check": checksum(body), **body}, indent=1) + "\n")
        self._publish(unfinished)
        for old in self._folders()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def _problem(self) -> str | None:
        error = self._pending.exception() if self._pending is not None else None
        if error is None:
            return None
        if self.context.first:
            for unfinished in self.folder.glob(f"step-*{_WRITING}"):
                shutil.rmtree(unfinished, ignore_errors=True)
        # torch raises the collected errors on every process: each reports its own.
        failures = getattr(error, "failures", None) or {self.context.rank: (error, None)}
        return _reason(failures[self.context.rank][0]) if self.context.rank in failures else None


def _problem_in(folder: Path) -> str | None:
    """What is wrong with a checkpoint; None if it is complete."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if state.pop("check") != checksum(state):
            return f"{STATE} does not match its checksum"
        if state["format"] != FORMAT:
            return f"{STATE} has format {state['format']}, this version reads {FORMAT}"
        for name, facts in state["files"].items():
            path = folder / Path(name).name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != facts["bytes"]:
                return f"{name} has {path.stat().st_size} bytes instead of {facts['bytes']}"
            if file_checksum(path) != facts["sha256"]:
                return f"{name} does not match its checksum"
    except FileNotFoundError:
        return f"no {STATE}"
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return f"{STATE} cannot be read: {error}"
    return None


def _reason(error: BaseException) -> str:
    """The root cause, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _sync(folder: Path) -> None:
    """Flush the names in a folder to disk, on systems that can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
