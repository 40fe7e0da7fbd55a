import pytest

from adlm.errors import OutOfRange
from adlm.train.lr_schedules import Constant, CosineDecay, StableDecay
from tests.errors import raises


@pytest.mark.parametrize("rate", [Constant(10), CosineDecay(10), StableDecay(10)], ids=repr)
def test_every_rate_rises_to_the_full_one_in_equal_steps(rate):
    fractions = [rate.fraction(step, 1000) for step in range(11)]
    assert fractions[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert fractions[10] == pytest.approx(1, abs=1e-4)


def test_a_constant_rate_stays():
    assert Constant(10).fraction(999, 1000) == 1
    assert Constant(0).fraction(0, 1000) == 1


def test_a_stable_rate_falls_to_zero_at_the_end():
    rate = StableDecay(10, decay=0.2)
    assert rate.fraction(50, 100) == 1
    assert rate.fraction(79, 100) == 1
    assert rate.fraction(90, 100) == pytest.approx(0.5)
    assert rate.fraction(99, 100) == pytest.approx(0.05)


def test_a_cosine_is_half_way_down_half_way_through_and_ends_at_its_last_fraction():
    rate = CosineDecay(100, last=0.2)
    assert rate.fraction(600, 1100) == pytest.approx(0.6)
    assert rate.fraction(1099, 1100) == pytest.approx(0.2, abs=1e-4)


def test_impossible_warm_up_is_refused():
    with raises(OutOfRange, subject="lr_schedule.warmup"):
        Constant(-1)
