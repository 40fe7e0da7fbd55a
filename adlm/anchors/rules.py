"""Which tokens are important: anchor rules mark positions of a batch, vectorized on its device.

This module has the interfaces and the rules that need only the row itself. Rules that use a corpus are in `corpus.py`,
rules that use the text of a token in `words.py`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from adlm.errors import ConfigError, DataError, OutOfRange
from adlm.randomness import Noise
from adlm.types import Batch


@dataclass(frozen=True)
class AnchorRule(ABC):
    """Says which tokens are anchors."""

    @abstractmethod
    def mark(self, batch: Batch) -> Tensor:
        """The anchors of a batch, [B, L] bool; False at padding."""

    def check_vocabulary(self, size: int) -> None:
        """Refuse a model of `size` token types of which the rule does not know all."""
        return  # most rules know nothing about types


@dataclass(frozen=True)
class TypeRule(AnchorRule):
    """A rule that looks at a token's type alone: a table of V booleans says it all."""

    @abstractmethod
    def types(self) -> Tensor:
        """The token types that are anchors wherever they occur, [V] bool on the CPU."""

    def check_vocabulary(self, size: int) -> None:
        check_types(len(self.types_on(torch.device("cpu"))), size)

    def types_on(self, device: torch.device) -> Tensor:
        """`types` on a device: computed once per device and shared, so it must not be modified."""
        return _types_on(self, device)

    def mark(self, batch: Batch) -> Tensor:
        return look_up(self.types_on(batch.tokens.device), batch, type(self).__name__) & batch.valid


# Kept outside the rules: a rule stays a value, to be compared, pickled and written to JSON.
@lru_cache(maxsize=32)
def _types_on(rule: TypeRule, device: torch.device) -> Tensor:
    return rule.types().to(device)


def check_types(known: int, size: int) -> None:
    """Refuse a rule that knows fewer token types than the model: a GPU would abort at an id out of range."""
    if known < size:
        raise ConfigError(
            f"the anchor rule knows {known} token types, but the vocabulary of the model has {size}", subject="rule"
        )


def look_up(table: Tensor, batch: Batch, rule: str) -> Tensor:
    """[B, L]: what `table` [V] says of each token. Padding may hold any id, and is read as type 0."""
    tokens = batch.tokens.masked_fill(~batch.valid, 0)
    # Only on the CPU: elsewhere the check would hold up every step, and `check_vocabulary` has been made.
    if tokens.numel() and tokens.device.type == "cpu":
        low, high = torch.stack(tokens.aminmax()).tolist()
        if low < 0 or high >= len(table):
            wrong = (tokens < 0) | (tokens >= len(table))
            row = int(batch.index[wrong.any(1)][0])
            raise DataError(
                f"row {row} has the token {int(tokens[wrong][0])}, but {rule} knows only {len(table)} token types",
                subject=f"row {row}",
            )
    return table[tokens]


def counts_in_row(batch: Batch) -> Tensor:
    """[B, L]: how often each valid token occurs in its own row, in O(L log L) per row and without a [B, V] table."""
    ordered, position = batch.tokens.masked_fill(~batch.valid, -1).sort(-1)
    # In a sorted row equal tokens are runs: number the runs, take their sizes, bring these back to the positions.
    begins = torch.ones_like(batch.valid)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = begins.cumsum(1) - 1
    sizes = torch.zeros_like(run).scatter_add(1, run, torch.ones_like(run))
    return torch.empty_like(run).scatter(1, position, sizes.gather(1, run))


def check_fraction(fraction: float) -> None:
    """Refuse a number outside [0, 1]."""
    if not 0 <= fraction <= 1:
        raise OutOfRange("fraction", fraction, "from 0 to 1")


@dataclass(frozen=True)
class RareInSequence(AnchorRule):
    """The paper's rule: a token is an anchor if it occurs at most `most` times in its own row."""

    most: int = 5

    def mark(self, batch: Batch) -> Tensor:
        return (counts_in_row(batch) <= self.most) & batch.valid


@dataclass(frozen=True)
class Given(AnchorRule):
    """The anchors that come with the data (`Batch.anchors`)."""

    def mark(self, batch: Batch) -> Tensor:
        if batch.anchors is None:
            raise DataError(
                "the data marks no anchors",
                fix="use a rule such as RareInSequence",
                subject="anchors",
            )
        return batch.anchors & batch.valid


@dataclass(frozen=True)
class EveryToken(AnchorRule):
    """Every token is an anchor."""

    def mark(self, batch: Batch) -> Tensor:
        return batch.valid


@dataclass(frozen=True)
class NoToken(AnchorRule):
    """No anchors: the control that leaves everything else as it is."""

    def mark(self, batch: Batch) -> Tensor:
        return torch.zeros_like(batch.valid)


@dataclass(frozen=True)
class RandomFraction(AnchorRule):
    """Each position with probability `fraction`, whatever stands there: the control that keeps the number of anchors.

    The marks are a function of the seed, the row's sample id and the position, never of the batch around it.
    """

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_fraction(self.fraction)

    def mark(self, batch: Batch) -> Tensor:
        # A stream of its own: with the corruption's, anchors would be the positions that are masked first.
        noise = Noise(self.seed).fork("anchors")
        return (noise.uniform(batch.sample_id, batch.tokens.shape[1]) < self.fraction) & batch.valid
