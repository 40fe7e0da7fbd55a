"""The trainer waits for its device once per step."""

import sys

import pytest
import torch
from torch.overrides import TorchFunctionMode

import adlm.types
from adlm.data.synthetic import Synthetic
from adlm.diffusion.corruption import CountMasking
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.objectives.nelbo import Nelbo
from adlm.train.optimizers import AdamW, Muon
from adlm.train.run import Run, TrainConfig
from adlm.train.trainer import Trainer

# Values that travel from a device to the host. Not `numpy`, which only main memory has, and not `nonzero`, by which
# the objective chooses the positions it scores.
READS = {
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.cpu,
    torch.Tensor.__bool__,
    torch.Tensor.__float__,
    torch.Tensor.__int__,
    torch.Tensor.__index__,
}


class Reads(TorchFunctionMode):
    """Counts reads of tensors, except by `Batch`, which looks at itself before it goes to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func in READS and sys._getframe(1).f_code.co_filename != adlm.types.__file__
        return func(*args, **(kwargs or {}))


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
    run = Run("small", data, network, Nelbo(CountMasking()), train)
    trainer = Trainer(run, data.prepare(), tmp_path)
    batch = trainer.loader.batch(0)
    trainer.train_step(batch)  # optimizers make their state with the first
    with Reads() as reads:
        result = trainer.train_step(batch)
    trainer.close()
    assert result.taken
    assert reads.count == 1
