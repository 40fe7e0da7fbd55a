"""One token from a distribution over the vocabulary, exactly.

Adding Gumbel noise in float32 and taking the largest is the usual way, and a biased one: float32 uniform numbers are
multiples of 2^-24, so that no noise exceeds 16.6 and rare tokens are drawn too seldom, which acts as a lower
temperature (arXiv 2409.02908).
"""

import torch
from torch import Tensor

from adlm.randomness import stream, to_uniform


def draw(logits: Tensor, bits: Tensor) -> Tensor:
    """Tokens [N] from logits [N, V] and 64 random bits [N] each."""
    if logits.device.type == "mps":  # it has no float64
        return race(logits, bits)
    return inverse_cdf(logits, to_uniform(bits))


def inverse_cdf(logits: Tensor, u: Tensor) -> Tensor:
    """The token at which the cumulative probability first exceeds u [N]. One random number a draw.

    Probabilities are as exact as the logits are; their sums are float64, so that nothing is lost in the tail.
    """
    weights = (logits - logits.amax(-1, keepdim=True)).exp_()
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    # Below the last sum, behind which there is no token: u is at most 1 - 2^-53, and that is half a last digit or more.
    return torch.searchsorted(cumulative, u[:, None] * cumulative[:, -1:], right=True)[:, 0]


def race(logits: Tensor, bits: Tensor) -> Tensor:
    """The winner of a race in which token v arrives after an exponential time of rate p_v. Needs no float64.

    Short times decide, and they are exact: a uniform number made of 63 bits keeps float32's relative precision down
    to 2^-63, where one made of 24 bits has steps of 2^-24.
    """
    u = (stream(bits, logits.shape[-1]) & ((1 << 63) - 1)).float() * 2.0**-63
    time = -torch.log1p(-u.clamp(2.0**-64, 1 - 2.0**-24))
    return (time.log() - logits).argmin(-1)
