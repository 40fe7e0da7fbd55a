"""What is optimised with the masks and times of training, and that what is reported is the clean bound all the same."""

import math

import pytest
import torch

from adlm.diffusion.blocks import BlockMasking
from adlm.diffusion.corruption import Corruption, CountMasking
from adlm.diffusion.masks_in_training import ConfidenceMasking, LeftToRightMasking, MirrorMasking
from adlm.diffusion.times_in_training import Bell, Window
from adlm.errors import ConfigError
from adlm.models.hand_over import Hidden
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.bound import enumerated_nats
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy
from adlm.randomness import Noise
from adlm.types import Batch
from tests.conftest import TableModel, batch_of
from tests.errors import raises

V, L = 8, 6
VOCABULARY = Vocabulary(V, V - 1)
STACK = StackConfig(width=16, heads=2, layers=2)
UNBIASED = [MirrorMasking(), MirrorMasking(complement=False), CountMasking(times=Bell(0.5, 0.4, weighting="bound"))]
CURRICULA = [CountMasking(times=Bell()), CountMasking(times=Window()), LeftToRightMasking(), ConfidenceMasking()]


def hashed(tokens):
    """Some law for every state of a row."""
    state = (tokens * V ** torch.arange(tokens.shape[1])).sum(-1, keepdim=True)
    return (2 * torch.sin(state * torch.arange(1, L * V + 1).double() * 0.37)).view(-1, L, V)


def network(*, stages=1, seed=0):
    torch.manual_seed(seed)
    model = (OneStageConfig(STACK) if stages == 1 else TwoStageConfig(STACK, 1, Hidden())).build(VOCABULARY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def rows(count=16):
    tokens = torch.randint(0, V - 1, (count, L), generator=torch.Generator().manual_seed(0))
    valid = torch.arange(L) < torch.tensor([L, 2, 4, 5]).repeat(count // 4)[:, None]
    return Batch(tokens, valid, torch.arange(count), torch.arange(count))


@pytest.mark.parametrize("corruption", UNBIASED, ids=repr)
def test_these_losses_are_the_exact_bound_in_expectation(corruption):
    model, row = TableModel(VOCABULARY, hashed), [[0, 3, 5, 1, 6, 2]]
    exact = enumerated_nats(model, batch_of(row)).sum().item()
    batch = batch_of(row * 2000)
    estimates = []
    for seed in range(10):
        terms = Nelbo(corruption)(model, batch, progress=0.5, noise=Noise(seed))
        assert terms.loss_sum.item() == terms.nll_sum.item()
        assert terms.tokens == 2000 * L  # each row counts once, however often it is read
        estimates.append(terms.nll_sum.item() / 2000)
    estimates = torch.tensor(estimates)
    assert estimates.mean().item() == pytest.approx(exact, abs=4 * estimates.std().item() / 10**0.5 + 1e-3 * exact)


@pytest.mark.parametrize("corruption", CURRICULA, ids=repr)
def test_where_the_loss_bounds_nothing_it_trains_and_nothing_is_reported(corruption):
    terms = Nelbo(corruption)(network(), rows(), progress=0.5, noise=Noise(0))
    assert math.isfinite(terms.loss_sum.item())
    assert math.isnan(terms.nll_sum.item())


@pytest.mark.parametrize("corruption", [*UNBIASED, *CURRICULA], ids=repr)
@pytest.mark.parametrize("objective", [Nelbo, Anelbo])
def test_validation_is_that_of_a_plain_run(corruption, objective):
    assert objective(corruption).for_validation() == Nelbo(CountMasking())


@pytest.mark.parametrize("times", [Bell(), Window()], ids=repr)
def test_scores_do_not_know_the_times_of_training(times):
    model, batch, level = network(), rows(), torch.linspace(0.01, 0.99, 16).double()
    plain = Nelbo(CountMasking()).nats(model, batch, level, Noise(3))
    assert torch.equal(Nelbo(CountMasking(times=times)).nats(model, batch, level, Noise(3)), plain)


def test_the_scores_of_a_pair_are_summed_over_its_copies():
    model, batch, level = (
        TableModel(VOCABULARY, lambda tokens: torch.zeros(*tokens.shape, V)),
        rows(),
        torch.full((16,), 0.5),
    )
    nats = Nelbo(MirrorMasking()).nats(model, batch, level, Noise(3))
    assert nats.shape == batch.tokens.shape
    assert (nats[batch.scored] > 0).all()  # each token is masked in one of the copies
    assert (nats[~batch.scored] == 0).all()


def test_the_loss_of_a_curriculum_is_no_score():
    for corruption in (LeftToRightMasking(), ConfidenceMasking()):
        with raises(ConfigError, subject="corruption"):
            Nelbo(corruption).nats(network(), rows(), torch.full((16,), 0.5), Noise(0))


class Fixed(Corruption):
    """Returns what it was given."""

    def __init__(self, corrupted):
        super().__init__()
        object.__setattr__(self, "corrupted", corrupted)

    def at(self, level, batch, mask_id, noise):
        return self.corrupted


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("stages", [1, 2])
def test_asking_the_model_for_masks_leaves_no_trace_in_the_gradients(bf16, stages):
    """Weights that a pass without gradients has cast must not be used again by the one that trains."""
    batch, masking, noise = rows(), ConfidenceMasking(1.0), Noise(1)
    model = network(stages=stages)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        revised = masking.revised(masking(batch, V - 1, noise), batch, model, noise)
    gradients = []
    for corruption in (masking, Fixed(revised)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            terms = Nelbo(corruption)(model, batch, progress=0.5, noise=noise)
        terms.loss_sum.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])
    assert any("blocks" in name for name in gradients[0])


def test_anchors_of_a_pair_are_those_of_two_rows_of_half_the_weight():
    model, batch = network(stages=2), rows()
    objective = Anelbo(MirrorMasking(), gamma=0.5, masked_only=True)
    terms = objective(model, batch, progress=1.0, noise=Noise(2))
    pair = objective.corrupt(batch, V - 1, Noise(2))
    plain = Anelbo(Fixed(pair), gamma=0.5, masked_only=True)(model, batch.repeated(2), progress=1.0, noise=Noise(2))
    assert terms.loss_sum.item() == pytest.approx(plain.loss_sum.item(), rel=1e-6)
    assert terms.loss_sum.item() > terms.nll_sum.item()
    assert 2 * terms.tokens == plain.tokens


def test_left_to_right_and_masked_rows_share_one_shifted_network():
    """Blocks of one token and of the whole row (arXiv 2512.14549): each row pays what it would pay alone."""
    torch.manual_seed(0)
    model = OneStageConfig(STACK, shift=True).build(VOCABULARY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batch, noise = batch_of(torch.randint(0, V - 1, (16, L), generator=torch.Generator().manual_seed(0))), Noise(4)
    objective = Nelbo(BlockMasking((1, 0)))
    corrupted = objective.corrupt(batch, V - 1, noise)
    one = corrupted.blocks[:, -1] > 0
    assert 0 < one.sum() < 16
    causal = CrossEntropy()(model.in_blocks(1), batch.selected(one.nonzero()[:, 0]), progress=0.5, noise=noise)
    masked = Nelbo(BlockMasking((0,)))(model, batch.selected((~one).nonzero()[:, 0]), progress=0.5, noise=noise)
    terms = objective(model, batch, progress=0.5, noise=noise)
    assert terms.loss_sum.item() == pytest.approx((causal.loss_sum + masked.loss_sum).item(), rel=1e-5)
    assert objective.for_validation() == Nelbo(BlockMasking((0,)))
