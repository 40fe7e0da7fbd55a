"""The folder of a run, and whether a run may be resumed in it.

FOLDER/config.json         the model's config with the run in it: `adlm train FOLDER/config.json` trains it again
FOLDER/metrics.jsonl       one line per step; FOLDER/curves.png at the end
FOLDER/checkpoints/        to resume from
FOLDER/best/               the model with the best validation bound so far
FOLDER/nonfinite/          batches whose loss or gradient was not finite
FOLDER/model.safetensors   at the end, and what else `adlm.load` needs
"""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from adlm import registry
from adlm.config import differences, from_json, renamed, to_json
from adlm.distributed import DistributedContext
from adlm.errors import AdlmError, ConfigError, TrainingError
from adlm.files import write_atomically
from adlm.models.io import CONFIG, FORMAT, WEIGHTS, ModelConfig
from adlm.train.execution import EXECUTION
from adlm.train.run import Run
from adlm.types import Batch

CHECKPOINTS, BEST, NONFINITE, TRACKING = "checkpoints", "best", "nonfinite", "tracking.json"
# What may change when a run is resumed with `--allow-change`: these alter how it continues, not what was done. Data is
# let through here because the loader compares its checksum, wherever the files are now.
CHANGEABLE = (
    "name",
    "data",
    "init",
    "validation",
    "checkpoint",
    "train.steps",
    "train.lr_schedule",
    "train.grad_clip",
    "train.optimizer.lr",
    "train.optimizer.matrix_lr",
    "train.micro_batch_size",
    "train.precision",
    "train.compile",
    "train.activation_checkpointing",
)
_LOCK = ".lock"
RETRY = (
    "free some space or choose a writable folder, then run the same command again: it resumes from the last checkpoint"
)


@contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Turn the errors of a disk that is full or not writable into a `TrainingError` about `path`."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors wraps the errors of the system in its own
        raise TrainingError(f"cannot write {what}", str(error), RETRY, subject=str(path)) from error


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock the folder for this process; a killed process releases it."""
    with writing(f"to {folder}", folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            fix = "wait for it, or name another --out"
            raise TrainingError(
                f"cannot train in {folder}: another process is training there; {fix}", subject=str(folder)
            ) from None
    try:
        yield
    finally:
        lock.release()


def check_shared(folder: Path, context: DistributedContext) -> None:
    """Check that all processes see the same folder, to which each writes its part of a checkpoint."""
    for _ in range(20):
        if (folder / _LOCK).exists():
            break
        time.sleep(0.5)  # names take a while to show on some network file systems
    for rank, seen in enumerate(context.all((folder / _LOCK).exists())):
        if not seen:
            raise TrainingError(
                f"cannot train in {folder} on {context.size} processes",
                f"process {rank} does not see what the first one wrote there",
                "name a folder that all machines share",
                subject=str(folder),
            )


def check_folder(folder: Path, run: Run, *, resume: str, allow_change: bool) -> None:
    """Refuse to train over a model from elsewhere, or to resume another run than the one begun in `folder`."""
    if any((folder / name).exists() for name in (WEIGHTS, CONFIG)) and stored_run(folder) is None:
        found = "a model that was not trained there by this package"
        raise ConfigError(f"cannot train in {folder}: {found}; name another --out", subject=str(folder))
    if resume == "auto":
        check_unchanged(folder, run, allow_change=allow_change)


def clear_folder(folder: Path) -> None:
    """Remove what a run left, to start again."""
    (folder / WEIGHTS).unlink(missing_ok=True)  # first: they must not meet the config of another run
    for name in (CHECKPOINTS, BEST):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (TRACKING, EXECUTION):
        (folder / name).unlink(missing_ok=True)


def write_config(folder: Path, config: ModelConfig) -> None:
    """Write the config of a model that is being trained."""
    with writing(str(folder / CONFIG), folder / CONFIG):
        write_atomically(folder / CONFIG, json.dumps({"format": FORMAT, **to_json(config)}, indent=2) + "\n")


def keep_batch(folder: Path, context: DistributedContext, batch: Batch, step: int, suspects: Sequence[int]) -> str:
    """Write every process's part of a batch that is not finite; returns which samples are suspect, over all ranks.

    Args:
        step: number of the step, from 1.
        suspects: indices of this process's samples whose loss was not finite.
    """
    path = folder / NONFINITE / f"step-{step:09d}-rank-{context.rank}.safetensors"
    tensors = {key: value.contiguous() for key, value in vars(batch).items() if isinstance(value, Tensor)}
    with writing(f"the batch of step {step} to {path.parent}", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path)
    found = [(rank, samples) for rank, samples in enumerate(context.all(list(suspects))) if samples]
    if found:
        return "; ".join(f"rank {rank}, samples {_some(samples)}" for rank, samples in found)
    every = [sample for samples in context.all(batch.index.tolist()) for sample in samples]
    return f"every loss is finite, the gradient is not; samples {_some(every)}"


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:16])) + (f" and {len(numbers) - 16} more" if len(numbers) > 16 else "")


def stored_run(path: Path) -> dict[str, Any] | None:
    """The run in a config.json or a run's folder, as JSON; None if there is none."""
    file = path / CONFIG if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        raise ConfigError(f"the run in {file} cannot be read: {error}", subject=str(file)) from error
    whole = renamed(data) if isinstance(data, dict) else {}
    run = whole if whole.get("kind") == "Run" else whole.get("run")
    if not isinstance(run, dict):
        return None
    registry.offer_imports(run.get("imports"), file.parent)
    return {**run, "imports": run.get("imports", [])}  # which 0.1 did not have


