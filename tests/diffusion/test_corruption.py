import pytest
import torch

from adlm.diffusion.corruption import CountMasking, UniformMasking, spread
from adlm.diffusion.schedule import LogLinear
from adlm.randomness import Noise
from adlm.types import Batch
from tests.conftest import batch_of

MASK = 50


def rows(count: int, length: int = 20) -> Batch:
    return batch_of(torch.randint(0, 50, (count, length), generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("corruption", [UniformMasking(), CountMasking()], ids=repr)
def test_only_scored_positions_are_masked_and_the_rest_stays(corruption):
    batch = rows(200)
    valid = torch.arange(20) < torch.randint(1, 20, (200, 1))
    fixed = torch.zeros_like(valid)
    fixed[:, 0] = True
    batch = Batch(batch.tokens, valid, batch.index, batch.draw, fixed)
    x_0, x_t, t, masked, weight = corruption(batch, MASK, Noise(0))
    assert not (masked & ~batch.scored).any()
    assert (x_t[masked] == MASK).all()
    assert torch.equal(x_t[~masked], x_0[~masked])
    assert ((t >= 0) & (t <= 1)).all()
    assert weight[batch.scored.any(-1)].isfinite().all()


def test_uniform_masking_masks_as_many_as_the_schedule_says():
    batch = rows(4000)
    _, _, t, masked, _ = UniformMasking()(batch, MASK, Noise(1))
    for low in (0.1, 0.5, 0.9):
        near = (t > low - 0.05) & (t < low + 0.05)
        assert masked[near].float().mean().item() == pytest.approx(
            (1 - LogLinear().alpha(t[near])).mean().item(), abs=0.02
        )


def test_count_masking_draws_every_count_equally_often_and_every_position():
    batch = rows(4000, 8)
    _, _, _, masked, weight = CountMasking()(batch, MASK, Noise(2))
    counts = masked.sum(-1)
    assert torch.bincount(counts, minlength=9)[1:].tolist() == pytest.approx([500] * 8, abs=5)
    assert torch.allclose(weight, 8 / counts)
    for k in (1, 4):
        share = masked[counts == k].float().mean(0)
        assert (share - k / 8).abs().max() < 0.08


def test_the_noise_of_a_row_does_not_depend_on_the_batch():
    batch = rows(16)
    part = Batch(*(getattr(batch, name)[5:9] for name in ("tokens", "valid", "index", "draw")))
    for corruption in (UniformMasking(), CountMasking()):
        whole, alone = corruption(batch, MASK, Noise(3)), corruption(part, MASK, Noise(3))
        assert all(torch.equal(a[5:9], b) for a, b in zip(whole, alone, strict=True))


def test_times_are_spread_evenly_over_any_run_of_draws():
    for first in (0, 777):
        level = spread(torch.arange(first, first + 64), Noise(4)).sort().values
        gaps = torch.diff(level, append=level[:1] + 1)
        assert gaps.max() < 2.7 / 64  # independent draws leave a gap of about log(64)/64


def test_times_are_uniform_over_seeds():
    level = torch.stack([spread(torch.tensor([9]), Noise(seed)) for seed in range(500)])
    assert level.mean().item() == pytest.approx(0.5, abs=0.06)
