"""The random numbers of a canvas: each belongs to a name, a row's sample id and a position, whatever else is filled.

They are made on the host, where a few of them cost a fraction of what the kernels of a device do.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adlm.randomness import Noise, bits_at, bits_of, uniform_at

_FEW = 8  # numbers, up to which Python's integers are quicker than NumPy's calls

Name: TypeAlias = str | int | NDArray[np.int64]  # an array [B] has the part of each row


class RowNoise:
    """Noise for sample ids [B] and positions up to a length L.

    Args:
        noises: one of each row, or one of all.
        sample_ids: [B], unsigned.
    """

    def __init__(self, noises: list[Noise], sample_ids: NDArray[np.uint64], length: int) -> None:
        self.noises, self.sample_ids, self.length = noises, sample_ids, length
        self._positions = np.arange(length, dtype=np.uint64)

    @classmethod
    def of(cls, noise: Noise, sample_ids: Tensor, length: int) -> "RowNoise":
        """The noise of rows that have one seed."""
        return cls([noise], sample_ids.cpu().numpy().astype(np.int64).view(np.uint64), length)

    @classmethod
    def joined(cls, parts: "Sequence[RowNoise]") -> "RowNoise":
        """The noise of all rows of these."""
        noises = [noise for part in parts for noise in part.noises * (len(part.sample_ids) // len(part.noises))]
        ids = np.concatenate([part.sample_ids for part in parts])
        return cls(noises, ids, max(part.length for part in parts))

    def uniform(self, *name: Name) -> NDArray[np.float64]:
        """Uniform numbers [B, L] in (0, 1)."""
        return uniform_at(self.seeds(name)[:, None], self.sample_ids[:, None], self._positions)

    def uniforms(self, name: str, steps: Sequence[int]) -> NDArray[np.float64]:
        """The numbers [steps, B, L] of `uniform(name, step)` for each step."""
        seeds = np.array([self.seeds((name, step)) for step in steps], dtype=np.uint64)
        return uniform_at(seeds[:, :, None], self.sample_ids[:, None], self._positions)

    def bits(self, name: Sequence[Name], row: Tensor, position: Tensor) -> NDArray[np.int64]:
        """Random bits [N], one number for each row and position [N]."""
        rows, seeds = row.cpu().numpy(), self.seeds(name)
        if len(rows) <= _FEW:
            own_seeds = seeds.tolist() * len(rows) if len(seeds) == 1 else seeds[rows].tolist()
            places = zip(own_seeds, self.sample_ids[rows].tolist(), position.tolist(), strict=True)
            return np.array([bits_of(*place) for place in places], dtype=np.uint64).view(np.int64)
        own = seeds if len(seeds) == 1 else seeds[rows]
        return bits_at(own, self.sample_ids[rows], position.cpu().numpy().view(np.uint64)).view(np.int64)

    def seeds(self, name: Sequence[Name]) -> NDArray[np.uint64]:
        """The seed of each row's numbers of this name, [B], or [1] if noise and name are the same for all rows."""
        size = max([len(self.noises), *(len(part) for part in name if isinstance(part, np.ndarray))])
        noises = self.noises if len(self.noises) == size else [*self.noises] * size
        each = [part.tolist() if isinstance(part, np.ndarray) else [part] * size for part in name]
        seeds = [noise.fork(*own).seed for noise, *own in zip(noises, *each, strict=True)]
        return np.array(seeds, dtype=np.uint64)
