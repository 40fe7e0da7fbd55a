import pytest
import torch

from adlm.diffusion.schedule import Clipped, Cosine, Geometric, Linear, LogLinear, Polynomial
from adlm.errors import OutOfRange
from tests.errors import raises

SCHEDULES = [LogLinear(), Cosine(), Polynomial(), Polynomial(power=0.5), Linear(), Geometric(), Clipped()]
TIMES = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_the_slope_is_the_derivative_and_the_inverse_undoes_alpha(schedule):
    t = TIMES.clone().requires_grad_()
    alpha = schedule.alpha(t)
    (slope,) = torch.autograd.grad(alpha.sum(), t)
    assert torch.allclose(schedule.slope(TIMES), slope)
    assert torch.allclose(schedule.inverse(schedule.alpha(TIMES)), TIMES)
    assert (slope < 0).all()
    assert ((alpha >= 0) & (alpha <= 1)).all()


@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if not isinstance(s, Clipped)], ids=repr)
def test_schedules_begin_clear_and_end_masked(schedule):
    ends = schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert ends[0] > 0.99
    assert ends[1] < 2e-3


def test_polynomial_of_power_one_is_log_linear_and_its_weight_is_one_over_t():
    assert torch.allclose(Polynomial(power=1.0).alpha(TIMES), LogLinear().alpha(TIMES))
    assert torch.allclose(LogLinear().weight(TIMES), 1 / TIMES)


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine(), Polynomial(), Geometric()], ids=repr)
def test_the_bound_does_not_depend_on_the_schedule(schedule):
    """For a law whose cost at masked share m is any f(m): the integral of weight * f over t depends on f alone."""
    t = torch.linspace(1e-6, 1, 200_001, dtype=torch.float64)
    fraction = 1 - schedule.alpha(t)
    integral = torch.trapezoid(schedule.weight(t) * fraction**2 * (2 - fraction), t).item()
    assert integral == pytest.approx(2 / 2 - 1 / 3, abs=5e-3)


def test_a_clipped_schedule_needs_its_shares_in_order():
    with raises(OutOfRange, subject="low, high"):
        Clipped(0.8, 0.3)
