"""MAUVE (arXiv 2102.01454): how far two sets of texts lie apart, from 0 to 1.

Features of both are put into k clusters together, which gives two histograms P and Q. For mixtures R = a P + (1 - a) Q
the points (exp(-c KL(Q|R)), exp(-c KL(P|R))) trace the trade-off between what Q has that P has not and the reverse;
MAUVE is the area under that curve. It moves with the features, the number of texts, the clusters and the scale c:
figures compare only where all are equal.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlm.errors import ConfigError, DataError, ModelError, optional_module

SCALE = 5.0  # the paper's c
_MIXTURES = 25
_NEAREST = 1e-6  # to pure P and pure Q
_VARIANCE = 0.9
_TEXTS_A_CLUSTER = 10
_RESTARTS = 5
_ITERATIONS = 500

Array = NDArray[np.float64]


class Mauve(NamedTuple):
    """The mean over clusterings and their standard deviation, which holds nothing of the draw of the texts."""

    mean: float
    spread: float
    each: tuple[float, ...]
    clusters: int
    dimensions: int


def mauve(
    p: NDArray[Any],
    q: NDArray[Any],
    *,
    clusters: int | None = None,
    seeds: Sequence[int] = range(5),
    scale: float = SCALE,
) -> Mauve:
    """Of features [n, D] of references and [m, D] of texts, scaled to length 1.

    Args:
        clusters: a tenth of the smaller set by default, 2 at least.
        seeds: of the clusterings.
    """
    asked = f"asked for MAUVE of {len(p):,} and {len(q):,} texts"
    if min(len(p), len(q)) < 2:
        raise DataError(asked, "fewer than 2 on one side", "give more; figures settle from about 1,000")
    if not seeds:
        raise ConfigError(asked, "no seed for the clusters", "give at least one")
    both = np.concatenate([p, q]).astype(np.float64)
    if not np.isfinite(both).all():
        raise ModelError(asked, "features that are not finite", "check the judge's weights")
    points = _reduced(both)
    output_mask = max(2, round(min(len(p), len(q)) / _TEXTS_A_CLUSTER)) if clusters is None else clusters
    if not 2 <= output_mask <= len(points):
        raise ConfigError(
            f"{asked} with {output_mask} clusters", f"{len(points):,} points", "give 2 to as many as points"
        )
    # Texts that are equal share a point, and no more clusters than points can be found.
    count = min(output_mask, len(np.unique(points, axis=0)))
    each = []
    for seed in seeds:
        labels = _clustered(points, count, seed) if count > 1 else np.zeros(len(points), np.int64)
        histograms = (np.bincount(part, minlength=count) for part in (labels[: len(p)], labels[len(p) :]))
        each.append(frontier_area(*histograms, scale=scale))
    return Mauve(float(np.mean(each)), float(np.std(each)), tuple(each), count, points.shape[1])


def frontier_area(p: NDArray[Any], q: NDArray[Any], *, scale: float = SCALE) -> float:
    """The area under the divergence frontier of two histograms [k], by straight lines between its points."""
    p, q = p / p.sum(), q / q.sum()
    fraction = np.linspace(1 - _NEAREST, _NEAREST, _MIXTURES)[:, None]
    mixed = fraction * p + (1 - fraction) * q
    # From (0, 1) to (1, 0).
    x = np.concatenate([[0.0], np.exp(-scale * _divergence(q, mixed)), [1.0]])
    y = np.concatenate([[1.0], np.exp(-scale * _divergence(p, mixed)), [0.0]])
    return float(np.diff(x) @ (y[1:] + y[:-1]) / 2)


def protocol(found: Mauve, *, seeds: Sequence[int] = range(5), scale: float = SCALE) -> dict[str, Any]:
    """What a figure depends on, beside the judge and the number of texts."""
    return {
        "features": "the judge's last hidden state after the last token, scaled to length 1",
        "reduction": f"{found.dimensions} principal components, {_VARIANCE:.0%} of the variance",
        "clusters": f"{found.clusters} by k-means, the best of {_RESTARTS} random starts",
        "seeds": list(seeds),
        "scale": scale,
        "mixtures": _MIXTURES,
        "error": "standard deviation over the clusterings; the draw of the texts is not in it",
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
    centred = features - features.mean(0)
    # Eigenvectors of the smaller of the two products: texts are often fewer than features.
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    fractions = np.cumsum(sizes**2) / max(float((sizes**2).sum()), np.finfo(float).tiny)
    kept = 1 + int(np.searchsorted(fractions, _VARIANCE))
    found: Array = centred @ directions[: min(kept, len(sizes))].T
    return found


def _clustered(points: Array, count: int, seed: int) -> NDArray[np.int64]:
    cluster = optional_module("sklearn.cluster", extra="eval", purpose="MAUVE")
    # Random points to start from, as in the published figures: better starts find other clusters, and other values.
    means = cluster.KMeans(count, init="random", n_init=_RESTARTS, max_iter=_ITERATIONS, random_state=seed)
    labels: NDArray[np.int64] = means.fit_predict(points).astype(np.int64)
    return labels
