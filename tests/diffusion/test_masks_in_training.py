"""Opposite masks cover a row once; left to right the end is masked; by confidence the model's own choice stays."""

import pytest
import torch

from adlm.diffusion.corruption import CountMasking
from adlm.diffusion.masks_in_training import ConfidenceMasking, LeftToRightMasking, MirrorMasking
from adlm.diffusion.times_in_training import Bell
from adlm.errors import OutOfRange
from adlm.models.network import Vocabulary
from adlm.randomness import Noise
from adlm.types import Batch
from tests.conftest import TableModel, batch_of
from tests.errors import raises

L, MASK = 20, 50
VOCABULARY = Vocabulary(MASK + 1, MASK)


def rows(count, *, ragged=True):
    generator = torch.Generator().manual_seed(0)
    batch = batch_of(torch.randint(0, MASK, (count, L), generator=generator))
    if not ragged:
        return batch
    valid = torch.arange(L) < torch.randint(1, L + 1, (count, 1), generator=generator)
    frozen = torch.zeros_like(valid)
    frozen[::3, 0] = True
    return Batch(batch.tokens, valid, batch.index, batch.sample_id, frozen)


def part_of(batch, rows):
    return batch.selected(torch.arange(len(batch.tokens))[rows])


@pytest.mark.parametrize("complement", [True, False])
def test_both_copies_are_the_batch_with_other_masks(complement):
    batch = rows(100)
    corrupted = MirrorMasking(complement)(batch, MASK, Noise(0))
    assert corrupted.copies(batch) == MirrorMasking(complement).copies == 2
    assert torch.equal(corrupted.x_0, batch.tokens.repeat(2, 1))
    assert not (corrupted.masked & ~batch.scored.repeat(2, 1)).any()
    assert torch.equal(corrupted.x_t, corrupted.x_0.masked_fill(corrupted.masked, MASK))
    assert ((corrupted.t >= 0) & (corrupted.t <= 1)).all()


def test_a_mask_and_its_complement_cover_every_scored_token_exactly_once():
    batch = rows(500)
    first, second = MirrorMasking()(batch, MASK, Noise(0)).masked.chunk(2)
    assert torch.equal(first.int() + second.int(), batch.scored.int())


def test_every_count_of_a_pair_is_drawn_equally_often_with_the_weight_that_makes_it_a_bound():
    """k uniform on 0..n; a nat for each token costs n on average: the bound of a model that pays one nat."""
    batch = rows(4200, ragged=False)
    corrupted = MirrorMasking()(batch, MASK, Noise(2))
    counts, weight = corrupted.masked.sum(-1), corrupted.weight[:, 0]
    assert torch.bincount(counts, minlength=L + 1).tolist() == pytest.approx([400] * (L + 1), abs=8)
    some = counts > 0
    assert torch.allclose(weight[some], (L + 1) / (2 * counts[some]))
    assert ((counts * weight).sum() / len(batch.tokens)).item() == pytest.approx(L, rel=0.01)


def test_masks_of_the_same_rate_are_disjoint_where_they_can_be():
    batch = rows(500, ragged=False)
    corrupted = MirrorMasking(complement=False)(batch, MASK, Noise(2))
    first, second = corrupted.masked.chunk(2)
    counts = first.sum(-1)
    assert torch.equal(counts, second.sum(-1))
    assert torch.equal((first & second).sum(-1), (2 * counts - L).clamp_min(0))
    assert torch.allclose(corrupted.weight[:500, 0], L / (2 * counts))


@pytest.mark.parametrize("complement", [True, False])
def test_a_pair_varies_less_than_two_masks_drawn_apart(complement):
    """Of costs that tokens have whatever is visible, given the counts."""
    cost = torch.rand(L, generator=torch.Generator().manual_seed(3))
    batch = rows(4000, ragged=False)
    level = torch.full((4000,), 0.5)

    def of(corrupted):
        return (corrupted.masked * corrupted.weight * cost).sum(-1)

    mirrored = of(MirrorMasking(complement).at(level, batch, MASK, Noise(1))).view(2, -1).sum(0)
    apart = sum(of(CountMasking().at(level, batch, MASK, Noise(seed))) for seed in (2, 3)) / 2
    assert mirrored.var() < 0.2 * apart.var()


