"""Holes: which tokens they hide, and the bound of a hole given the rest."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.holes import in_holes
from adlm.errors import ConfigError, OutOfRange
from adlm.randomness import Noise
from adlm.types import Batch
from tests.errors import raises


def _batch(rows: int, length: int, text: int) -> Batch:
    tokens = torch.arange(rows * length).view(rows, length) % 7
    valid = (torch.arange(length) < text).expand(rows, -1)
    return Batch(tokens, valid, torch.arange(rows), torch.arange(rows))


@given(st.integers(0, 99), st.integers(1, 40))
def test_every_row_has_a_hole_and_padding_has_none(seed, text):
    scored = (torch.arange(40) < text).expand(16, -1)
    found = in_holes(scored, torch.arange(16), Noise(seed))
    assert (found.sum(-1) >= 1).all()
    assert not (found & ~scored).any()


def test_holes_are_runs_that_leave_most_of_a_text_visible():
    found = in_holes(torch.ones(4000, 256, dtype=torch.bool), torch.arange(4000), Noise(0))
    assert 0.1 < found.float().mean() < 0.3
    begins = found & ~found.roll(1, 1)
    assert 3 < found.sum() / begins.sum() < 12  # tokens per hole


def test_a_row_does_not_depend_on_the_rows_around_it():
    scored = torch.ones(8, 64, dtype=torch.bool)
    whole = in_holes(scored, torch.arange(8), Noise(3))
    assert torch.equal(whole[5:6], in_holes(scored[:1], torch.tensor([5]), Noise(3)))


def test_only_whole_rows_have_holes_and_weights_are_those_of_the_hole():
    masking, batch = BlockMasking((2, 0), holes=1.0), _batch(64, 32, 30)
    corrupted = masking(batch, 9, Noise(0))
    holes = in_holes(batch.scored, batch.sample_id, Noise(0))
    whole = corrupted.blocks[:, -1] == 0
    assert whole.any()
    assert not whole.all()
    assert not (corrupted.masked & ~holes)[whole].any()
    assert (corrupted.masked & ~holes)[~whole].any()
    total = (corrupted.weight * corrupted.masked).sum(-1)[whole]
    torch.testing.assert_close(total, holes.sum(-1)[whole].float())  # k tokens, each n / k


def test_the_loss_is_no_bound_of_the_text():
    assert BlockMasking((4, 0)).bounds
    assert not BlockMasking((4, 0), holes=0.5).bounds


@pytest.mark.parametrize(("sizes", "holes", "error"), [((4, 0), 1.5, OutOfRange), ((4,), 0.5, ConfigError)])
def test_wrong_settings_are_refused(sizes, holes, error):
    with raises(error, subject="holes"):
        BlockMasking(sizes, holes=holes)
