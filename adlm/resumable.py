"""Long computations: numbers for each of many items, by one process or several, resumable after an interruption."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adlm.distributed import DistributedContext
from adlm.errors import AdlmError

CountCallback = Callable[[int, int], None]  # items done, of how many


def checksum(value: Any) -> str:
    """SHA-256 of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def weights_checksum(model: torch.nn.Module) -> str:
    """SHA-256 of the names, types, shapes and values of all weights, on whatever device they are."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def each_of(
    count: int,
    compute: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    *,
    width: int,
    batch: int,
    context: DistributedContext | None = None,
    partial: Path | None = None,
    made_of: Mapping[str, Any] | None = None,
    progress: CountCallback | None = None,
) -> NDArray[np.float64]:
    """The numbers [count, width] that `compute` gives for each item, from item numbers [n] to [n, width].

    An item's numbers must not depend on the items it is computed with. Then the result is the same on any number of
    processes, and whether or not it was interrupted. An `AdlmError` on one process is raised on all of them.

    Args:
        partial: a file that keeps the numbers so far. It is read if it was made of the same things; whoever has
            stored the result removes it.
        made_of: whatever decides the numbers: model, data, protocol, seed.
    """
    context = context or DistributedContext()
    key = checksum({"made_of": made_of or {}, "count": count, "width": width, "batch": batch})
    blocks = -(-count // batch)
    done = context.on_first(lambda: _read(partial, key))
    left = [block for block in range(blocks) if block not in done]
    for start in range(0, len(left), context.size):
        # If blocks run out, a process repeats the first of the round, since all take part in the exchange.
        turn = left[start : start + context.size]
        mine = turn[context.rank] if context.rank < len(turn) else turn[0]
        numbers = np.arange(mine * batch, min((mine + 1) * batch, count))
        values = np.zeros((batch, width))
        problem: AdlmError | None = None
        try:
            values[: len(numbers)] = compute(numbers)
        except AdlmError as error:
            problem = error
        # A process that stopped alone would leave the others waiting for its numbers.
        if problems := [found for found in context.all(problem) if found is not None]:
            raise problems[0]
        together = context.gathered(torch.from_numpy(values)).numpy()
        for block, part in zip(turn, together, strict=False):
            done[block] = part[: min(batch, count - block * batch)]
        if context.first and partial is not None:
            _append(partial, key, {block: done[block] for block in turn})
        if progress is not None:
            progress(min(len(done) * batch, count), count)
    return np.concatenate([done[block] for block in range(blocks)]) if blocks else np.zeros((0, width))


def _read(path: Path | None, key: str) -> dict[int, NDArray[np.float64]]:
    """The blocks of a partial file. Blocks made of other things and a half-written last line are removed."""
    done: dict[int, NDArray[np.float64]] = {}
    if path is None or not path.is_file():
        return done
    whole = 0
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line) if line.endswith(b"\n") else {}
                if record["key"] != key:
                    break
                done[record["block"]] = np.array([[float(x) for x in row] for row in record["values"]])
            except (ValueError, KeyError, TypeError):
                break
            whole += len(line)
    os.truncate(path, whole)
    return done


def _append(path: Path, key: str, blocks: Mapping[int, NDArray[np.float64]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for block, values in blocks.items():
            # repr gives a float64 back to the bit, and infinities, for which JSON has no word.
            rows = [[repr(float(x)) for x in row] for row in values]
            file.write(json.dumps({"key": key, "block": block, "values": rows}) + "\n")
