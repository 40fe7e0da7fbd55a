"""SEDD's score entropy (arXiv 2310.16834) for the absorbing process."""

import math
from dataclasses import dataclass

from torch import Tensor

from adlm.objectives.linear_cross_entropy import Nats, sliced
from adlm.objectives.objective import LossContext, MaskedObjective


@dataclass(frozen=True)
class ScoreEntropy(MaskedObjective):
    """Ratios instead of probabilities: the network's a_v = logit_v - log(V - 1) is log of an unnormalized p(v | x_t).

    With scores s_v = exp(a_v) / (e^sigma - 1), the denoising score entropy of a masked position is
    sigma' (sum_v s_v - r log s_x0 + r (log r - 1)), r = 1 / (e^sigma - 1), which is
    weight * (sum_v exp(a_v) - 1 - a_x0): the cross-entropy if the p are normalized, and more otherwise.
    A bound in continuous time, as Nelbo is.
    """

    def bound(self, context: LossContext) -> Nats:
        model = context.model
        size = model.vocabulary.size

        def part(h: Tensor, y: Tensor) -> Tensor:
            a = model.logits(h) - math.log(size - 1)
            return a.exp().sum(-1) - 1 - a.gather(-1, y[:, None])[:, 0]

        each = sliced(part, size, context.features.final, context.tokens) * context.weight
        return Nats(each.sum(), each.detach())
