"""What all evaluations share: the model, the processes, files that let a long run resume, and where the result goes."""

import glob
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.distributed import DistributedContext, joined
from adlm.errors import OutOfRange
from adlm.evaluate.result import Result
from adlm.resumable import CountCallback, each_of, weights_checksum
from adlm.text_model import TextModel, load

ModelLike = TextModel | str | Path
Progress = Callable[[str, int, int], None]  # the part that is running, items done, of how many (0: not known)


@dataclass(frozen=True)
class Measurement:
    """A running evaluation.

    Args:
        out: the file of the result. Partial results are kept beside it, so that a second call resumes. None: nothing
            is written.
    """

    context: DistributedContext
    out: Path | None = None
    progress: Progress | None = None

    @classmethod
    def alone(cls, model: torch.nn.Module) -> "Measurement":
        """On this process and the model's device, with nothing kept."""
        return cls(DistributedContext(device=next(model.parameters(), torch.zeros(0)).device))

    def partial(self, label: str) -> Path | None:
        """The file that keeps what is done of one part."""
        return None if self.out is None else partial_file(self.out, label)

    def counts(self, label: str) -> CountCallback | None:
        """The progress callback of one part, on the first process."""
        progress = self.progress
        if progress is None or not self.context.first:
            return None
        return lambda done, count: progress(label, done, count)

    def each_of(
        self,
        label: str,
        count: int,
        compute: Callable[[NDArray[np.int64]], NDArray[np.float64]],
        *,
        width: int,
        batch: int,
        made_of: Mapping[str, Any],
    ) -> NDArray[np.float64]:
        """`adlm.resumable.each_of` with this evaluation's processes, partial file and progress."""
        told = self.counts(label)
        found = each_of(
            count,
            compute,
            width=width,
            batch=batch,
            context=self.context,
            partial=self.partial(label),
            made_of=made_of,
            progress=told,
        )
        if told is not None:
            told(count, count)  # also if all was found in the partial file
        return found

    def finish(self, result: Result) -> Result:
        """Store the result, if it is to be stored, and remove the partial files."""
        if self.out is not None and self.context.first:
            result.save(self.out)
            for file in self.out.parent.glob(f"{glob.escape(self.out.name)}.*.partial"):
                file.unlink()
        return result


@contextmanager
def measuring(
    model: ModelLike | None, out: str | Path | None, device: str | None, progress: Progress | None
) -> Iterator[Measurement]:
    """A measurement on the processes that `torchrun` started, or on this one alone.

    Args:
        device: by default that of a model which is already loaded, else what there is.
    """
    if device is None:
        device = _device_of(model) if isinstance(model, TextModel) else "auto"
    with joined(device) as context:
        yield Measurement(context, None if out is None else Path(out), progress)


def _device_of(model: TextModel) -> str:
    return next((str(weight.device) for weight in model.network.parameters()), "cpu")


def opened(
    model: ModelLike, context: DistributedContext, revision: str | None = None, block_size: int | None = None
) -> tuple[TextModel, dict[str, Any]]:
    """A model on the device of this process, and what a result says of it: its name and a checksum of its weights.

    Args:
        block_size: read it in blocks of this many tokens (`TextModel.in_blocks`). A result of a model that reads blocks
            says their size.
    """
    if isinstance(model, TextModel):
        found, name = model, str((model.config.run or {}).get("name", "model"))
    else:
        found, name = load(model, revision=revision), str(model)
    found.network.eval().to(context.device)
    about: dict[str, Any] = {"name": name, "weights": weights_checksum(found.network)}
    if block_size is not None:
        found = found.in_blocks(block_size)
    elif found.network.attention == "block":
        block_size = found.network.block_size
    return found, about if block_size is None else about | {"block_size": block_size}


def check_counts(**counts: int | None) -> None:
    """Refuse a number below 1, under its name."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise OutOfRange(name, count, "at least 1")


def result_path(*parts: str) -> Path:
    """The default path of a result: runs/evaluate/PARTS.json."""
    name = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in parts)
    return Path("runs/evaluate") / f"{name[-200:]}.json"


def partial_file(out: Path, label: str) -> Path:
    """The file that keeps what is done of one part of a result until it is stored."""
    return out.with_name(f"{out.name}.{re.sub('[^A-Za-z0-9_.-]+', '-', label)}.partial")
