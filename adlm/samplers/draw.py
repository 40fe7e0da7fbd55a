"""One token from a distribution over the vocabulary, exactly.

Adding Gumbel noise in float32 and taking the largest is the usual way, and a biased one: float32 uniform numbers are
multiples of 2^-24, so that no noise exceeds 16.6 and rare tokens are drawn too seldom, which acts as a lower
temperature (arXiv 2409.02908).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from adlm.randomness import stream, to_uniform

_BLOCK = 64
_MANY = 1 << 15  # numbers, from which on blocks pay


def draw(logits: Tensor, bits: Tensor) -> Tensor:
    """Tokens [N] from logits [N, V] and 64 random bits [N] each."""
    return draw_measured(logits, bits)[0]


def draw_measured(logits: Tensor, bits: Tensor, top: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Tokens [N], and the probability [N] of each.

    Args:
        top: the largest logit of each row [N, 1], where it is known.
    """
    if logits.device.type == "mps":  # it has no float64
        tokens = race(logits, bits)
        return tokens, logits.softmax(-1).gather(-1, tokens[:, None])[:, 0]
    return _inverse_cdf(logits, to_uniform(bits), logits.amax(-1, keepdim=True) if top is None else top)


def inverse_cdf(logits: Tensor, u: Tensor) -> Tensor:
    """The token at which the cumulative probability first exceeds u [N]. One random number a draw.

    Probabilities are as exact as the logits are; their sums are float64, so that nothing is lost in the tail. Where
    there are many, the block of tokens is found first: sums take a fifth of the time of cumulative ones.
    """
    return _inverse_cdf(logits, u, logits.amax(-1, keepdim=True))[0]


def _inverse_cdf(logits: Tensor, u: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    weights = (logits - top).exp_()
    if weights.numel() < _MANY:
        sums = weights.cumsum(-1, dtype=torch.float64)
        token = _first_above(sums, u[:, None] * sums[:, -1:])
    else:
        blocks = F.pad(weights, (0, -weights.shape[-1] % _BLOCK)).unflatten(-1, (-1, _BLOCK))
        sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
        height = u[:, None] * sums[:, -1:]
        block = _first_above(sums, height)
        own = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
        within = (height - sums.gather(-1, block) + own[:, -1:]).clamp_min(0)
        # Rounded, it may reach the block's last sum, behind which there is another block.
        token = block * _BLOCK + _first_above(own, torch.minimum(within, own[:, -1:] * (1 - 2.0**-53)))
    return token[:, 0], (weights.gather(-1, token) / sums[:, -1:])[:, 0].to(logits.dtype)


def _first_above(sums: Tensor, height: Tensor) -> Tensor:
    """[N, 1]: where cumulative sums [N, K] first exceed a height [N, 1], which is below the last: a uniform number is
    at most 1 - 2^-53, and that is half a last digit or more."""
    return torch.searchsorted(sums, height, right=True)


def race(logits: Tensor, bits: Tensor) -> Tensor:
    """The winner of a race in which token v arrives after an exponential time of rate p_v. Needs no float64.

    Short times decide, and they are exact: a uniform number made of 63 bits keeps float32's relative precision down
    to 2^-63, where one made of 24 bits has steps of 2^-24.
    """
    u = (stream(bits, logits.shape[-1]) & ((1 << 63) - 1)).float() * 2.0**-63
    time = -torch.log1p(-u.clamp(2.0**-64, 1 - 2.0**-24))
    return (time.log() - logits).argmin(-1)
