import pytest
import torch

from adlm.diffusion.times import Antithetic, Independent, LowDiscrepancyTimes
from adlm.errors import OutOfRange
from adlm.randomness import Noise
from tests.errors import raises

ALL = [LowDiscrepancyTimes(), Antithetic(64), Independent()]


def test_spread_times_leave_no_gap_in_any_run_of_draws():
    for first in (0, 777):
        level = LowDiscrepancyTimes().levels(torch.arange(first, first + 64), Noise(4)).sort().values
        gaps = torch.diff(level, append=level[:1] + 1)
        assert gaps.max() < 2.7 / 64  # independent draws leave a gap of about log(64)/64


def test_antithetic_times_fall_once_in_every_part():
    for first in (0, 640):
        level = Antithetic(64).levels(torch.arange(first, first + 64), Noise(4))
        assert torch.equal((level * 64).long().sort().values, torch.arange(64))


@pytest.mark.parametrize("times", ALL, ids=repr)
def test_times_are_uniform_over_seeds_and_rows(times):
    level = torch.stack([times.levels(torch.arange(64), Noise(seed)) for seed in range(100)])
    assert ((level >= 0) & (level < 1)).all()
    counts = torch.histc(level.float(), 10, 0, 1)
    assert ((counts - 640).abs() < 160).all()


@pytest.mark.parametrize("times", ALL, ids=repr)
def test_the_time_of_a_row_does_not_depend_on_the_batch(times):
    whole = times.levels(torch.arange(30), Noise(1))
    assert torch.equal(times.levels(torch.arange(11, 17), Noise(1)), whole[11:17])


def test_an_empty_group_is_refused():
    with raises(OutOfRange, subject="group"):
        Antithetic(0)
