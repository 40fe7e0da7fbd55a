"""Checkpoints: all that a run needs to go on, written while it goes on, and whole or not there at all.

    FOLDER/step-000000500/state.json             numbers, and the size and checksum of every other file; written last
    FOLDER/step-000000500/shard-00001-….safetensors    tensors by name, in parts; as many files as processes

Written by torch.distributed.checkpoint under a temporary name that is changed in one step, so a process killed at
any moment leaves the checkpoints before it as they were. Parts know their place in the whole tensor: any number of
processes reads what any number wrote. Nothing is pickled.
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from adlm.data.shards import checksum, write_atomically
from adlm.distributed import DistributedContext
from adlm.errors import TrainingError
from adlm.train.folder import writing

STATE = "state.json"
FORMAT = 1
_NAME = re.compile(r"step-(\d{9})")
_WRITING, _DAMAGED = ".writing", ".damaged"
# One process is what is meant where there is one.
_ALONE = "torch.distributed is disabled, unavailable or uninitialized"


class Found(NamedTuple):
    """A checkpoint that is whole."""

    folder: Path
    state: dict[str, Any]
    shapes: dict[str, torch.Size]


class Checkpoints:
    """The checkpoints of a run. Every method but `failed` is called by all processes together."""

    def __init__(self, folder: Path, world: DistributedContext, *, keep: int, say: Callable[[str], None]) -> None:
        self.folder, self.world, self.keep, self.say = folder, world, keep, say
        # Its own group: what is written in the background must not meet the collectives of training.
        self._group = dist.new_group(backend="gloo") if world.size > 1 else None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        world.on_first(self._settle)

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Begin to write; the tensors may change as soon as this returns. Waits for the one before."""
        self.wait()
        unfinished = self.folder / f"step-{step:09d}{_WRITING}"
        problem = None
        if self.world.first:
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
        """Until the last one is written, or could not be: then all processes raise."""
        problem = self._problem()
        self._pending = None
        self._raise_together(problem)

    def _raise_together(self, problem: str | None) -> None:
        for rank, found in enumerate(self.world.all(problem)):
            if found is not None:
                raise TrainingError(
                    f"asked to write a checkpoint to {self.folder}",
                    found if self.world.size == 1 else f"process {rank}: {found}",
                    "make room, or name a folder you can write to, and run the same command again: it goes on from "
                    "the last whole checkpoint",
                )

    @property
    def failed(self) -> bool:
        """Whether this process knows already that the next `wait` will raise."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def newest(self) -> Found | None:
        """The newest whole checkpoint; None where there is none at all. Damaged ones are put aside, saying so."""
        name = self.world.on_first(self._newest)
        if name is None:
            return None
        folder = self.folder / name
        shapes = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        return Found(folder, state, {key: torch.Size(value.size) for key, value in shapes.items()})  # type: ignore[union-attr]

    def load(self, found: Found, tensors: dict[str, Tensor]) -> None:
        """Fill `tensors` in place."""
        warnings.filterwarnings("ignore", message=_ALONE)
        load(
            dict(tensors),
            storage_reader=HuggingFaceStorageReader(str(found.folder)),
            process_group=self._group,
            no_dist=self._group is None,
        )

    def close(self) -> None:
        """What is being written is finished first, or taken away where it could not be."""
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
                    with writing(str(aside)):
                        shutil.rmtree(aside, ignore_errors=True)
                        other.replace(aside)
                    self.say(f"checkpoint {other.name} is damaged ({why}): put aside as {aside.name}")
                return folder.name
            damaged[folder] = problem
        if damaged:
            # Not a reason to begin anew by itself: they stay where they are until someone has looked.
            raise TrainingError(
                f"asked to go on from the checkpoints in {self.folder}",
                "none is whole: " + "; ".join(f"{folder.name}: {why}" for folder, why in damaged.items()),
                "put back a copy of one, or train from the beginning with --resume never",
            )
        return None

    def _settle(self) -> None:
        """What a killed process was writing: only the name is missing, or it is taken away."""
        for unfinished in self.folder.glob(f"step-*{_WRITING}"):
            if _problem_in(unfinished) is None:
                with writing(f"to {self.folder}"):
                    self._publish(unfinished)
            else:
                shutil.rmtree(unfinished, ignore_errors=True)

    def _publish(self, finished: Path) -> None:
        target = finished.with_name(finished.name.removesuffix(_WRITING))
        shutil.rmtree(target, ignore_errors=True)  # one of the same step, from before its validation
        finished.replace(target)
        _sync(self.folder)

    def _finish(self, written: Any, unfinished: Path, state: dict[str, Any]) -> None:
        """In the background: all processes have written when the first one's future is done."""
        written.result()
        if not self.world.first:
            return
        files = {path.name: {"bytes": path.stat().st_size, "sha256": checksum(path)} for path in unfinished.iterdir()}
        body = {"format": FORMAT, **state, "files": files}
        write_atomically(unfinished / STATE, json.dumps({"check": _check(body), **body}, indent=1) + "\n")
        self._publish(unfinished)
        for old in self._folders()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def _problem(self) -> str | None:
        error = self._pending.exception() if self._pending is not None else None
        if error is None:
            return None
        if self.world.first:
            for unfinished in self.folder.glob(f"step-*{_WRITING}"):
                shutil.rmtree(unfinished, ignore_errors=True)
        # torch collects what the processes raised and has all of them raise it: those tell that it happened to.
        failures = getattr(error, "failures", None) or {self.world.rank: (error, None)}
        return _reason(failures[self.world.rank][0]) if self.world.rank in failures else None


def _problem_in(folder: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if state.pop("check") != _check(state):
            return f"{STATE} does not match its checksum"
        if state["format"] != FORMAT:
            return f"{STATE} has format {state['format']}, this version reads {FORMAT}"
        for name, facts in state["files"].items():
            path = folder / Path(name).name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != facts["bytes"]:
                return f"{name} has {path.stat().st_size} bytes instead of {facts['bytes']}"
            if checksum(path) != facts["sha256"]:
                return f"{name} does not match its checksum"
    except FileNotFoundError:
        return f"no {STATE}"
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return f"{STATE} cannot be read: {error}"
    return None


def _reason(error: BaseException) -> str:
    """The first cause, in a line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _check(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _sync(folder: Path) -> None:
    """Names too are on disk, where folders can be opened."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
