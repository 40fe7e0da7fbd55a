import math

import pytest
import torch

from adlm.anchors.rules import RareInSequence, TypeRule
from adlm.diffusion.corruption import AnchoredMasking, CountMasking, UniformMasking
from adlm.diffusion.schedule import Cosine, LogLinear
from adlm.diffusion.times import Antithetic, Independent
from adlm.errors import ConfigError, OutOfRange
from adlm.randomness import Noise
from adlm.types import Batch
from tests.conftest import batch_of
from tests.errors import raises

MASK = 50


class LowIds(TypeRule):
    """The first ten types are anchors."""

    def types(self):
        return torch.arange(51) < 10


ALL = [
    UniformMasking(),
    UniformMasking(Cosine(), times=Antithetic(8)),
    UniformMasking(steps=20),
    UniformMasking(importance=True, times=Independent()),
    CountMasking(),
    AnchoredMasking(RareInSequence(1), power=3.0),
    AnchoredMasking(LowIds(), power=3.0),
]


def rows(count: int, length: int = 20) -> Batch:
    return batch_of(torch.randint(0, 50, (count, length), generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("corruption", ALL, ids=repr)
def test_only_scored_positions_are_masked_and_the_rest_stays(corruption):
    batch = rows(200)
    valid = torch.arange(20) < torch.randint(0, 20, (200, 1), generator=torch.Generator().manual_seed(1))
    fixed = torch.zeros_like(valid)
    fixed[:, 0] = True
    batch = Batch(batch.tokens, valid, batch.index, batch.sample_id, fixed)
    x_0, x_t, t, masked, weight, *_ = corruption(batch, MASK, Noise(0))
    assert not (masked & ~batch.scored).any()
    assert masked.any()
    assert (x_t[masked] == MASK).all()
    assert torch.equal(x_t[~masked], x_0[~masked])
    assert ((t >= 0) & (t <= 1)).all()
    assert weight.expand(masked.shape)[masked].isfinite().all()


@pytest.mark.parametrize("corruption", ALL, ids=repr)
def test_the_noise_of_a_row_does_not_depend_on_the_batch(corruption):
    batch = rows(16)
    part = Batch(*(getattr(batch, name)[5:9] for name in ("tokens", "valid", "index", "sample_id")))
    whole, alone = corruption(batch, MASK, Noise(3)), corruption(part, MASK, Noise(3))
    assert all(torch.equal(a[5:9], b) for a, b in zip(whole[:5], alone[:5], strict=True))


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()], ids=repr)
def test_uniform_masking_masks_as_many_as_the_schedule_says(schedule):
    batch = rows(4000)
    _, _, t, masked, *_ = UniformMasking(schedule)(batch, MASK, Noise(1))
    for low in (0.1, 0.5, 0.9):
        near = (t > low - 0.05) & (t < low + 0.05)
        expected = (1 - schedule.alpha(t[near])).mean().item()
        assert masked[near].float().mean().item() == pytest.approx(expected, abs=0.02)


def test_count_masking_draws_every_count_equally_often_and_every_position():
    batch = rows(4000, 8)
    _, _, _, masked, weight, *_ = CountMasking()(batch, MASK, Noise(2))
    counts = masked.sum(-1)
    assert torch.bincount(counts, minlength=9)[1:].tolist() == pytest.approx([500] * 8, abs=5)
    assert torch.allclose(weight[:, 0], 8 / counts)
    for k in (1, 4):
        fraction = masked[counts == k].float().mean(0)
        assert (fraction - k / 8).abs().max() < 0.08


def test_count_masking_tells_the_time_that_uniform_masking_would_have_had():
    """Of k masked among n with weight 1/t, t has the Beta(k, n - k + 1) law: mean k / (n + 1)."""
    batch = rows(8000, 8)
    _, _, t, masked, *_ = CountMasking()(batch, MASK, Noise(2))
    for k in range(1, 9):
        times = t[masked.sum(-1) == k]
        assert times.mean().item() == pytest.approx(k / 9, abs=0.02)
        assert times.var().item() == pytest.approx(k * (9 - k) / (81 * 10), rel=0.25)


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()], ids=repr)
def test_importance_sampling_gives_every_row_the_same_weight_and_the_same_mean(schedule):
    """The mean of weight * masked count is the bound of a model that pays one nat a token."""
    batch = rows(20_000)
    means = []
    for importance in (False, True):
        _, _, _, masked, weight, *_ = UniformMasking(schedule, importance=importance)(batch, MASK, Noise(1))
        means.append((masked.sum(-1) * weight[:, 0]).double().mean().item())
    assert weight.unique().numel() == 1
    assert means[1] == pytest.approx(means[0], rel=0.03)
    assert means[1] == pytest.approx(20, rel=0.03)


def test_steps_are_multiples_and_weigh_as_the_reverse_chain_does():
    corruption = UniformMasking(LogLinear(eps=0.0), steps=10)
    _, _, t, _, weight, *_ = corruption(rows(500), MASK, Noise(1))
    assert torch.allclose((t * 10).round() / 10, t)
    assert t.min() == pytest.approx(0.1)
    assert t.max() == 1
    assert torch.allclose(weight[:, 0], 1 / t)  # steps * (alpha_s - alpha_t) / (1 - alpha_t) with alpha = 1 - t


def test_anchors_vanish_later():
    batch = rows(4000)
    for rule in (LowIds(), RareInSequence(1)):
        marks = rule.mark(batch)
        _, _, t, masked, *_ = AnchoredMasking(rule, power=3.0)(batch, MASK, Noise(1))
        near = ((t > 0.45) & (t < 0.55))[:, None].expand_as(masked)
        assert masked[near & marks].float().mean().item() == pytest.approx(0.125, abs=0.02)
        assert masked[near & ~marks].float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_anchored_masking_bounds_only_where_types_alone_decide():
    assert AnchoredMasking(LowIds()).bounds
    assert not AnchoredMasking(RareInSequence()).bounds
    assert AnchoredMasking(LowIds(), power=3.0)(rows(2), MASK, Noise(0)).rates.tolist() == [3.0] * 10 + [1.0] * 41


def test_anchored_masking_with_power_one_is_uniform_masking():
    batch = rows(50)
    plain = UniformMasking(LogLinear(eps=0.0))(batch, MASK, Noise(5))
    anchored = AnchoredMasking(LowIds(), power=1.0)(batch, MASK, Noise(5))
    assert torch.equal(plain.masked, anchored.masked)
    assert torch.allclose(plain.weight, anchored.weight)


def test_impossible_corruptions_are_refused():
    with raises(ConfigError, subject="importance"):
        UniformMasking(importance=True, first=0.0)
    with raises(ConfigError, subject="importance"):
        UniformMasking(importance=True, steps=5)
    with raises(OutOfRange, subject="steps"):
        UniformMasking(steps=-3)
    for kind in (UniformMasking, AnchoredMasking):
        for first in (-0.1, 1.0):
            with raises(OutOfRange, subject="first"):
                kind(first=first)
    with raises(OutOfRange, subject="power"):
        AnchoredMasking(power=0.0)
    assert math.isfinite(UniformMasking(importance=True)(rows(1), MASK, Noise(0)).weight.item())
