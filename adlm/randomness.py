"""Random numbers as a function of (seed, sample id, position), never of global state.

The noise of a sample depends on its id only: it is the same in any batch, on any rank, before or after an interruption,
and on any device, since it is made by integer arithmetic (SplitMix64, Steele, Lea and Flood 2014) and not by a device's
generator.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALL = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The int64 with the bits of `value` modulo 2^64: torch has no uint64 arithmetic."""
    value &= _ALL
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser: every input bit flips every output bit with probability one half."""
    x = (x ^ _shift(x, 30)) * _signed(_MIX_1)
    x = (x ^ _shift(x, 27)) * _signed(_MIX_2)
    return x ^ _shift(x, 31)


_30, _27, _31, _12, _ONE = (np.uint64(bits) for bits in (30, 27, 31, 12, 1))
_UNSIGNED_1, _UNSIGNED_2, _UNSIGNED_GOLDEN = np.uint64(_MIX_1), np.uint64(_MIX_2), np.uint64(_GOLDEN)


def _mix_unsigned(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`_mix` where there is unsigned arithmetic."""
    x = x ^ (x >> _30)
    x *= _UNSIGNED_1
    x ^= x >> _27
    x *= _UNSIGNED_2
    x ^= x >> _31
    return x


@dataclass(frozen=True)
class Noise:
    """A family of independent random streams, one per sample id."""

    seed: int

    def fork(self, *names: str | int) -> "Noise":
        """An independent family, named: `noise.fork("mask", epoch)`."""
        text = repr((self.seed, *names)).encode()
        return Noise(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"))

    def bits(self, sample_ids: Tensor, length: int) -> Tensor:
        """Random int64 [B, length] for sample ids [B]."""
        if sample_ids.device.type == "cpu":
            return torch.from_numpy(self._unsigned(sample_ids.long().numpy().view(np.uint64), length).view(np.int64))
        return stream(_mix(sample_ids.long() + _signed(_GOLDEN)) ^ _signed(self.seed), length)

    def _unsigned(self, sample_ids: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
        """The same numbers by NumPy, in a quarter of the time for one row, and an eighth for many."""
        return bits_at(np.uint64(self.seed & _ALL), sample_ids[:, None], np.arange(length, dtype=np.uint64))

    def uniform(self, sample_ids: Tensor, length: int) -> Tensor:
        """Uniform numbers in (0, 1), [B, length], float64 (float32 on MPS, which has no float64)."""
        return to_uniform(self.bits(sample_ids, length))


def bits_at(
    seeds: NDArray[np.uint64] | np.uint64, sample_ids: NDArray[np.uint64], positions: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """`Noise(seed).bits` of each seed, sample id and position, which are broadcast: numbers of several families, or few
    of one, at once."""
    starts = _mix_unsigned(_mix_unsigned(sample_ids + _UNSIGNED_GOLDEN) ^ seeds)
    return _mix_unsigned(starts + (positions + _ONE) * _UNSIGNED_GOLDEN)


def bits_of(seed: int, sample_id: int, position: int) -> int:
    """One number of `bits_at`."""
    start = _mix_integer(_mix_integer((sample_id + _GOLDEN) & _ALL) ^ (seed & _ALL))
    return _mix_integer((start + (position + 1) * _GOLDEN) & _ALL)


def _mix_integer(x: int) -> int:
    """`_mix` of a Python integer below 2^64."""
    x = ((x ^ (x >> 30)) * _MIX_1) & _ALL
    x = ((x ^ (x >> 27)) * _MIX_2) & _ALL
    return x ^ (x >> 31)


def uniform_at(
    seeds: NDArray[np.uint64] | np.uint64, sample_ids: NDArray[np.uint64], positions: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """`bits_at` as numbers in (0, 1)."""
    return _uniform(bits_at(seeds, sample_ids, positions))


def _uniform(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    return ((bits >> _12) + 0.5) * 2.0**-52


def stream(starts: Tensor, length: int) -> Tensor:
    """Random int64 [N, length] from int64 [N]: the sequence of SplitMix64 after each start, itself mixed."""
    steps = torch.arange(1, length + 1, device=starts.device) * _signed(_GOLDEN)
    return _mix(_mix(starts)[:, None] + steps)


def to_uniform(bits: Tensor) -> Tensor:
    """Random int64 as numbers in (0, 1), float64 (float32 on MPS)."""
    if bits.device.type == "cpu":
        return torch.from_numpy(_uniform(bits.numpy().view(np.uint64)))
    if bits.device.type == "mps":
        return (_shift(bits, 41).float() + 0.5) / (1 << 23)
    return (_shift(bits, 12).double() + 0.5) / (1 << 52)
