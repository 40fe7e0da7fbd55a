import math

import pytest
import torch

import adlm.objectives.objective as module
from adlm.anchors.rules import EveryToken
from adlm.diffusion.corruption import CountMasking, UniformMasking
from adlm.models.language_model import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.objective import Anelbo, CrossEntropy, Nelbo
from adlm.randomness import Noise
from tests.conftest import TableModel, batch_of

V = 12
VOCABULARY = Vocabulary(V, V - 1)
TOKENS = torch.randint(0, V - 1, (32, 16), generator=torch.Generator().manual_seed(0))
BATCH = batch_of(TOKENS)


def two_stage():
    torch.manual_seed(0)
    model = TwoStageConfig(StackConfig(width=16, heads=2, layers=2), 1).build(VOCABULARY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("corruption", [UniformMasking(), CountMasking()], ids=repr)
def test_an_oracle_pays_nothing_and_a_uniform_model_the_whole_vocabulary(corruption):
    def oracle(tokens):
        return 1e4 * torch.nn.functional.one_hot(TOKENS, V).float()

    def uniform(tokens):
        return torch.zeros(*tokens.shape, V)

    known = Nelbo(corruption)(TableModel(VOCABULARY, oracle), BATCH, progress=0.0, noise=Noise(0))
    assert known.nll_sum.item() == 0
    blind = Nelbo(CountMasking())(TableModel(VOCABULARY, uniform), BATCH, progress=0.0, noise=Noise(0))
    assert blind.nll_sum.item() == pytest.approx(TOKENS.numel() * math.log(V - 1), rel=1e-5)
    assert blind.tokens == TOKENS.numel()


def test_anelbo_with_weight_zero_is_nelbo_to_the_bit():
    model = two_stage()
    plain = Nelbo()(model, BATCH, progress=0.5, noise=Noise(1))
    for objective in (Anelbo(gamma=0.0), Anelbo(gamma=3e-3)):
        progress = 0.5 if objective.gamma == 0 else 0.0  # the ramp starts from zero
        anchored = objective(model, BATCH, progress=progress, noise=Noise(1))
        assert torch.equal(anchored.loss_sum, plain.loss_sum)


def test_the_reported_bound_does_not_move_with_the_anchor_weight():
    model = two_stage()
    terms = [Anelbo(gamma=gamma)(model, BATCH, progress=1.0, noise=Noise(1)) for gamma in (0.0, 0.1, 10.0)]
    assert len({t.nll_sum.item() for t in terms}) == 1
    assert len({t.loss_sum.item() for t in terms}) == 3


def test_the_anchor_term_is_the_weighted_cross_entropy_of_the_first_stage():
    model = two_stage()
    for masked_only in (False, True):
        objective = Anelbo(UniformMasking(), EveryToken(), gamma=0.25, masked_only=masked_only)
        terms = objective(model, BATCH, progress=1.0, noise=Noise(2))
        _, x_t, _, masked, weight = UniformMasking()(BATCH, V - 1, Noise(2))
        logits = model.anchor_logits(model.features(x_t).anchor)
        nll = -logits.log_softmax(-1).gather(-1, TOKENS[..., None])[..., 0]
        chosen = masked if masked_only else torch.ones_like(masked)
        expected = 0.25 * (nll * weight[:, None])[chosen].sum()
        assert (terms.loss_sum - terms.nll_sum).item() == pytest.approx(expected.item(), rel=1e-4)


def test_sliced_logits_give_the_same_loss_and_gradients(monkeypatch):
    model = two_stage()
    results = []
    for size in (1 << 25, V * 7):
        monkeypatch.setattr(module, "SLICE_LOGITS", size)
        model.zero_grad()
        terms = Anelbo(gamma=1.0)(model, BATCH, progress=1.0, noise=Noise(3))
        terms.loss_sum.backward()
        results.append([terms.loss_sum.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for whole, sliced in zip(*results, strict=True):
        assert torch.allclose(whole, sliced, rtol=1e-4, atol=1e-4)


def test_cross_entropy_is_the_chain_rule():
    torch.manual_seed(0)
    model = OneStageConfig(StackConfig(width=16, heads=2, layers=1, causal=True)).build(VOCABULARY)
    torch.nn.init.normal_(model.head.weight)
    terms = CrossEntropy()(model, BATCH, progress=0.0, noise=Noise(0))
    logits = model.logits(model.features(TOKENS).final)
    expected = -logits.log_softmax(-1).gather(-1, TOKENS[..., None]).sum()
    assert terms.nll_sum.item() == pytest.approx(expected.item(), rel=1e-5)
