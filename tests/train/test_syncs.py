"""The trainer waits for its device once per step."""

from contextlib import nullcontext

import pytest
import torch
from torch._C import _len_torch_function_stack
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily

from adlm.data.synthetic import Synthetic
from adlm.diffusion.corruption import CountMasking
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.objectives.nelbo import Nelbo
from adlm.train.optimizers import AdamW, Muon
from adlm.train.run import Run, TrainConfig
from adlm.train.trainer import Trainer

# What makes the host wait for a device, as Python sees it.
READS = {
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.cpu,
    torch.Tensor.numpy,
    torch.Tensor.__bool__,
    torch.Tensor.__float__,
    torch.Tensor.__int__,
    torch.Tensor.__index__,
    torch.Tensor.nonzero,
    torch.nonzero,
}


class Reads(TorchFunctionMode):
    """Counts reads of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func in READS
        return func(*args, **(kwargs or {}))


class Unseen(Nelbo):
    """What the objective reads is not counted: noise is made in main memory, which is not a device."""

    def __call__(self, model, batch, *, progress, noise):
        with _pop_mode_temporarily() if _len_torch_function_stack() else nullcontext():
            return super().__call__(model, batch, progress=progress, noise=noise)


def test_the_counter_counts():
    tensor = torch.ones(3)
    with Reads() as reads:
        tensor[0].item()
        tensor.tolist()
        if tensor[0] > 0:
            float(tensor[1])
    assert reads.count == 4


@pytest.mark.parametrize("optimizer", [AdamW(lr=1e-3), Muon()], ids=["AdamW", "Muon"])
def test_a_step_reads_its_device_once(tmp_path, optimizer):
    data = Synthetic(vocabulary=40, length=16, count=64)
    network = OneStageConfig(StackConfig(width=32, heads=2, layers=2, dropout=0.1), tied=True)
    train = TrainConfig(steps=6, tokens_per_step=8 * 16, micro_batch_size=4, optimizer=optimizer, ema_decay=0.9)
    run = Run("small", data, network, Unseen(CountMasking()), train)
    trainer = Trainer(run, data.prepare(), tmp_path)
    batch = trainer.loader.batch(0)
    trainer.train_step(batch)  # optimizers make their state with the first
    with Reads() as reads:
        result = trainer.train_step(batch)
    trainer.close()
    assert result.taken
    assert reads.count == 1
