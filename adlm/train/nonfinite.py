"""When a loss or a gradient is not finite: which samples, where, and the batch itself kept to look at."""

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from adlm.distributed import DistributedContext
from adlm.errors import TrainingError
from adlm.train.folder import writing
from adlm.train.step import StepResult
from adlm.types import Batch

FOLDER = "nonfinite"


def keep_batch(
    out: Path, world: DistributedContext, batch: Batch, outcome: StepResult, step: int, micro_batch_size: int
) -> TrainingError:
    """Write every process's part of the batch; the error that says what happened, the same on all of them.

    Args:
        step: its number, counted from 0; a person is told of the first one as step 1.
    """
    name = f"step-{step + 1:09d}-rank-{world.rank}.safetensors"
    tensors = {key: value.contiguous() for key, value in vars(batch).items() if isinstance(value, Tensor)}
    with writing(f"the batch of step {step + 1} to {out / FOLDER}"):
        (out / FOLDER).mkdir(parents=True, exist_ok=True)
        save_file(tensors, out / FOLDER / name)
    samples = [i for number in outcome.suspects for i in batch.split(micro_batch_size)[number].index.tolist()]
    suspects = [(rank, found) for rank, found in enumerate(world.all(samples)) if found]
    if suspects:
        where = "; ".join(f"rank {rank}, samples {_some(found)}" for rank, found in suspects)
    else:
        every = [i for part in world.all(batch.index.tolist()) for i in part]
        where = f"every loss is finite, the gradient is not; samples {_some(every)}"
    return TrainingError(
        f"asked for training step {step + 1}",
        f"loss {outcome.loss}, gradient norm {outcome.gradient}: {where}",
        f"the weights are those before the step, and the batch is in {out / FOLDER}; lower the learning rate, look at "
        "the samples, or leave such steps out with --on-nonfinite skip",
    )


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:16])) + (f" and {len(numbers) - 16} more" if len(numbers) > 16 else "")
