"""Training with an anchor stage that read the rows earlier."""

import pytest
import torch

from adlm.diffusion.corruption import UniformMasking
from adlm.errors import ConfigError, OutOfRange
from adlm.models.hand_over import Hidden, Logits
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo, earlier
from adlm.objectives.objective import LossInputs
from adlm.randomness import Noise
from adlm.types import Corrupted
from tests.conftest import batch_of
from tests.errors import raises

VOCABULARY = Vocabulary(8, 7)
STACK = StackConfig(16, 2, 1)
MODEL = TwoStageConfig(STACK, 1).build(VOCABULARY)


def rows(count=4, length=12):
    return batch_of(torch.randint(0, 7, (count, length), generator=torch.Generator().manual_seed(0)))


def test_more_is_masked_earlier_and_as_much_as_the_process_says():
    batch, t = rows(2000, 30), 0.4
    masked = Noise(1).uniform(batch.sample_id, 30) < t
    x_t = batch.tokens.masked_fill(masked, 7)
    corrupted = Corrupted(batch.tokens, x_t, torch.full((2000,), t), masked, torch.ones(2000, 1))
    before = earlier(LossInputs(MODEL, batch, corrupted, 1.0, Noise(2)), 0.3)
    assert (before[masked] == 7).all()
    assert torch.equal(before[before != 7], x_t[before != 7])
    # Masked at t, or made visible in the time between, which is 0.15 in the mean.
    assert (before == 7).double().mean().item() == pytest.approx(t + 0.15, abs=0.01)


def test_given_tokens_stay_visible():
    batch = rows()
    fixed = torch.zeros_like(batch.valid)
    fixed[:, :5] = True
    batch = batch.__class__(batch.tokens, batch.valid, batch.index, batch.sample_id, fixed)
    corrupted = UniformMasking()(batch, 7, Noise(0))
    assert torch.equal(earlier(LossInputs(MODEL, batch, corrupted, 1.0, Noise(1)), 1.0)[:, :5], batch.tokens[:, :5])


@pytest.mark.parametrize(("hand_over", "sees"), [(Hidden(), True), (Logits(), False)])
def test_what_the_denoiser_sees_of_new_tokens_is_its_hand_overs_affair(hand_over, sees):
    torch.manual_seed(0)
    model = TwoStageConfig(STACK, 1, hand_over).build(VOCABULARY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    blank, text = torch.full((1, 6), 7), torch.tensor([[1, 2, 3, 7, 7, 7]])
    stage = model.anchor_stage(blank)
    assert torch.equal(model.denoise(stage, blank), model.features(blank).final)
    assert torch.equal(model.denoise(stage, text), model.features(blank).final) != sees


def test_a_stale_loss_trains_both_stages_and_validation_stays_fresh():
    torch.manual_seed(0)
    model = TwoStageConfig(STACK, 1, Hidden()).build(VOCABULARY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batch, level = rows(), torch.full((4,), 0.5)
    stale, fresh = Anelbo(stale=0.5), Anelbo()
    losses = [each(model, batch, progress=1.0, noise=Noise(3)) for each in (stale, fresh)]
    assert losses[0].loss_sum != losses[1].loss_sum
    losses[0].loss_sum.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.anchor.blocks.parameters())
    assert torch.equal(*(each.nats(model, batch, level, Noise(4)) for each in (stale, fresh)))


def test_nonsense_is_refused():
    with raises(OutOfRange, subject="stale"):
        Anelbo(stale=2.0)
    model = OneStageConfig(STACK).build(VOCABULARY)
    with raises(ConfigError, subject="stages"):
        Anelbo(stale=0.5)(model, rows(), progress=1.0, noise=Noise(0))
