"""Models that count: the tables that sample-complexity theory speaks of, and what they cost in exact expectation.

Every conditional is (count + 1) / (sum of counts + K), K values a token. Nothing is estimated on test rows: the
expected nats of a learned table under the true distribution are finite sums, since a context that never occurred says
1 / K.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adlm.data.anchored_process import RowDistribution

CHAIN, ANY_ORDER, ANCHORED = "AR tables", "DLM tables", "anchored tables"
_SLICE = 1 << 22  # probabilities of contexts held at a time

Array = NDArray[np.float64]
Ids = NDArray[np.int64]


def chain_excess(exact: RowDistribution, rows: Ids, order: Sequence[int]) -> float:
    """Nats per row above the entropy of tables p(x_l | all that is before l in `order`), counted in rows [N, L].

    The natural order is a left-to-right model with its full context. A masked diffusion model with a table for every
    set of visible positions is the mean over all orders, since its bound is the mean of the chain rule over them.
    """
    joint = _joint(exact, rows, order)
    values = exact.table.shape[-1]
    group = np.zeros(len(rows), np.int64)  # rows alike so far share a number
    nats = 0.0
    for step, place in enumerate(order):
        some, first = np.unique(group, return_index=True)
        counts = np.bincount(group * values + rows[:, place], minlength=len(some) * values).reshape(-1, values)
        learned = np.log((counts + 1) / (counts.sum(-1, keepdims=True) + values))
        probabilities = joint[first, step]
        nats += (1 - probabilities.sum()) * math.log(values) - (probabilities * learned).sum()
        group = np.unique(group * values + rows[:, place], return_inverse=True)[1]
    return float(nats - exact.entropy)


def _joint(exact: RowDistribution, rows: Ids, order: Sequence[int]) -> Array:
    """[N, L, K]: the probability of what a row has before each place of `order`, and then of each value there."""
    joint = np.empty((len(rows), len(order), exact.table.shape[-1]))
    each = max(1, _SLICE // len(exact.probabilities))
    for start in range(0, len(rows), each):
        part = slice(start, start + each)
        weights = np.broadcast_to(exact.probabilities, (len(rows[part]), len(exact.probabilities)))
        for step, place in enumerate(order):
            joint[part, step] = weights @ exact.table[place]
            weights = weights * exact.table[place][:, rows[part, place]].T
    return joint


def anchored_excess(exact: RowDistribution, rows: Ids, anchors: Sequence[int]) -> float:
    """Nats per row above the entropy of tables p(anchor | anchors before it) and p(x_l | all anchors)."""
    nats = chain_excess(_alone(exact, anchors), rows[:, list(anchors)], range(len(anchors)))
    length, contexts, values = exact.table.shape
    context = rows[:, list(anchors)] @ values ** np.arange(len(anchors))[::-1]
    for place in set(range(length)) - set(anchors):
        counts = np.bincount(context * values + rows[:, place], minlength=contexts * values).reshape(-1, values)
        learned = np.log((counts + 1) / (counts.sum(-1, keepdims=True) + values))
        true = exact.table[place]
        logs = np.log(true, out=np.zeros_like(true), where=true > 0)
        nats += float(exact.probabilities @ (true * (logs - learned)).sum(-1))
    return nats


def _alone(exact: RowDistribution, positions: Sequence[int]) -> RowDistribution:
    """The distribution of these positions without the others."""
    return RowDistribution(exact.probabilities, exact.table[list(positions)])
