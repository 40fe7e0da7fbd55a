import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.randomness import Noise
from adlm.samplers import draw as module
from adlm.samplers.draw import _inverse_cdf, draw, draw_measured, inverse_cdf, race
from tests.samplers.processes import assert_drawn_from


def bits_of(samples, seed=0):
    return Noise(seed).bits(torch.arange(samples), 1)[:, 0]


def uniform_of(samples, seed=0):
    return Noise(seed).uniform(torch.arange(samples), 1)[:, 0]


def laws():
    generator = torch.Generator().manual_seed(0)
    yield "normal", torch.randn(50, generator=generator)
    yield "heavy tail", -1.5 * torch.arange(1.0, 51).log()
    yield "one likely, many rare", torch.cat([torch.tensor([12.0]), torch.randn(49, generator=generator)])
    yield "with impossible ones", torch.tensor([-math.inf, 0.5, -math.inf, -1.0, 2.0, -math.inf])
    yield "far from 0", torch.tensor([-1e4, 1.0 - 1e4, 2.0 - 1e4])


@pytest.mark.parametrize("logits", [pytest.param(logits, id=name) for name, logits in laws()])
def test_both_ways_of_drawing_have_the_law_of_the_logits(logits):
    n = 20_000
    law = logits.double().softmax(-1)
    rows = logits.expand(n, -1)
    assert_drawn_from(law, inverse_cdf(rows, uniform_of(n)))
    assert_drawn_from(law, inverse_cdf(rows.double(), uniform_of(n, 1)))
    assert_drawn_from(law, race(rows, bits_of(n)))
    assert torch.equal(draw(rows, bits_of(n)), inverse_cdf(rows, uniform_of(n)))


@pytest.mark.parametrize("samples", [3, 2000])  # by one pass, and by blocks
def test_a_draw_knows_its_probability(samples):
    logits = 3 * torch.randn(samples, 50, generator=torch.Generator().manual_seed(1))
    tokens, probability = draw_measured(logits, bits_of(samples))
    assert torch.equal(tokens, draw(logits, bits_of(samples)))
    assert torch.allclose(probability, logits.softmax(-1).gather(-1, tokens[:, None])[:, 0], rtol=1e-5)


def drawn(logits, u, few):
    """By one pass over the vocabulary where there are few numbers, else by blocks first."""
    with patch.object(module, "_MANY", 1 << 15 if few else 0), patch.object(module, "_BLOCK", 4):
        return int(inverse_cdf(logits, torch.tensor([u], dtype=torch.float64)))


any_logits = st.lists(st.one_of(st.just(-math.inf), st.floats(-100, 100, width=32)), min_size=1, max_size=12).filter(
    lambda logits: max(logits) > -math.inf
)
extremes = st.one_of(
    st.sampled_from([0.0, 0.5**53, 0.5**1000, 1 - 0.5**53, math.nextafter(1, 0)]), st.floats(0, 1, exclude_max=True)
)


@settings(max_examples=120, deadline=None)
@given(any_logits, extremes, st.sampled_from([torch.float32, torch.float64]), st.booleans())
def test_a_token_of_probability_0_is_never_drawn_whatever_the_random_number(logits, u, dtype, few):
    token = drawn(torch.tensor([logits], dtype=dtype), u, few)
    assert 0 <= token < len(logits)
    assert logits[token] > -math.inf


@settings(max_examples=60, deadline=None)
@given(any_logits, st.integers(-(2**63), 2**63 - 1))
def test_a_race_is_never_won_by_a_token_of_probability_0(logits, bits):
    assert logits[int(race(torch.tensor([logits]), torch.tensor([bits])))] > -math.inf


@settings(max_examples=120, deadline=None)
@given(any_logits, extremes, st.booleans())
def test_the_drawn_token_is_the_one_at_which_the_sum_of_probabilities_passes_u(logits, u, few):
    exact = torch.tensor(logits, dtype=torch.float64)
    p = exact.softmax(-1).tolist()
    token = drawn(exact[None], u, few)
    assert math.fsum(p[:token]) <= u + 1e-12
    assert math.fsum(p[: token + 1]) >= u - 1e-12


def test_gumbel_noise_in_float32_draws_rare_tokens_too_seldom_and_we_do_not():
    """One token of probability 0.99 and a million of 1e-8 each.

    The noise of the likeliest of n rare tokens is made of the largest of n uniform numbers, so a race of a million
    is decided by two numbers. torch.rand gives multiples of 2^-24, and the largest of n of them is j 2^-24 or less
    with probability ((j + 1) 2^-24)^n, by which it is drawn here.
    """
    step = 2.0**-24
    single = torch.rand(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float32).double()
    assert torch.equal(single / step, (single / step).round())
    assert single.max() <= 1 - step

    tail, n, draws = 0.01, 10**6, 100_000
    likely, rare = math.log(1 - tail), math.log(tail / n)

    def fraction(largest, first):
        noise = -torch.log(-torch.log(torch.stack([largest, first])))
        return (rare + noise[0] > likely + noise[1]).double().mean().item()

    u = uniform_of(draws)
    first = uniform_of(draws, 1)
    coarse = ((u ** (1 / n) / step).ceil() - 1).clamp_min(0) * step
    coarse_first = (first / step).floor() * step
    error = math.sqrt(tail * (1 - tail) / draws)
    assert fraction(u.pow(1 / n), first) == pytest.approx(tail, abs=5 * error)
    assert fraction(coarse, coarse_first) < tail - 10 * error

    logits = torch.full((1, n + 1), rare)
    logits[0, 0] = likely
    for u in (0.5, 0.9899999, 0.9900001, 0.993, 0.999999):  # a draw is a function of u: it is exact where these are
        token = int(inverse_cdf(logits, torch.tensor([u], dtype=torch.float64)))
        assert token == pytest.approx(max(0.0, (u - (1 - tail)) * n / tail), rel=1e-4, abs=5)
        assert (token > 0) == (u > 1 - tail)


def test_few_rows_are_drawn_as_many_are(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    for size in (7, 500):
        logits = torch.randn(40, size, generator=generator) * 3
        logits[torch.rand(logits.shape, generator=generator) < 0.5] = -torch.inf
        logits[:, 3] = 0.0
        u = torch.rand(40, dtype=torch.float64, generator=generator)
        tokens, probabilities = _inverse_cdf(logits, u)
        with monkeypatch.context() as patch:
            patch.setattr("adlm.samplers.draw.few", lambda x: False)
            expected, known = _inverse_cdf(logits, u)
        assert torch.equal(tokens, expected)
        assert torch.allclose(probabilities, known, atol=1e-6)
