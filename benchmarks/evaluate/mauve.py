"""MAUVE of this package and of mauve-text (GPL, a tool for development alone) on the same features.

Needs `pip install mauve-text`. Two comparisons: the area of the histograms that mauve-text found, which leaves no room
for differences; and the whole way from features, where the two clusterings (scikit-learn's, faiss') draw their own
starting points and so differ by chance.

    python -m benchmarks.evaluate.mauve
"""

import logging

import numpy as np

from adlm.evaluate.mauve import frontier_area, mauve
from benchmarks._record import record

SEEDS = range(40)


def blobs(moved: float) -> tuple[np.ndarray, np.ndarray]:
    """20 tight clusters in 32 dimensions; the fraction that each has differs the more between the sides the larger
    `moved` is."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(20, 32))
    tilt = np.exp(moved * rng.normal(size=20))
    probabilities = np.full(20, 0.05), tilt / tilt.sum()
    p, q = (
        centres[rng.choice(20, 1000, p=probability)] + 0.05 * rng.normal(size=(1000, 32))
        for probability in probabilities
    )
    return p, q


def normals(moved: float) -> tuple[np.ndarray, np.ndarray]:
    """Two normal laws without clusters, the second moved along the widest direction."""
    rng = np.random.default_rng(0)
    p, q = rng.normal(size=(2, 1000, 32)) * np.linspace(4, 0.5, 32)
    q[:, 0] += 4 * moved
    return p, q


def main() -> None:
    import mauve as theirs  # mauve-text

    logging.disable(logging.WARNING)
    rows = []
    for features, moves, clusters in ((blobs, (0.0, 0.5, 1.0, 2.0), 20), (normals, (0.0, 0.5, 1.0, 2.0, 4.0), 100)):
        for moved in moves:
            p, q = features(moved)
            ours = mauve(p, q, seeds=SEEDS, clusters=clusters)
            found = [
                theirs.compute_mauve(p_features=p, q_features=q, num_buckets=clusters, seed=seed, verbose=False)
                for seed in SEEDS
            ]
            areas = [frontier_area(each.p_hist, each.q_hist) for each in found]
            values = [each.mauve for each in found]
            rows.append(
                {
                    "features": features.__name__,
                    "moved": moved,
                    "clusters": clusters,
                    "adlm": round(ours.mean, 4),
                    "adlm_spread": round(ours.spread, 4),
                    "mauve_text": round(float(np.mean(values)), 4),
                    "mauve_text_spread": round(float(np.std(values)), 4),
                    "difference": round(ours.mean - float(np.mean(values)), 4),
                    "same_histograms": float(np.abs(np.subtract(areas, values)).max()),
                }
            )
    record(
        "evaluate_mauve",
        rows,
        conclusion={
            "largest difference on the same histograms": max(row["same_histograms"] for row in rows),
            "largest difference from features": max(abs(row["difference"]) for row in rows),
        },
        method="1,000 points a side, 40 clusterings each; spread: standard deviation over clusterings",
    )


if __name__ == "__main__":
    main()
