"""What may be drawn: filters change logits before a token is drawn from them. They are values, applied in order.

`filters=(Temperature(0.8), TopP(0.9))` makes the distribution colder, then cuts its tail.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from adlm.errors import ConfigError, OutOfRange
from adlm.samplers.draw import crossing, few

_HEAD = 1 << 10  # tokens among which the nucleus usually ends


class Sites(NamedTuple):
    """The places where N tokens are about to be drawn: the canvas [B, L], and the row [N] and position [N] of each."""

    tokens: Tensor
    row: Tensor
    position: Tensor


@dataclass(frozen=True)
class Filter(ABC):
    """Changes logits before a token is drawn."""

    @abstractmethod
    def __call__(self, logits: Tensor, sites: Sites) -> Tensor:
        """Logits [N, V] -> logits [N, V], -inf at tokens that must not be drawn."""


@dataclass(frozen=True)
class Temperature(Filter):
    """Logits divided by `value`: below 1, likely tokens become more likely; 0 always takes the most likely one."""

    value: float = 1.0

    def __post_init__(self) -> None:
        _check(0 <= self.value < math.inf, "temperature", self.value, "at least 0")

    def __call__(self, logits: Tensor, sites: Sites) -> Tensor:
        if self.value == 0:
            return TopK(1)(logits, sites)
        return logits / self.value if self.value != 1 else logits


@dataclass(frozen=True)
class TopK(Filter):
    """The `k` most likely tokens; of equal ones, those with the smaller ids."""

    k: int

    def __post_init__(self) -> None:
        _check(self.k >= 1, "top_k", self.k, "at least 1")

    def __call__(self, logits: Tensor, sites: Sites) -> Tensor:
        if self.k >= logits.shape[-1]:
            return logits
        if self.k == 1:
            return _kept(logits, logits.argmax(-1, keepdim=True))  # the first of equal ones
        count = torch.full((len(logits), 1), self.k, device=logits.device)
        return _likeliest(logits, _descending(logits), count)


@dataclass(frozen=True)
class TopP(Filter):
    """The most likely tokens that together have probability `p`.

    Two rules are published for the token that crosses p. It stays (`keep_crossing`) with Hugging Face and Duo, so
    that at least p is kept; ADLM, ReMDM and BD3-LM drop it, so that at most p is, though always the likeliest token.
    """

    p: float
    keep_crossing: bool = True

    def __post_init__(self) -> None:
        _check(0 < self.p <= 1, "top_p", self.p, "more than 0 and at most 1")

    def __call__(self, logits: Tensor, sites: Sites) -> Tensor:
        if self.p == 1:
            return logits
        if few(logits):
            least = [self._least(row) for row in logits.numpy()]
            if None not in least:
                return _at_least(logits, torch.tensor(least)[:, None])
        ranked = _descending(logits)
        place, _ = crossing(ranked.softmax(-1), self.p, reached=self.keep_crossing)
        count = place + 1 if self.keep_crossing else place.clamp_min(1)
        return _likeliest(logits, ranked, count.clamp_max(logits.shape[-1]))

    def _least(self, logits: NDArray[np.float32]) -> float | None:
        """The smallest logit that stays, of [V]; None if that does not say which tokens stay, or they are many."""
        ranked = np.negative(np.sort(-logits))
        weights = np.exp(ranked - ranked[0])
        sums = weights[:_HEAD].cumsum(dtype=np.float64)
        height = self.p * float(weights.sum(dtype=np.float64))
        count = int(sums.searchsorted(height, side="left" if self.keep_crossing else "right")) + self.keep_crossing
        count = max(1, count)
        if count >= len(sums) or ranked[count] == ranked[count - 1]:
            return None
        return float(ranked[count - 1])


@dataclass(frozen=True)
class MinP(Filter):
    """Tokens at least `p` times as likely as the most likely one (arXiv 2407.01082)."""

    p: float

    def __post_init__(self) -> None:
        _check(0 <= self.p <= 1, "min_p", self.p, "from 0 to 1")

    def __call__(self, logits: Tensor, sites: Sites) -> Tensor:
        if self.p == 0:
            return logits
        return _at_least(logits, logits.amax(-1, keepdim=True) + math.log(self.p))


@dataclass(frozen=True)
class RepetitionPenalty(Filter):
    """Tokens that stand in the row already: positive logits divided by `penalty`, negative ones times it (CTRL)."""

    penalty: float

    def __post_init__(self) -> None:
        _check(0 < self.penalty < math.inf, "repetition_penalty", self.penalty, "more than 0")

    def __call__(self, logits: Tensor, sites: Sites) -> Tensor:
        present = sites.tokens[sites.row]  # [N, L]; masks may stay among them, their logit is -inf anyway
        values = logits.gather(-1, present)
        values = torch.where(values > 0, values / self.penalty, values * self.penalty)
        return logits.scatter(-1, present, values)


@dataclass(frozen=True)
class Banned(Filter):
    """Never draws these tokens."""

    tokens: tuple[int, ...]

    def __call__(self, logits: Tensor, sites: Sites) -> Tensor:
        return logits.index_fill(-1, _ids(self.tokens, logits, "ban"), -math.inf)


@dataclass(frozen=True)
class Allowed(Filter):
    """Draws only these tokens."""

    tokens: tuple[int, ...]

    def __call__(self, logits: Tensor, sites: Sites) -> Tensor:
        return _kept(logits, _ids(self.tokens, logits, "allow").expand(len(logits), -1))


@dataclass(frozen=True)
class Forced(Filter):
    """This token at this position of every row (counted from the row's start), if it is blank."""

    position: int
    token: int

    def __call__(self, logits: Tensor, sites: Sites) -> Tensor:
        forced = _kept(logits, _ids((self.token,), logits, "force").expand(len(logits), -1))
        # A token that other filters or the model exclude would leave nothing to draw.
        forced[:, self.token] = forced[:, self.token].clamp_min(0)
        return torch.where((sites.position == self.position)[:, None], forced, logits)


def check_finite(logits: Tensor, sites: Sites) -> None:
    """Refuse what the network gave [N, V] where it is nonsense; before the filters, which could hide it."""
    if (wrong := _not_finite(logits)) is not None:
        raise ConfigError(f"{_asked(wrong, sites)}: the model's logits are not finite", subject="logits")


def check_drawable(
    logits: Tensor, sites: Sites, filters: Sequence[Filter], mask_id: int, *, changed: bool = True
) -> None:
    """Refuse to draw from logits [N, V] where filters or constraints leave nothing, or the mask.

    Args:
        changed: False if no filter or constraint has touched them.
    """
    if changed and (wrong := _not_finite(logits)) is not None:
        names = ", ".join(type(each).__name__ for each in filters) or "the constraint"
        raise ConfigError(f"{_asked(wrong, sites)}: no token is left by {names}", subject=names)
    if len(logits) and logits[:, mask_id].amax().item() > -math.inf:
        raise ConfigError(f"the mask token {mask_id} cannot be forced", subject="Forced.token")


def _not_finite(logits: Tensor) -> Tensor | None:
    """[N] bool, where the largest logit is not finite; nan is the largest of all. None if all are."""
    top = logits.amax(-1)
    if math.isfinite(top.sum().item()):  # one number nearly always says it
        return None
    wrong = ~top.isfinite()
    return wrong if bool(wrong.any()) else None


def _asked(wrong: Tensor, sites: Sites) -> str:
    first = int(wrong.nonzero()[0, 0])
    return f"cannot draw a token at position {int(sites.position[first])} of row {int(sites.row[first])}"


def _descending(logits: Tensor) -> Tensor:
    """The logits [N, V] of each row from the largest to the smallest."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        # Values alone by vector instructions: a twentieth of the time that torch takes.
        values = -logits.detach().numpy()
        values.sort(axis=-1)
        return torch.from_numpy(np.negative(values, out=values))
    return logits.sort(dim=-1, descending=True).values


def _likeliest(logits: Tensor, ranked: Tensor, count: Tensor) -> Tensor:
    """The `count` [N, 1] largest logits, of equal ones those with the smaller numbers; -inf elsewhere.

    Args:
        ranked: the logits in descending order.
    """
    least = ranked.gather(-1, count - 1)
    beyond = ranked.gather(-1, count.clamp_max(ranked.shape[-1] - 1))
    if not bool(((beyond == least) & (least > -math.inf) & (count < ranked.shape[-1])).any()):
        return _at_least(logits, least)
    larger, equal = logits > least, logits == least
    room = count - larger.sum(-1, keepdim=True)
    return logits.masked_fill(~(larger | (equal & (equal.cumsum(-1) <= room))), -math.inf)


def _at_least(logits: Tensor, least: Tensor) -> Tensor:
    """-inf below `least` [N, 1]. Sums of zeros and infinities, since choosing by a mask is slow on a CPU."""
    above = logits - least.clamp_min(torch.finfo(logits.dtype).min)
    return F.threshold(above, -torch.finfo(logits.dtype).tiny, -math.inf, inplace=True).clamp_max_(0).add_(logits)


def _kept(logits: Tensor, indices: Tensor) -> Tensor:
    """-inf but for the tokens `indices` [N, K]."""
    return torch.full_like(logits, -math.inf).scatter_(-1, indices, logits.gather(-1, indices))


def _ids(tokens: tuple[int, ...], logits: Tensor, verb: str) -> Tensor:
    size = logits.shape[-1]
    if outside := [token for token in tokens if not 0 <= token < size]:
        raise OutOfRange(f"tokens to {verb}", outside, f"ids below {size}")
    return torch.tensor(tokens, device=logits.device, dtype=torch.long)


def _check(right: bool, name: str, value: float, rule: str) -> None:
    if not right:
        raise OutOfRange(name, value, rule)
