"""One token from a distribution over the vocabulary, exactly.

Adding Gumbel noise in float32 and taking the largest is the usual way, and a biased one: float32 uniform numbers are
multiples of 2^-24, so that no noise exceeds 16.6 and rare tokens are drawn too seldom, which acts as a lower
temperature (arXiv 2409.02908).
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adlm.randomness import stream, to_uniform

_BLOCK = 64
_MANY = 1 << 15  # numbers, from which on blocks pay


def draw(logits: Tensor, bits: Tensor) -> Tensor:
    """Tokens [N] from logits [N, V] and 64 random bits [N] each."""
    return draw_measured(logits, bits)[0]


def draw_measured(logits: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [N], and the probability [N] of each."""
    if logits.device.type == "mps":  # it has no float64
        tokens = race(logits, bits)
        return tokens, logits.softmax(-1).gather(-1, tokens[:, None])[:, 0]
    return _inverse_cdf(logits, to_uniform(bits))


def inverse_cdf(logits: Tensor, u: Tensor) -> Tensor:
    """The token at which the cumulative probability first exceeds u [N]. Takes one random number per draw.

    Probabilities are as exact as the logits are; their sums are float64, so that nothing is lost in the tail. Where
    there are many, the block of tokens is found first: sums take a fifth of the time of cumulative ones.
    """
    return _inverse_cdf(logits, u)[0]


def _inverse_cdf(logits: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    if few(logits):
        return _drawn_by_row(logits, u)
    weights = logits.softmax(-1)  # `exp` by itself may take ten times as long at -inf
    token, total = crossing(weights, u[:, None])
    return token[:, 0], (weights.gather(-1, token) / total)[:, 0].to(logits.dtype)


def few(x: Tensor) -> bool:
    """Whether x [N, V] is so small, and on a CPU, that a kernel's call costs more than its work: NumPy's cost less."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() < _MANY and not x.requires_grad


def _drawn_by_row(logits: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """As `_inverse_cdf`. Filters leave few tokens in each row, and the others are not looked at again."""
    tokens, probabilities = [], []
    for row, height in zip(logits.numpy(), u.tolist(), strict=True):
        left = np.flatnonzero(row > -np.inf)
        own = row[left]
        weights = np.exp(own - own.max())
        sums = weights.cumsum(dtype=np.float64)
        place = sums.searchsorted(height * sums[-1], side="right")
        tokens.append(int(left[place]))
        probabilities.append(float(weights[place] / sums[-1]))
    return torch.tensor(tokens, dtype=torch.long), torch.tensor(probabilities)


def crossing(weights: Tensor, fraction: Tensor | float, *, reached: bool = False) -> tuple[Tensor, Tensor]:
    """The first place [N, 1] at which the cumulative sum of weights [N, V] exceeds a fraction of their sum [N, 1].

    Args:
        fraction: in (0, 1); a uniform number is at most 1 - 2^-53, and that is half a last digit or more.
        reached: the first place at which it is reached, instead.
    """
    wide = torch.float32 if weights.device.type == "mps" else torch.float64  # it has no float64
    if weights.numel() < _MANY:
        sums = weights.cumsum(-1, dtype=wide)
        return torch.searchsorted(sums, fraction * sums[:, -1:], right=not reached), sums[:, -1:]
    if rest := -weights.shape[-1] % _BLOCK:
        weights = F.pad(weights, (0, rest))
    blocks = weights.unflatten(-1, (-1, _BLOCK))
    sums = blocks.sum(-1, dtype=wide).cumsum(-1)
    height = fraction * sums[:, -1:]
    block = torch.searchsorted(sums, height, right=not reached)
    own = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0].cumsum(-1, dtype=wide)
    within = (height - sums.gather(-1, block) + own[:, -1:]).clamp_min(0)
    # Rounded, it may reach the block's last sum, behind which there is another block.
    within = torch.minimum(within, own[:, -1:] * (1 - torch.finfo(wide).eps / 2))
    return block * _BLOCK + torch.searchsorted(own, within, right=not reached), sums[:, -1:]


def race(logits: Tensor, bits: Tensor) -> Tensor:
    """The winner of a race in which token v arrives after an exponential time of rate p_v. Needs no float64.

    Short times decide, and they are exact: a uniform number made of 63 bits keeps float32's relative precision down
    to 2^-63, where one made of 24 bits has steps of 2^-24.
    """
    u = (stream(bits, logits.shape[-1]) & ((1 << 63) - 1)).float() * 2.0**-63
    time = -torch.log1p(-u.clamp(2.0**-64, 1 - 2.0**-24))
    return (time.log() - logits).argmin(-1)
