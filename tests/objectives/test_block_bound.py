"""The bound of block diffusion: between the left-to-right likelihood and the masked bound, and above the truth."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from adlm.anchors.rules import RareInSequence
from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import CountMasking
from adlm.errors import ConfigError, OutOfRange
from adlm.models.hand_over import Hidden
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.bound import clean_objective, enumerated_nats, position_nats
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy
from adlm.randomness import Noise
from adlm.types import Batch
from tests.errors import raises

VOCABULARY = Vocabulary(5, 4)
STACK = StackConfig(width=16, heads=2, layers=2, attention="block")
SHIFTED = OneStageConfig(STACK, block_size=4, shift=True)
PLAIN = OneStageConfig(STACK, block_size=4)
ANCHORED = TwoStageConfig(STACK, 1, block_size=4, shift=True)


def built(network):
    torch.manual_seed(0)
    model = network.build(VOCABULARY).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def batch(rows=6, length=8, **options):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, (rows, length), generator=generator)
    numbers = torch.arange(rows)
    return Batch(tokens, options.pop("valid", torch.ones_like(tokens, dtype=torch.bool)), numbers, numbers, **options)


def test_blocks_of_one_token_give_the_left_to_right_likelihood():
    for network in (SHIFTED, replace(ANCHORED, hand_over=Hidden())):
        model, rows = built(network), batch()
        exact = position_nats(model.in_blocks(1), rows, draws=1, noise=Noise(0))
        one = Nelbo(BlockMasking((1,)))
        torch.testing.assert_close(one.nats(model, rows, torch.zeros(6), Noise(3)), exact)
        assert clean_objective(model.in_blocks(1)) == CrossEntropy()
        # The same by the pass over two copies, which one size for all rows avoids.
        both = BlockMasking((1,)).at(torch.zeros(6), rows, 4, Noise(0))._replace(block_size=None)
        hidden = model.features(both.x_t, clean=both.x_0, blocks=both.blocks).final
        cost = -model.logits(hidden).log_softmax(-1).gather(-1, rows.tokens[..., None])[..., 0]
        torch.testing.assert_close(cost, exact)


def test_one_block_of_the_whole_row_gives_the_masked_bound():
    model, rows = built(PLAIN), batch()
    expected = enumerated_nats(model.in_blocks(0), rows).sum(-1)
    torch.testing.assert_close(enumerated_nats(model.in_blocks(8), rows).sum(-1), expected)
    estimates = position_nats(model, rows, draws=400, noise=Noise(0), objective=Nelbo(BlockMasking((0,))))
    masked = position_nats(model.in_blocks(0), rows, draws=400, noise=Noise(0), objective=Nelbo(CountMasking()))
    torch.testing.assert_close(estimates.sum(-1).double(), expected, rtol=0.03, atol=0)
    torch.testing.assert_close(masked.sum(-1).double(), expected, rtol=0.03, atol=0)


@pytest.mark.parametrize("network", [SHIFTED, PLAIN, ANCHORED], ids=["shifted", "plain", "anchored"])
@pytest.mark.parametrize("size", [2, 4])
def test_the_estimate_converges_to_the_exact_bound(network, size):
    model, rows = built(network).in_blocks(size), batch()
    exact = enumerated_nats(model, rows).sum(-1)
    estimates = torch.stack([position_nats(model, rows, draws=4, noise=Noise(i)).sum(-1) for i in range(60)])
    error = estimates.std(0) / 60**0.5
    assert bool(((estimates.mean(0) - exact).abs() < 4.5 * error).all())


@torch.no_grad()
@pytest.mark.parametrize("network", [SHIFTED, PLAIN], ids=["shifted", "plain"])
def test_the_bound_is_above_the_exact_likelihood_of_its_sampler(network):
    """p(block | past) by averaging over all orders of revealing one token at a time: -log is below the bound."""
    model = built(network).in_blocks(2)
    rows = batch(rows=3, length=4)
    bound = enumerated_nats(model, rows).sum(-1)
    for row in range(3):
        tokens, total = rows.tokens[row], 0.0
        for start in (0, 2):
            probability = 0.0
            for first in (start, start + 1):
                x = tokens.clone()[None]
                x[:, start:] = 4
                p = model(x).softmax(-1)[0]
                x[0, first] = tokens[first]
                second = 2 * start + 1 - first
                q = model(x).softmax(-1)[0]
                probability += 0.5 * float(p[first, tokens[first]] * q[second, tokens[second]])
            total -= torch.tensor(probability).log().item()
        assert total < float(bound[row])


def test_probabilities_of_all_texts_sum_to_one_left_to_right():
    model = built(SHIFTED).in_blocks(1)
    tokens = torch.tensor(list(product(range(4), repeat=3)))
    numbers = torch.arange(len(tokens))
    rows = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), numbers, numbers)
    nats = position_nats(model, rows, draws=1, noise=Noise(0)).sum(-1)
    assert float((-nats).exp().sum()) == pytest.approx(1, abs=1e-5)


def test_every_block_has_a_level_of_its_own_and_they_are_spread_evenly():
    rows = batch(rows=64, length=32)
    corrupted = BlockMasking((4,))(rows, 4, Noise(0))
    counts = corrupted.masked.view(64, 8, 4).sum(-1)
    assert counts.min() == 1
    assert counts.max() == 4
    assert counts.flatten().bincount()[1:].tolist() == [128] * 4  # two of each count in every row
    assert bool((counts.view(64, 2, 4).float().std(0) > 0).all())
    torch.testing.assert_close(corrupted.weight.view(64, 8, 4)[:, :, 0], 4 / counts.float())


def test_only_scored_positions_are_masked_and_short_blocks_weigh_as_they_should():
    valid = torch.ones(6, 10, dtype=torch.bool)
    valid[:, 9:] = False
    frozen = torch.zeros(6, 10, dtype=torch.bool)
    frozen[:, :6] = True
    rows = batch(6, 10, valid=valid, frozen=frozen)
    corrupted = BlockMasking((4,))(rows, 4, Noise(0))
    assert not bool((corrupted.masked & frozen).any())
    second = corrupted.masked[:, 4:8].sum(-1)
    assert set(second.tolist()) <= {1, 2}  # two of its four tokens are given
    torch.testing.assert_close(corrupted.weight[:, 7], 2 / second.float())


def test_padding_up_to_the_end_of_a_block_is_predicted():
    valid = torch.ones(6, 12, dtype=torch.bool)
    valid[:, 5:] = False
    rows = batch(6, 12, valid=valid)
    corrupted = BlockMasking((4,))(rows, 4, Noise(0))
    assert bool(corrupted.masked[:, 5:8].any())
    assert not bool(corrupted.masked[:, 8:].any())
    assert corrupted.segments[0].tolist() == [0] * 8 + [-1] * 4
    whole = BlockMasking((0,))(rows, 4, Noise(0))
    assert not bool(whole.masked[:, 5:].any())


def test_documents_that_share_a_row_are_refused():
    documents = torch.tensor([[0] * 3 + [1] * 5]).expand(6, -1)
    with raises(ConfigError, subject="packing"):
        BlockMasking((4,))(batch(documents=documents), 4, Noise(0))


def test_sizes_are_drawn_per_row_or_taken_one_after_another():
    rows = batch(rows=300, length=16)
    drawn = BlockMasking((1, 4, 0))(rows, 4, Noise(0))
    assert drawn.block_size is None
    counts = (drawn.blocks[:, -1] + 1).bincount(minlength=17)
    assert set(counts.nonzero()[:, 0].tolist()) == {1, 4, 16}
    assert int(counts.max()) < 140
    alone = batch(rows=300, length=16).split(7)
    assert torch.equal(torch.cat([BlockMasking((1, 4, 0))(part, 4, Noise(0)).x_t for part in alone]), drawn.x_t)
    growing = BlockMasking((1, 4), progressive=True)
    assert growing(rows, 4, Noise(0), 0.0).block_size == 1
    assert growing(rows, 4, Noise(0), 0.49).block_size == 1
    assert growing(rows, 4, Noise(0), 0.5).block_size == 4
    assert growing(rows, 4, Noise(0), 1.0).block_size == 4


def test_rows_that_draw_together_have_one_size():
    masking, rows = BlockMasking((1, 4, 0), together=5), batch(rows=300, length=16)
    drawn = masking(rows, 4, Noise(0))
    sizes = (drawn.blocks[:, -1] + 1).view(60, 5)
    assert bool((sizes == sizes[:, :1]).all())
    assert set(sizes.flatten().tolist()) == {1, 4, 16}
    parts = [masking(part, 4, Noise(0)) for part in rows.split(5)]
    assert {part.block_size for part in parts} == {1, 4, 16}
    assert torch.equal(torch.cat([part.x_t for part in parts]), drawn.x_t)
    # What one copy of a row costs is what two cost.
    model = built(SHIFTED)
    apart = sum(Nelbo(masking)(model, part, progress=1.0, noise=Noise(0)).nll_sum for part in rows.split(5))
    torch.testing.assert_close(apart, Nelbo(masking)(model, rows, progress=1.0, noise=Noise(0)).nll_sum)


def test_the_anchored_bound_works_in_blocks():
    model, rows = built(ANCHORED), batch()
    masking = BlockMasking((4,))
    plain = Nelbo(masking)(model, rows, progress=1.0, noise=Noise(0))
    terms = Anelbo(masking, rule=RareInSequence(2), gamma=0.1)(model, rows, progress=1.0, noise=Noise(0))
    assert float(terms.loss_sum.detach()) > float(plain.loss_sum.detach())
    torch.testing.assert_close(terms.nll_sum, plain.nll_sum)
    assert Anelbo(masking).for_validation() == Nelbo(masking)


def test_what_does_not_fit_is_refused():
    with raises(ConfigError, subject="corruption"):
        Nelbo(CountMasking()).check(built(PLAIN))
    with raises(ConfigError, subject="corruption"):
        Nelbo(BlockMasking()).check(built(OneStageConfig(replace(STACK, attention="full"))))
    with raises(ConfigError, subject="sizes"):
        BlockMasking(())
    with raises(OutOfRange, subject="sizes"):
        BlockMasking((4, -1))
    with raises(OutOfRange, subject="together"):
        BlockMasking(together=0)
