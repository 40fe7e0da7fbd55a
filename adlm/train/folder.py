"""The folder of a run, and whether what is asked for now is what was begun there.

FOLDER/config.json         the model's config with the run in it: `adlm train FOLDER/config.json` trains it again
FOLDER/metrics.jsonl       a line a step; FOLDER/curves.png at the end
FOLDER/checkpoints/        to go on from
FOLDER/best/               the model with the best validation bound so far
FOLDER/model.safetensors   at the end, and what else `adlm.load` needs
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from adlm import registry
from adlm.config import from_json, renamed, to_json
from adlm.data.shards import write_atomically
from adlm.distributed import DistributedContext
from adlm.errors import ConfigError, TrainingError
from adlm.models.io import CONFIG, FORMAT, ModelConfig
from adlm.train.run import Run

# What may change between two sittings of a run, with `--allow-change`: these alter how it goes on, not what was
# done. Data is let through here because its checksum is compared by itself, wherever it lies now.
CHANGEABLE = (
    "name",
    "data",
    "start",
    "validation",
    "checkpoint",
    "train.steps",
    "train.lr_schedule",
    "train.grad_clip",
    "train.optimizer.lr",
    "train.optimizer.matrix_lr",
    "train.micro_batch_size",
    "train.bf16",
    "train.compile",
    "train.activation_checkpointing",
)


_LOCK = ".lock"


@contextmanager
def writing(what: str) -> Iterator[None]:
    """A disk that is full or closed to us, in the words of this package."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors has an error of its own for what the system refuses
        raise TrainingError(
            f"asked to write {what}",
            str(error),
            "make room, or name a folder you can write to, and run the same command again: it goes on from the last "
            "whole checkpoint",
        ) from error


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """The folder for this run alone; a killed process lets go of it."""
    with writing(f"to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise TrainingError(
                f"asked to train in {folder}", "another process is training there", "wait for it, or name another --out"
            ) from None
    try:
        yield
    finally:
        lock.release()


def check_shared(folder: Path, world: DistributedContext) -> None:
    """Every process writes its part of a checkpoint to the folder, so all must see the same one."""
    for _ in range(20):
        if (folder / _LOCK).exists():
            break
        time.sleep(0.5)  # names take a while to show on some network file systems
    for rank, seen in enumerate(world.all((folder / _LOCK).exists())):
        if not seen:
            raise TrainingError(
                f"asked to train in {folder} on {world.size} processes",
                f"process {rank} does not see what the first one wrote there",
                "name a folder that all machines share",
            )


def write_config(folder: Path, config: ModelConfig) -> None:
    """What is being trained, before there is a model."""
    with writing(str(folder / CONFIG)):
        write_atomically(folder / CONFIG, json.dumps({"format": FORMAT, **to_json(config)}, indent=2) + "\n")


def stored_run(path: Path) -> dict[str, Any] | None:
    """The run in a config.json, or in the one of a folder; None where there is none."""
    file = path / CONFIG if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"asked to read the run in {file}", str(error), "the file is damaged: get it again"
        ) from error
    whole = renamed(data) if isinstance(data, dict) else {}
    run = whole if whole.get("kind") == "Run" else whole.get("run")
    if not isinstance(run, dict):
        return None
    registry.offer_imports(run.get("imports"), file.parent)
    return {**run, "imports": run.get("imports", [])}  # which 0.1 did not have


def read_run(path: Path) -> Run:
    """The run that a config.json describes."""
    run = stored_run(path)
    if run is None:
        found = "no run in it: the model was not trained by `adlm train`" if path.exists() else "no such file"
        raise ConfigError(
            f"asked to train {path} again", found, "name a recipe (`adlm recipes`), or a run's config.json"
        )
    try:
        return from_json(Run, run, where="run")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"asked to train {path} again", f"it makes no sense: {error}", "get the file again"
        ) from error


def check_unchanged(folder: Path, run: Run, *, allow_change: bool) -> None:
    """Refuse to go on in `folder` with another run than the one that was begun there."""
    before = stored_run(folder / CONFIG)
    if before is None:
        return
    changes = differences(before, to_json(run))
    if not changes:
        return
    lines = "\n    ".join(f"{name}: {old} then, {new} now" for name, old, new in changes)
    fixed = [name for name, _, _ in changes if not _changeable(name)]
    asked = f"asked to go on with the run in {folder}"
    if fixed:
        fix = f"{', '.join(fixed)} cannot change within a run: name another --out, or set it back"
        raise ConfigError(asked, f"another run is in it:\n    {lines}", fix)
    if not allow_change:
        fix = "set it back, name another --out, or go on with --allow-change"
        raise ConfigError(asked, f"its config was different:\n    {lines}", fix)


def same_run(folder: Path, run: Run) -> bool:
    """Whether the run that was begun in `folder` is this one."""
    before = stored_run(folder)
    return before is not None and not differences(before, to_json(run))


def _changeable(name: str) -> bool:
    return any(name == allowed or name.startswith(allowed + ".") for allowed in CHANGEABLE)


def differences(before: Any, now: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    """Fields that differ, by dotted name."""
    if isinstance(before, dict) and isinstance(now, dict) and before.get("kind") == now.get("kind"):
        found = []
        for key in sorted({*before, *now} - {"imports"}):  # they decide where classes are found, not which
            inner = f"{where}.{key}" if where else key
            found += differences(before.get(key), now.get(key), inner)
        return found
    return [] if before == now else [(where, _short(before), _short(now))]


def _short(value: Any) -> Any:
    return value["kind"] if isinstance(value, dict) and "kind" in value else value