def test_weights_of_a_law_of_times_are_those_of_a_pair():
    batch = rows(300, ragged=False)
    corrupted = MirrorMasking(times=Bell())(batch, MASK, Noise(1))
    assert torch.allclose(corrupted.weight, torch.full_like(corrupted.weight, 1.0))  # 1 / mean, for each half a copy


@pytest.mark.parametrize(
    "masking", [MirrorMasking(), MirrorMasking(complement=False), LeftToRightMasking(0.5)], ids=repr
)
def test_the_noise_of_a_row_does_not_depend_on_the_batch(masking):
    batch = rows(16)
    whole, alone = masking(batch, MASK, Noise(3)), masking(part_of(batch, slice(5, 9)), MASK, Noise(3))
    for a, b in zip(whole[:5], alone[:5], strict=True):
        assert torch.equal(torch.cat([copy[5:9] for copy in a.chunk(masking.copies)]), b)


def test_left_to_right_some_rows_lose_their_end_and_the_others_are_as_they_were():
    batch = rows(2000)
    plain, ordered = CountMasking()(batch, MASK, Noise(1)), LeftToRightMasking(0.25)(batch, MASK, Noise(1))
    same = (plain.masked == ordered.masked).all(-1)
    assert torch.equal(plain.masked.sum(-1), ordered.masked.sum(-1))
    assert torch.equal(plain.weight, ordered.weight)
    assert torch.equal(plain.t, ordered.t)
    chosen = LeftToRightMasking(0.25)._chosen(batch, Noise(1))
    assert chosen.float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert same[~chosen].all()
    # In a chosen row no scored token is visible after the first mask.
    seen_mask = ordered.masked.cummax(-1).values
    assert not (seen_mask & batch.scored & ~ordered.masked)[chosen].any()
    assert (seen_mask & batch.scored & ~ordered.masked)[~chosen].any()


def peaked(tokens):
    """Logits that are the more certain the further right a position is, whatever is visible."""
    logits = torch.zeros(*tokens.shape, MASK + 1)
    logits[..., 0] = 0.2 * torch.arange(tokens.shape[1]).float()
    return logits


MODEL = TableModel(VOCABULARY, peaked)


@pytest.mark.parametrize("passes", [1, 3])
def test_by_confidence_the_tokens_that_the_model_is_surest_of_are_visible(passes):
    batch = rows(400)
    masking = ConfidenceMasking(1.0, passes)
    random = masking(batch, MASK, Noise(1))
    revised = masking.revised(random, batch, MODEL, Noise(1))
    assert torch.equal(revised.masked.sum(-1), random.masked.sum(-1))
    assert not (revised.masked & ~batch.scored).any()
    assert torch.equal(revised.x_t, batch.tokens.masked_fill(revised.masked, MASK))
    assert torch.equal(revised.weight, random.weight)
    # A part was revealed at random; all others lie to the right of everything masked.
    visible = batch.scored & ~revised.masked
    at_random = (batch.scored & ~random.masked).sum(-1) // (passes + 1)
    left_of_a_mask = visible & revised.masked.flip(-1).cummax(-1).values.flip(-1)
    assert (left_of_a_mask.sum(-1) <= at_random).all()
    assert left_of_a_mask.any()


def test_by_confidence_the_other_rows_stay_and_no_row_depends_on_the_batch():
    batch, masking = rows(64), ConfidenceMasking(0.5)
    random = masking(batch, MASK, Noise(1))
    revised = masking.revised(random, batch, MODEL, Noise(1))
    chosen = masking._chosen(batch, Noise(1))
    assert torch.equal(revised.masked[~chosen], random.masked[~chosen])
    assert not torch.equal(revised.masked[chosen], random.masked[chosen])
    for row in (chosen.nonzero()[0], (~chosen).nonzero()[0]):
        alone = batch.selected(row)
        again = masking.revised(masking(alone, MASK, Noise(1)), alone, MODEL, Noise(1))
        assert torch.equal(again.masked, revised.masked[row])


def test_only_random_masks_make_a_bound():
    assert MirrorMasking().bounds
    assert MirrorMasking(complement=False).bounds
    assert not LeftToRightMasking().bounds
    assert not ConfidenceMasking().bounds
    assert LeftToRightMasking(0.0).bounds


def test_what_is_out_of_range_is_refused():
    with raises(OutOfRange, subject="fraction"):
        LeftToRightMasking(1.5)
    with raises(OutOfRange, subject="passes"):
        ConfidenceMasking(passes=0)