def read_run(path: Path) -> Run:
    """The run described by a config.json or a run's folder."""
    run = stored_run(path)
    asked = f"cannot train the run in {path}"
    if run is None:
        found = "no run in it: the model was not trained by `adlm train`" if path.exists() else "no such file"
        raise ConfigError(
            f"{asked}: {found}; name a recipe (`adlm recipes`), or a run's config.json", subject=str(path)
        )
    try:
        return from_json(Run, run, where="run")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{asked}: its config is not valid: {error}", subject=str(path)) from error


def check_unchanged(folder: Path, run: Run, *, allow_change: bool) -> None:
    """Refuse to resume in `folder` with another run than the one that was begun there."""
    before = stored_run(folder / CONFIG)
    if before is None:
        return
    changes = list(differences(_completed(before), to_json(run)))
    if not changes:
        return
    lines = "\n    ".join(f"{name}: was {old}, now {new}" for name, old, new in changes)
    fixed = [name for name, _, _ in changes if not _changeable(name)]
    asked, found = f"cannot resume the run in {folder}", f"its config was different:\n    {lines}"
    if fixed:
        fix = f"{', '.join(fixed)} cannot change within a run: name another --out, or set it back"
        raise ConfigError(asked, found, fix, subject=", ".join(fixed))
    if not allow_change:
        fix = "set it back, name another --out, or resume with --allow-change"
        raise ConfigError(asked, found, fix, subject=", ".join(name for name, _, _ in changes))


def same_run(folder: Path, run: Run) -> bool:
    """Whether the run that was begun in `folder` is this one."""
    before = stored_run(folder)
    return before is not None and not list(differences(_completed(before), to_json(run)))


def _completed(stored: dict[str, Any]) -> dict[str, Any]:
    """A stored run with the defaults of fields that came after it was stored; as it is if it cannot be read."""
    try:
        return dict(to_json(from_json(Run, stored, where="run")))
    except (AdlmError, TypeError, ValueError):
        return stored


def _changeable(name: str) -> bool:
    return any(name == allowed or name.startswith(allowed + ".") for allowed in CHANGEABLE)
