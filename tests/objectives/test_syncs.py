"""An accelerator is waited for only where the size of a result depends on its values."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adlm.diffusion.corruption import CountMasking
from adlm.models.hand_over import Hidden
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives import AnchoredCrossEntropy, Anelbo, CrossEntropy, Nelbo
from adlm.randomness import Noise
from adlm.types import Batch

VOCABULARY = Vocabulary(12, 11)
STACK = StackConfig(width=16, heads=2, layers=2)
CAUSAL = StackConfig(width=16, heads=2, layers=2, attention="causal")


class Waits(TorchDispatchMode):
    """Counts operations that would make the CPU wait for an accelerator."""

    def __init__(self):
        super().__init__()
        self.scalars = self.sizes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_", "_unsafe_index") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        self.scalars += name in ("_local_scalar_dense", "equal", "is_nonzero")
        self.sizes += by_mask or name in ("nonzero", "masked_select", "unique", "_unique2")
        return func(*args, **(kwargs or {}))


def rows(padded):
    tokens = torch.randint(0, 11, (8, 16), generator=torch.Generator().manual_seed(0))
    valid = torch.ones_like(tokens, dtype=torch.bool)
    if padded:
        valid[:, 14:] = False  # too little to repack
    return Batch(tokens, valid, torch.arange(8), torch.arange(8))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("objective", "network", "sizes"),
    [
        # The positions that the model computes, and the tokens to predict there; those of the anchor term.
        (Nelbo(), OneStageConfig(STACK), 2),
        (Nelbo(CountMasking()), OneStageConfig(STACK), 2),
        (CrossEntropy(), OneStageConfig(CAUSAL), 2),
        (Anelbo(gamma=1.0), TwoStageConfig(STACK, 1, Hidden()), 3),
        (AnchoredCrossEntropy(gamma=1.0), TwoStageConfig(CAUSAL, 1, Hidden()), 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_step_waits_no_more_than_it_must(objective, network, sizes, padded):
    model, batch = network.build(VOCABULARY), rows(padded)
    assert batch.padded == padded  # as `Batch.to` asks on the CPU
    with Waits() as found:
        objective(model, batch, progress=1.0, noise=Noise(0)).loss_sum.backward()
    assert found.sizes == sizes
    # A plan for repacking is made on the CPU, from one copy of the segments.
    assert found.scalars == (2 if padded else 0)


def test_the_counter_counts():
    x = torch.arange(4)
    with Waits() as found:
        x[x > 1].sum().item()
        bool((x > 1).all())
    assert (found.scalars, found.sizes) == (2, 1)


def test_whether_a_batch_has_padding_is_asked_once_and_never_of_a_device():
    for padded in (False, True):
        batch = rows(padded)
        with Waits() as found:
            parts = [batch.to("cpu"), *batch.split(3)]
            known = [part.padded for part in parts] + [part.segments is not None for part in parts]
        assert known == [padded] * len(known)
        assert found.scalars == len(parts)  # one for each batch
    moved = rows(True).to("meta")
    assert moved.padded  # without asking the device, which has no values here
    assert moved.segments.device.type == "meta"
