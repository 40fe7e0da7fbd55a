"""A trend that is known is found again, and where its sign turns only if the data can tell."""

import numpy as np
import pytest

from adlm_studies.experiments.trend import SIZE, TOKENS, fit_trend

AROUND = (20e6, 1e6)


def points(c0, c1, c2, noise, seeds=4):
    drawn = np.random.default_rng(0).normal(size=(3, 3, seeds)) * noise
    return [
        (AROUND[0] * 10**x, AROUND[1] * 10**z, c0 + c1 * x + c2 * z + drawn[i, j, k])
        for i, x in enumerate((-1, 0, 1))
        for j, z in enumerate((-0.5, 0, 0.5))
        for k in range(seeds)
    ]


def test_a_plane_is_found_with_its_intervals():
    trend = fit_trend(points(-0.02, 0.04, 0.01, 0.005), AROUND)
    for found, true in ((trend.at(*AROUND), -0.02), (trend.slope(TOKENS), 0.04), (trend.slope(SIZE), 0.01)):
        assert found.low < true < found.high
        assert found.high - found.low < 0.02
    assert trend.at(200e6, 1e6).value == pytest.approx(trend.at(20e6, 1e6).value + trend.slope(TOKENS).value)


def test_the_sign_turns_where_the_line_crosses_zero():
    turn = fit_trend(points(-0.02, 0.04, 0.0, 0.003), AROUND).turn(TOKENS)
    assert turn.low < 20e6 * 10**0.5 < turn.high
    assert turn.low < turn.value < turn.high < 4 * turn.low


def test_no_turn_is_told_along_an_axis_without_a_slope():
    assert fit_trend(points(-0.02, 0.04, 0.0, 0.01), AROUND).turn(SIZE) is None


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    rng, held, sets = np.random.default_rng(1), 0, 300
    plain = points(-0.02, 0.04, 0.0, 0.0, seeds=2)
    for _ in range(sets):
        turn = fit_trend([(x, z, y + 0.01 * rng.normal()) for x, z, y in plain], AROUND).turn(TOKENS)
        held += turn is None or turn.low < 20e6 * 10**0.5 < turn.high
    assert 0.91 < held / sets < 0.985


def test_too_few_settings_make_no_trend():
    one_size = [(tokens, 1e6, y) for tokens, y in ((5e6, 0.1), (5e6, 0.2), (20e6, 0.1), (20e6, 0.3))]
    assert fit_trend(one_size, AROUND) is None
    assert fit_trend(points(0, 1, 1, 0)[:3], AROUND) is None
