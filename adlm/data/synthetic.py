"""Random tokens in any size: to measure speed, or to try a large run on any machine before its data is there.

Ranks are drawn as words of a language are, the k-th most frequent with a probability proportional to 1 / k (Zipf), so
that rules which look at frequencies have something to see. A row is a function of the seed, the split and its
number: (seed, split) is the key of a counter-based generator (Philox), the row's number its counter. Nothing is
stored.
"""

import hashlib
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from adlm.data.packing import Packing, Wrapped
from adlm.data.table import DataConfig, PreparationCallback, Prepared, Table
from adlm.data.tokenizer import END, Tokenizer, with_roles
from adlm.errors import OutOfRange

_UNKNOWN = "<unk>"
_SPECIAL = (END, _UNKNOWN)
SPLITS = ("train", "valid", "test")  # in the order of their keys
_DRAWING = 1  # raised when the same seed gives other rows


@dataclass(frozen=True)
class Synthetic(DataConfig):
    """Rows of random words, full to the end; a tenth as many are held out.

    Args:
        vocabulary: ids of the tokenizer, the end, unknown and mask tokens among them; GPT-2's with a mask by default.
        length: tokens per row.
        count: rows to train on.
    """

    vocabulary: int = 50_258
    length: int = 1024
    count: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        self._packing()  # refuses rows that are too short
        for name, least in (("vocabulary", len(_SPECIAL) + 3), ("count", 1), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise OutOfRange(name, value, f"at least {least}")

    def prepare(
        self, *, cache: Path | None = None, verify: bool = True, watch: PreparationCallback | None = None
    ) -> Prepared:
        train, valid = RandomRows(self, "train", self.count), RandomRows(self, "valid", -(-self.count // 10))
        return Prepared(train, valid, self.tokenizer(), self._packing())

    def tokenizer(self) -> Tokenizer:
        """Words are called by their ids, w2, w3, ..., and written with a space between them. The mask is last."""
        words = (*_SPECIAL, *(f"w{index}" for index in range(len(_SPECIAL), self.vocabulary - 1)))
        backend = Backend(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=_UNKNOWN))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.add_special_tokens([AddedToken(word, special=True) for word in _SPECIAL])
        return with_roles(backend)

    def _packing(self) -> Packing:
        return Wrapped(self.length, separated=False)


def uniform_rows(seed: int, split: str, rows: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Numbers [N, count] in [0, 1), a function of the seed, the split and the number of the row."""
    key = np.array([seed, SPLITS.index(split)], np.uint64)
    bits = [np.random.Philox(key=key, counter=[0, row, 0, 0]).random_raw(count) for row in rows]
    return (np.array(bits, np.uint64).reshape(len(rows), count) >> np.uint64(11)) * 2.0**-53


class RandomRows(Table):
    """A split of `Synthetic`, computed as it is read."""

    def __init__(self, config: Synthetic, split: str, count: int) -> None:
        self.config, self.split, self.count = config, split, count

    @property
    def name(self) -> str:
        return f"synthetic-{self.split}"

    @property
    def key(self) -> str:
        return hashlib.sha256(repr((_DRAWING, astuple(self.config), self.split)).encode()).hexdigest()

    @property
    def length(self) -> int:
        return self.config.length

    def __len__(self) -> int:
        return self.count

    @cached_property
    def _probabilities(self) -> NDArray[np.float64]:
        """Of the k most frequent words together, for k = 1, 2, ...; only sums and quotients, alike on all machines."""
        sums = np.cumsum(1 / np.arange(1, self.config.vocabulary - len(_SPECIAL)))
        return sums / sums[-1]

    def tokens(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        uniform = uniform_rows(self.config.seed, self.split, rows, self.length)
        return np.searchsorted(self._probabilities, uniform, side="right") + len(_SPECIAL)
