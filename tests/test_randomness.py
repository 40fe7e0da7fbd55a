import numpy as np
import pytest
import torch

from adlm.randomness import _GOLDEN, Noise, _mix, _signed, bits_at, bits_of, stream, uniform_at


def test_a_row_is_the_same_in_any_batch():
    noise = Noise(7).fork("mask", 3)
    whole = noise.uniform(torch.arange(100), 50)
    assert torch.equal(noise.uniform(torch.tensor([42, 7]), 50), whole[[42, 7]])
    assert torch.equal(noise.uniform(torch.arange(100), 20), whole[:, :20])


def test_equals_splitmix64_in_plain_integers():
    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    start = mix(mix(5 + golden) ^ 11)
    expected = [mix((start + golden * (i + 1)) % 2**64) for i in range(3)]
    assert [bits % 2**64 for bits in Noise(11).bits(torch.tensor([5]), 3)[0].tolist()] == expected


@pytest.mark.parametrize("seed", [0, 11, -3, 2**64 - 1, 2**70 + 5])
def test_the_numbers_of_a_cpu_are_those_of_other_devices(seed):
    rows = torch.tensor([0, 5, 2**40, -7])
    assert torch.equal(Noise(seed).bits(rows, 33), stream(_mix(rows + _signed(_GOLDEN)) ^ _signed(seed), 33))
    assert torch.equal(Noise(seed).bits(rows[::2], 33), Noise(seed).bits(rows, 33)[::2])


def test_numbers_of_several_families_and_few_positions_are_those_of_each():
    seeds, rows, positions = np.array([3, 2**63 + 5, 3], np.uint64), np.array([0, 9, 9], np.uint64), np.arange(3) * 7
    at = positions.astype(np.uint64)
    for i, (seed, row, position) in enumerate(zip(seeds.tolist(), rows.tolist(), positions.tolist(), strict=True)):
        row = torch.tensor([row])
        assert bits_at(seeds, rows, at).view(np.int64)[i] == Noise(seed).bits(row, 20)[0, position]
        assert uniform_at(seeds, rows, at)[i] == Noise(seed).uniform(row, 20)[0, position]


def test_uniform_numbers_are_uniform_and_uncorrelated():
    u = Noise(0).uniform(torch.arange(400), 500)
    assert 0 < u.min() < u.max() < 1
    counts = np.histogram(u.numpy(), bins=100, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 160  # chi-square, 99 degrees of freedom: p < 1e-4
    for a, b in [(u[:, :-1], u[:, 1:]), (u[:-1], u[1:])]:  # neighbours in a row, and rows
        correlation = np.corrcoef(a.flatten().numpy(), b.flatten().numpy())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(a.numel())


def test_forks_differ_and_are_the_same_every_time():
    assert Noise(0).fork("a") == Noise(0).fork("a")
    assert len({Noise(0).fork("a"), Noise(0).fork("b"), Noise(0).fork("a", 1), Noise(1).fork("a"), Noise(0)}) == 5


def test_one_number_by_python_s_integers_is_that_of_the_arrays():
    for seed in (0, 7, 2**64 - 1):
        expected = Noise(seed).bits(torch.tensor([0, 3, 2**40]), 5).tolist()
        for sample_id, row in zip((0, 3, 2**40), expected, strict=True):
            assert [bits_of(seed, sample_id, i) % 2**64 for i in range(5)] == [value % 2**64 for value in row]
