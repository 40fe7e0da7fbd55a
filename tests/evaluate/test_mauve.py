"""MAUVE against direct computation, and against figures of mauve-text 0.4.0 (benchmarks/evaluate/mauve.py)."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ConfigError, ModelError, OutOfRange
from adlm.evaluate.mauve import frontier_area, mauve
from tests.errors import raises

# Histograms, and what mauve-text 0.4.0 makes of them.
THEIRS = [
    ([0.5, 0.5], [0.4, 0.6], 0.9983544482169311),
    ([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], 0.6538536633533254),
    ([0.9, 0.1, 0.0], [0.0, 0.1, 0.9], 0.007707927326240999),
    ([1.0, 0.0], [0.0, 1.0], 0.0040720962619612555),
]


def direct(p, q, scale=5.0, mixtures=4001):
    """The area by a grid so fine that no rule for it matters."""
    x, y = [0.0], [1.0]
    for a in np.linspace(1 - 1e-9, 1e-9, mixtures):
        r = [a * i + (1 - a) * j for i, j in zip(p, q, strict=True)]
        kl_q, kl_p = (sum(i * math.log(i / k) for i, k in zip(h, r, strict=True) if i) for h in (q, p))
        x.append(math.exp(-scale * kl_q))
        y.append(math.exp(-scale * kl_p))
    x, y = [*x, 1.0], [*y, 0.0]
    return sum((x[i + 1] - x[i]) * (y[i + 1] + y[i]) / 2 for i in range(len(x) - 1))


@pytest.mark.parametrize(("p", "q", "value"), THEIRS)
def test_the_area_of_known_histograms_is_that_of_mauve_text(p, q, value):
    assert frontier_area(np.array(p), np.array(q)) == pytest.approx(value, abs=1e-9)


def test_mauve_text_itself_agrees_where_it_is_installed():
    theirs = pytest.importorskip("mauve", exc_type=ImportError)
    p, q = np.random.default_rng(0).normal(size=(2, 200, 8)) + np.array([0.0, 1.0])[:, None, None]
    found = theirs.compute_mauve(p_features=p, q_features=q, num_buckets=20, verbose=False)
    assert frontier_area(found.p_hist, found.q_hist) == pytest.approx(found.mauve, abs=1e-9)


@pytest.mark.parametrize(("p", "q"), [([0.5, 0.5], [0.4, 0.6]), ([0.1, 0.2, 0.7], [0.6, 0.3, 0.1])])
def test_the_area_is_that_of_a_much_finer_grid(p, q):
    assert frontier_area(np.array(p), np.array(q)) == pytest.approx(direct(p, q), abs=2e-3)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=12), st.floats(0.5, 10))
def test_the_area_is_symmetric_and_between_its_limits(counts, scale):
    p, q = np.array(counts).T + np.array([[1], [1]])
    area = frontier_area(p, q, scale=scale)
    assert area == pytest.approx(frontier_area(q, p, scale=scale), abs=1e-9)
    assert 0 <= area <= 1 + 1e-12
    assert frontier_area(p, p, scale=scale) == pytest.approx(1)


def test_nothing_in_common_leaves_the_area_of_the_scale_alone():
    """x = (1 - a)^5 and y = a^5 enclose 5 B(6, 5) = 0.00397; 25 mixtures make it a little more."""
    area = frontier_area(np.array([1, 0]), np.array([0, 1]))
    assert area == pytest.approx(5 * math.factorial(5) * math.factorial(4) / math.factorial(10), abs=2e-4)


def clusters_of(rng, probabilities, n):
    centres = 5 * np.eye(len(probabilities), 12)
    return centres[rng.choice(len(probabilities), n, p=probabilities)] + 0.01 * rng.normal(size=(n, 12))


def test_clusters_that_are_plain_to_see_give_the_area_of_their_shares():
    rng = np.random.default_rng(0)
    p, q = clusters_of(rng, [0.2, 0.3, 0.5], 400), clusters_of(rng, [0.5, 0.3, 0.2], 300)
    fractions = [np.bincount(each.argmax(1), minlength=3) for each in (p, q)]
    assert mauve(p, q, clusters=3, seeds=range(2)).mean == pytest.approx(frontier_area(*fractions), abs=1e-9)


def test_the_same_texts_score_1_and_strangers_the_least():
    p = np.random.default_rng(0).normal(size=(200, 8))
    found = mauve(p, p, seeds=range(3))
    assert found.mean == pytest.approx(1)
    assert (found.spread, found.clusters) == (pytest.approx(0), 20)
    assert mauve(np.abs(p) + 1, -np.abs(p) - 1, clusters=2, seeds=[0]).mean == pytest.approx(0.004, abs=2e-4)


def test_laws_that_move_apart_score_less_and_less_and_as_computed():
    """One direction decides: with many clusters the answer is that of two normal laws, by numbers."""
    # Quantiles in the place of draws: what is left is what quantising does.
    law = np.array([NormalDist().inv_cdf((i + 0.5) / 2000) for i in range(2000)])
    grid = np.linspace(-8, 12, 4001)
    found, known = [], []
    for distance in (0.0, 0.5, 1.0, 2.0, 4.0):
        # On a flat arc, scaling to length 1 leaves the law as it is.
        features = [np.stack([0.01 * x, np.ones_like(x)], 1) for x in (law, law + distance)]
        found.append(mauve(*features, clusters=40, seeds=[0]).mean)
        known.append(frontier_area(*(np.exp(-((grid - mean) ** 2) / 2) for mean in (0, distance))))
    assert found == sorted(found, reverse=True)
    assert found == pytest.approx(known, abs=0.02)


def test_equal_texts_and_empty_features_do_no_harm():
    p = np.repeat(np.eye(3, 5), 20, 0)
    assert mauve(p, p, clusters=10, seeds=[0]).clusters == 3
    assert mauve(np.zeros((5, 4)), np.zeros((5, 4)), seeds=[0]).mean == pytest.approx(1)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_a_seed_decides_the_clusters(seed):
    p, q = np.random.default_rng(seed).normal(size=(2, 40, 4))
    assert mauve(p, q, seeds=[seed]) == mauve(p, q, seeds=[seed])


def test_what_cannot_be_measured_is_refused():
    p = np.random.default_rng(0).normal(size=(10, 4))
    with raises(OutOfRange, subject="n"):
        mauve(p[:1], p)
    with raises(ConfigError, subject="clusters"):
        mauve(p, p, clusters=30)
    with raises(ConfigError, subject="seeds"):
        mauve(p, p, seeds=[])
    with raises(ModelError, subject="features"):
        mauve(p, p * np.nan)


def test_the_interval_reflects_the_number_of_texts():
    """Few texts of one law score near 1, and the interval says how little that means."""
    points = np.random.default_rng(0).normal(size=(2, 1000, 4))
    few, many = (mauve(points[0, :n], points[1, :n], clusters=10, seeds=[0]) for n in (24, 1000))
    for found in (few, many):
        assert found.interval[0] <= found.mean <= found.interval[1]
    assert few.interval[1] - few.interval[0] > 5 * (many.interval[1] - many.interval[0])
    assert few.error > 5 * many.error
    assert few.interval[1] - few.interval[0] > 0.1
