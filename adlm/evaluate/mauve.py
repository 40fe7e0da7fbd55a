"""MAUVE (arXiv 2102.01454): how far two sets of texts lie apart, from 0 to 1.

The features of both are put into k clusters together, which gives two histograms P and Q. For mixtures
R = a P + (1 - a) Q the points (exp(-c KL(Q|R)), exp(-c KL(P|R))) trace the trade-off between what Q has that P has not
and the reverse; MAUVE is the area under that curve. It depends on the features, the number of texts, the clusters and
the scale c: figures compare only if all are equal.

Few texts give few clusters and a value near 1 whatever the texts are. The interval is from a bootstrap over texts, with
the clusters kept: resampled histograms lie further apart than the true ones, so it errs to the low side.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlm.errors import ConfigError, ModelError, OutOfRange, optional_module
from adlm.evaluate.statistics import interval

SEEDS = range(5)
SCALE = 5.0  # the paper's c
FEW_TEXTS = 300  # below this the value says little
LEVEL = 0.95
_MIXTURES = 25
_NEAREST = 1e-6  # to pure P and pure Q
_VARIANCE = 0.9
_TEXTS_PER_CLUSTER = 10
_RESTARTS = 5
_ITERATIONS = 500
_RESAMPLES = 200  # per clustering

Array = NDArray[np.float64]


class Mauve(NamedTuple):
    """The mean over clusterings, with its uncertainty over texts and clusterings.

    spread: the standard deviation over clusterings of the same texts. error: the standard deviation over resampled
    texts and clusterings. interval: their central 95%, widened to hold the mean.
    """

    mean: float
    spread: float
    each: tuple[float, ...]
    clusters: int
    dimensions: int
    error: float
    interval: tuple[float, float]


def mauve(
    p: NDArray[Any],
    q: NDArray[Any],
    *,
    clusters: int | None = None,
    seeds: Sequence[int] = SEEDS,
    scale: float = SCALE,
) -> Mauve:
    """MAUVE of features [n, D] of references and [m, D] of texts.

    Args:
        clusters: by default a tenth of the smaller set, at least 2.
        seeds: of the clusterings.
    """
    check_mauve(min(len(p), len(q)), clusters, len(p) + len(q))
    if not seeds:
        raise ConfigError("MAUVE needs at least one seed for its clusters", subject="seeds")
    both = np.concatenate([p, q]).astype(np.float64)
    if not np.isfinite(both).all():
        raise ModelError("the judge's features are not finite", fix="check its weights", subject="features")
    points = _reduced(both)
    asked = max(2, round(min(len(p), len(q)) / _TEXTS_PER_CLUSTER)) if clusters is None else clusters
    # Equal texts share a point, and there cannot be more clusters than points.
    count = min(asked, len(np.unique(points, axis=0)))
    each: list[float] = []
    resampled: list[float] = []
    for seed in seeds:
        labels = _clustered(points, count, seed) if count > 1 else np.zeros(len(points), np.int64)
        pair = [np.bincount(part, minlength=count) for part in (labels[: len(p)], labels[len(p) :])]
        each.append(frontier_area(*pair, scale=scale))
        generator = np.random.Generator(np.random.Philox(seed))
        draws = [generator.multinomial(one.sum(), one / one.sum(), size=_RESAMPLES) for one in pair]
        resampled += [frontier_area(a, b, scale=scale) for a, b in zip(*draws, strict=True)]
    mean = float(np.mean(each))
    low, high = interval(np.array(resampled), LEVEL)
    ends = (min(low, mean), max(high, mean))
    error = float(np.std(resampled))
    return Mauve(mean, float(np.std(each)), tuple(each), count, points.shape[1], error, ends)


def check_mauve(texts: int, clusters: int | None = None, points: int | None = None) -> None:
    """Refuse what has no MAUVE, before any work is done for it.

    Args:
        texts: on each side.
        points: texts and references together; by default twice the texts.
    """
    if texts < 2:
        raise OutOfRange("n", texts, "at least 2 for MAUVE, which can be left out")
    most = points or 2 * texts
    if clusters is not None and not 2 <= clusters <= most:
        raise OutOfRange("clusters", clusters, f"from 2 to {most:,}, the number of texts and references")


def frontier_area(p: NDArray[Any], q: NDArray[Any], *, scale: float = SCALE) -> float:
    """The area under the divergence frontier of two histograms [k], by straight lines between its points."""
    p, q = p / p.sum(), q / q.sum()
    fraction = np.linspace(1 - _NEAREST, _NEAREST, _MIXTURES)[:, None]
    mixed = fraction * p + (1 - fraction) * q
    # From (0, 1) to (1, 0).
    x = np.concatenate([[0.0], np.exp(-scale * _divergence(q, mixed)), [1.0]])
    y = np.concatenate([[1.0], np.exp(-scale * _divergence(p, mixed)), [0.0]])
    return float(np.diff(x) @ (y[1:] + y[:-1]) / 2)


def mauve_protocol(found: Mauve) -> dict[str, Any]:
    """The settings that MAUVE depends on, besides the judge and the number of texts."""
    return {
        "features": "the judge's last hidden state after the last token, scaled to length 1",
        "reduction": f"{found.dimensions} principal components, {_VARIANCE:.0%} of the variance",
        "clusters": f"{found.clusters} by k-means, the best of {_RESTARTS} random starts",
        "seeds": list(SEEDS),
        "scale": SCALE,
        "mixtures": _MIXTURES,
        "interval": f"{LEVEL:.0%}, from a bootstrap over texts with the clusters kept, {_RESAMPLES} per clustering",
        "spread over clusterings": found.spread,
    }


def _divergence(p: Array, mixed: Array) -> Array:
    """KL(p | r) in nats for each row r of `mixed` [n, k]; r is positive wherever p is."""
    there = p > 0
    found: Array = (p[there] * np.log(p[there] / mixed[:, there])).sum(-1)
    return found


def _reduced(features: Array) -> Array:
    """[n, d]: rows of length 1, in as few principal components as hold `_VARIANCE` of their variance."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    features = features / np.where(lengths > 0, lengths, 1.0)
    centered = features - features.mean(0)
    # Eigenvectors of the smaller of the two products: texts are often fewer than features.
    _, sizes, directions = np.linalg.svd(centered, full_matrices=False)
    fractions = np.cumsum(sizes**2) / max(float((sizes**2).sum()), np.finfo(float).tiny)
    kept = 1 + int(np.searchsorted(fractions, _VARIANCE))
    found: Array = centered @ directions[: min(kept, len(sizes))].T
    return found


def _clustered(points: Array, count: int, seed: int) -> NDArray[np.int64]:
    cluster = optional_module("sklearn.cluster", extra="eval", purpose="MAUVE")
    # Random points to start from, as in the published figures: better starts find other clusters, and other values.
    means = cluster.KMeans(count, init="random", n_init=_RESTARTS, max_iter=_ITERATIONS, random_state=seed)
    labels: NDArray[np.int64] = means.fit_predict(points).astype(np.int64)
    return labels
