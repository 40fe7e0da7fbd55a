"""Levels follow the law that was asked for, and the weight does what its name says."""

import pytest
import torch

from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import CountMasking, UniformMasking
from adlm.diffusion.times import Independent, LowDiscrepancyTimes
from adlm.diffusion.times_in_training import Bell, Window
from adlm.errors import ConfigError, OutOfRange
from adlm.randomness import Noise
from tests.conftest import batch_of
from tests.errors import raises

MASK = 50
LAWS = [Bell(), Bell(0.3, 0.1), Bell(0.9, 0.5, times=Independent()), Window(), Window(0.5, 1.0)]
ROWS = batch_of(torch.randint(0, 50, (2000, 20), generator=torch.Generator().manual_seed(0)))
EVEN = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000  # uniform levels, as evenly as can be


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_levels_have_the_density_and_the_mean_of_the_law(law):
    levels = torch.cat([law.levels(torch.arange(500), Noise(seed)) for seed in range(40)])
    assert ((levels >= 0) & (levels < 1)).all()
    assert levels.mean().item() == pytest.approx(law.mean, abs=0.005)
    counts = torch.histc(levels.float(), 20, 0, 1)
    expected = law.density(EVEN).view(20, -1).mean(-1) * len(levels) / 20
    assert (counts - expected).abs().max() < 0.03 * len(levels) / 20 + 4 * expected.max().sqrt()
    assert law.density(EVEN).mean().item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_the_level_of_a_row_does_not_depend_on_the_batch(law):
    whole = law.levels(torch.arange(30), Noise(1))
    assert torch.equal(law.levels(torch.arange(11, 17), Noise(1)), whole[11:17])


def test_levels_of_a_law_are_spread_as_evenly_as_uniform_ones():
    """One in every equal part of the law, in any run of 64 rows."""
    levels = Bell().levels(torch.arange(64, 128), Noise(3)).sort().values
    below = torch.searchsorted(Bell().quantile(EVEN), levels) / len(EVEN)
    assert torch.diff(below).max() < 2.7 / 64


@pytest.mark.parametrize("power", [0, 1, 3])
def test_the_weight_of_the_bound_leaves_every_mean_as_it_is_at_uniform_levels(power):
    law = Bell(0.6, 0.3, weighting="bound")
    levels = law.quantile(EVEN)
    weight = law.weighted(levels[:, None] ** power, levels)
    assert weight.mean().item() == pytest.approx(1 / (power + 1), rel=1e-3)
    assert law.bounds


def test_a_bell_weighs_all_masked_tokens_alike_and_on_average_as_much_as_the_bound_does():
    *_, masked, weight = CountMasking(times=Bell())(ROWS, MASK, Noise(1))[:5]
    assert weight.unique().numel() == 1
    assert (masked.sum(-1) * weight[:, 0]).mean().item() == pytest.approx(20, rel=0.06)  # the count is rounded up
    assert not Bell().bounds


def test_a_window_keeps_the_weight_of_the_bound_and_masks_within_it():
    *_, masked, weight = CountMasking(times=Window(0.5, 1.0))(ROWS, MASK, Noise(1))[:5]
    counts = masked.sum(-1)
    assert counts.min() == 11
    assert counts.max() == 20
    assert torch.allclose(weight[:, 0], 20 / counts)
    assert not Window().bounds


@pytest.mark.parametrize("plain", [CountMasking(), UniformMasking()], ids=repr)
def test_at_a_given_level_nothing_changes(plain):
    """Scores are taken there: they are the same whatever times a run was trained with."""
    level = LowDiscrepancyTimes().levels(ROWS.sample_id, Noise(0))
    for law in LAWS:
        shaped = type(plain)(times=law)
        for ours, theirs in zip(
            shaped.at(level, ROWS, MASK, Noise(2))[:5], plain.at(level, ROWS, MASK, Noise(2))[:5], strict=True
        ):
            assert torch.equal(ours, theirs)


def test_what_is_no_law_or_fits_nothing_is_refused():
    for wrong in (lambda: Bell(width=0.0), lambda: Bell(center=2.0), lambda: Window(0.6, 0.4)):
        with raises(OutOfRange):
            wrong()
    with raises(OutOfRange, subject="weighting"):
        Bell(weighting="square")
    with raises(ConfigError, subject="weighting"):
        Window(weighting="bound")
    with raises(ConfigError, subject="times"):
        Bell(times=Window())
    with raises(ConfigError, subject="times"):
        BlockMasking((4,), times=Bell())
    with raises(ConfigError, subject="importance"):
        UniformMasking(importance=True, times=Bell())
