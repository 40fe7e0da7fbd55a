import math

import pytest
import torch

import adlm.objectives.linear_cross_entropy as module
from adlm.anchors.rules import EveryToken, RareInSequence, TypeRule
from adlm.diffusion.corruption import AnchoredMasking, CountMasking, UniformMasking
from adlm.diffusion.schedule import LogLinear
from adlm.errors import ConfigError, OutOfRange
from adlm.models.embedding import Head
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.d3pm import D3pm
from adlm.objectives.linear_cross_entropy import nll, weighted_nll
from adlm.objectives.nelbo import AnchoredCrossEntropy, Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy
from adlm.objectives.score_entropy import ScoreEntropy
from adlm.randomness import Noise
from tests.conftest import TableModel, batch_of
from tests.errors import raises

V = 12
VOCABULARY = Vocabulary(V, V - 1)
TOKENS = torch.randint(0, V - 1, (32, 16), generator=torch.Generator().manual_seed(0))
BATCH = batch_of(TOKENS)


class FirstTypes(TypeRule):
    def types(self):
        return torch.arange(V) < 4


def randomised(model, std=0.2):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
    return model


def two_stage(*, causal=False):
    return randomised(
        TwoStageConfig(StackConfig(width=16, heads=2, layers=2, attention="causal" if causal else "full"), 1).build(
            VOCABULARY
        )
    )


def oracle(tokens):
    return 1e4 * torch.nn.functional.one_hot(TOKENS, V).float()


def uniform(tokens):
    return torch.zeros(*tokens.shape, V)


CORRUPTIONS = [UniformMasking(), UniformMasking(steps=30), CountMasking(), AnchoredMasking(FirstTypes())]


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=repr)
def test_an_oracle_pays_nothing(corruption):
    terms = Nelbo(corruption)(TableModel(VOCABULARY, oracle), BATCH, progress=0.0, noise=Noise(0))
    assert terms.nll_sum.item() == pytest.approx(0, abs=1e-3)


def test_a_uniform_model_pays_the_whole_vocabulary():
    blind = Nelbo(CountMasking())(TableModel(VOCABULARY, uniform), BATCH, progress=0.0, noise=Noise(0))
    assert blind.nll_sum.item() == pytest.approx(TOKENS.numel() * math.log(V - 1), rel=1e-5)
    assert blind.tokens == TOKENS.numel()


@pytest.mark.parametrize("with_mask", [False, True])
def test_the_fused_loss_equals_plain_cross_entropy_in_value_and_gradients(with_mask, monkeypatch):
    torch.manual_seed(0)
    head = Head(VOCABULARY, 8).double()
    torch.nn.init.normal_(head.weight)
    torch.nn.init.normal_(head.bias)
    weight = torch.rand(50, dtype=torch.float64)
    tokens = TOKENS.flatten()[:50]
    results = []
    for size in (0, 1 << 20, V * 7):
        hidden = torch.randn(50, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        head.zero_grad()
        if size:
            monkeypatch.setattr(module, "SLICE_LOGITS", size)
            total, each = weighted_nll(head, hidden, tokens, weight, with_mask=with_mask)
            assert not each.requires_grad
        else:
            each = nll(head.raw if with_mask else head, V, hidden, tokens)
            total = (each * weight).sum()
        (total * 0.3).backward()
        results.append([total.detach(), each.detach(), hidden.grad, head.weight.grad.clone(), head.bias.grad.clone()])
    for fused in results[1:]:
        for ours, plain in zip(fused, results[0], strict=True):
            assert torch.allclose(ours, plain, rtol=1e-12, atol=1e-12)


def test_the_fused_loss_survives_certainty():
    """-log p beyond the range of p itself: no infinity, no nan."""
    head = Head(VOCABULARY, 2)
    with torch.no_grad():
        head.weight[0] = 1.0
    hidden = torch.full((1, 2), 500.0, requires_grad=True)
    total, each = weighted_nll(head, hidden, torch.tensor([1]), torch.ones(1))
    assert each.item() == pytest.approx(1000)
    total.backward()
    assert hidden.grad.isfinite().all()


def test_the_fused_loss_is_differentiated_once_and_says_so():
    """Its gradients are scaled in place, so a second pass must not get them."""
    hidden = torch.randn(3, 8, requires_grad=True)
    total, _ = weighted_nll(Head(VOCABULARY, 8), hidden, TOKENS[0, :3], torch.ones(3))
    (total * 0.5).backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (total * 0.5).backward()


def test_the_fused_loss_works_under_autocast_to_bfloat16():
    torch.manual_seed(0)
    head = Head(VOCABULARY, 8)
    torch.nn.init.normal_(head.weight)
    grads = []
    for enabled in (False, True):
        hidden = torch.randn(50, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        head.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            total, _ = weighted_nll(head, hidden, TOKENS.flatten()[:50], torch.ones(50))
        total.backward()
        assert head.weight.grad.dtype == torch.float32
        grads.append((total.detach(), hidden.grad, head.weight.grad.clone()))
    for full, short in zip(*grads, strict=True):
        assert (full - short).norm() < 0.02 * full.norm()


def test_anelbo_with_weight_zero_is_nelbo_to_the_bit():
    model = two_stage()
    plain = Nelbo()(model, BATCH, progress=0.5, noise=Noise(1))
    for objective in (Anelbo(gamma=0.0), Anelbo(gamma=3e-3)):
        progress = 0.5 if objective.gamma == 0 else 0.0  # the ramp starts from zero
        anchored = objective(model, BATCH, progress=progress, noise=Noise(1))
        assert torch.equal(anchored.loss_sum, plain.loss_sum)


def test_an_annealed_anchor_weight_falls_to_zero_and_then_the_loss_is_the_bound():
    objective = Anelbo(gamma=0.1, zero_at=0.5)
    assert [objective.anchor_weight(p) for p in (0.0, 0.05, 0.25, 0.5, 0.9)] == pytest.approx([0, 0.045, 0.05, 0, 0])
    assert Anelbo(gamma=0.1).anchor_weight(0.9) == 0.1
    model = two_stage()
    early, late = (objective(model, BATCH, progress=p, noise=Noise(1)) for p in (0.25, 0.5))
    assert early.loss_sum > early.nll_sum
    assert torch.equal(late.loss_sum, late.nll_sum)
    with raises(OutOfRange, subject="zero_at"):
        Anelbo(zero_at=1.5)


@pytest.mark.parametrize("causal", [False, True])
def test_the_reported_bound_does_not_move_with_the_anchor_weight(causal):
    model = two_stage(causal=causal)
    kind = AnchoredCrossEntropy if causal else Anelbo
    terms = [kind(gamma=gamma)(model, BATCH, progress=1.0, noise=Noise(1)) for gamma in (0.0, 0.1, 10.0)]
    assert len({t.nll_sum.item() for t in terms}) == 1
    assert len({t.loss_sum.item() for t in terms}) == 3


def test_the_anchor_term_is_the_weighted_cross_entropy_of_the_first_stage():
    model = two_stage()
    for masked_only in (False, True):
        objective = Anelbo(UniformMasking(), EveryToken(), gamma=0.25, masked_only=masked_only)
        terms = objective(model, BATCH, progress=1.0, noise=Noise(2))
        _, x_t, _, masked, weight, *_ = UniformMasking()(BATCH, V - 1, Noise(2))
        logits = model.anchor_logits(model.features(x_t).anchor)
        cost = -logits.log_softmax(-1).gather(-1, TOKENS[..., None])[..., 0]
        chosen = masked if masked_only else torch.ones_like(masked)
        expected = 0.25 * (cost * weight)[chosen].sum()
        assert (terms.loss_sum - terms.nll_sum).item() == pytest.approx(expected.item(), rel=1e-4)


def test_the_anchored_cross_entropy_adds_that_of_the_first_stage():
    model = two_stage(causal=True)
    terms = AnchoredCrossEntropy(RareInSequence(1), gamma=0.5)(model, BATCH, progress=1.0, noise=Noise(2))
    logits = model.anchor_logits(model.features(TOKENS).anchor)
    cost = -logits.log_softmax(-1).gather(-1, TOKENS[..., None])[..., 0]
    expected = 0.5 * cost[RareInSequence(1).mark(BATCH)].sum()
    assert (terms.loss_sum - terms.nll_sum).item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_a_share_of_the_anchors_gives_the_same_term_in_expectation(causal):
    model = two_stage(causal=causal)
    kind = AnchoredCrossEntropy if causal else Anelbo

    def term(fraction, seed):
        # The corruption has the same seed throughout: only the draw of anchors differs.
        batch = batch_of(TOKENS.repeat(40, 1)) if fraction < 1 else BATCH
        batch = type(batch)(batch.tokens, batch.valid, batch.index, batch.sample_id)
        terms = kind(rule=EveryToken(), gamma=1.0, fraction=fraction)(model, batch, progress=1.0, noise=Noise(seed))
        return ((terms.loss_sum - terms.nll_sum) / terms.tokens).item()

    whole = sum(term(1.0, seed) for seed in range(40)) / 40
    assert term(0.25, 1) == pytest.approx(whole, rel=0.1)
    with raises(OutOfRange, subject="fraction"):
        kind(fraction=0)


def test_an_anchor_term_without_an_anchor_stage_is_refused():
    model = OneStageConfig(StackConfig(width=16, heads=2, layers=1)).build(VOCABULARY)
    with raises(ConfigError, subject="stages"):
        Anelbo()(model, BATCH, progress=1.0, noise=Noise(0))


def test_sliced_logits_give_the_same_loss_and_gradients(monkeypatch):
    model = two_stage()
    for objective in (Anelbo(gamma=1.0), ScoreEntropy(), D3pm(), Nelbo(AnchoredMasking(FirstTypes()))):
        results = []
        for size in (1 << 25, V * 7):
            monkeypatch.setattr(module, "SLICE_LOGITS", size)
            model.zero_grad()
            terms = objective(model, BATCH, progress=1.0, noise=Noise(3))
            terms.loss_sum.backward()
            grads = (p.grad.clone() for p in model.parameters() if p.grad is not None)
            results.append([terms.loss_sum.detach(), *grads])
        for whole, sliced in zip(*results, strict=True):
            assert torch.allclose(whole, sliced, rtol=1e-4, atol=1e-4 * whole.abs().max().item())


def test_cross_entropy_is_the_chain_rule():
    model = randomised(OneStageConfig(StackConfig(width=16, heads=2, layers=1, attention="causal")).build(VOCABULARY))
    terms = CrossEntropy()(model, BATCH, progress=0.0, noise=Noise(0))
    logits = model.logits(model.features(TOKENS).final)
    expected = -logits.log_softmax(-1).gather(-1, TOKENS[..., None]).sum()
    assert terms.nll_sum.item() == pytest.approx(expected.item(), rel=1e-5)
    assert CrossEntropy().nats(model, BATCH, torch.zeros(32), Noise(0)).sum().item() == pytest.approx(expected.item())


def normalised_minus(shift):
    """Logits of a fixed law per position, off from normalised scores by `shift`."""

    def logits(tokens):
        table = torch.randn(16, V, generator=torch.Generator().manual_seed(3))
        table[:, V - 1] = -math.inf
        log_p = table.log_softmax(-1)
        return (log_p + math.log(V - 1) + shift).expand(len(tokens), 16, V)

    return logits


def test_score_entropy_is_the_nelbo_of_normalised_scores_and_more_for_others():
    for shift in (0.0, 0.5, -1.0):
        model = TableModel(VOCABULARY, normalised_minus(shift))
        nelbo = Nelbo()(model, BATCH, progress=0.0, noise=Noise(0)).nll_sum
        scores = ScoreEntropy()(model, BATCH, progress=0.0, noise=Noise(0)).nll_sum
        if shift == 0:
            assert scores.item() == pytest.approx(nelbo.item(), rel=1e-5)
        else:
            assert scores > nelbo


def test_score_entropy_is_the_published_formula():
    """sigma' (sum_v s_v - r log s_x0 + r (log r - 1)) with log s = logits - log(e^sigma - 1) - log(V - 1)."""
    model = two_stage()
    _, x_t, t, masked, *_ = UniformMasking()(BATCH, V - 1, Noise(4))
    total = ScoreEntropy()(model, BATCH, progress=0.0, noise=Noise(4)).nll_sum.item()
    t = t.double()
    sigma, slope = -torch.log1p(-(1 - 1e-3) * t), (1 - 1e-3) / (1 - (1 - 1e-3) * t)
    logits = model.head.raw(model.features(x_t).final).double()[..., : V - 1]
    log_s = logits - torch.log(torch.expm1(sigma))[:, None, None] - math.log(V - 1)
    r = (1 / torch.expm1(sigma))[:, None]
    entropy = log_s.exp().sum(-1) - r * log_s.gather(-1, TOKENS[..., None])[..., 0] + r * (r.log() - 1)
    expected = (slope[:, None] * entropy)[masked].sum().item()
    assert total == pytest.approx(expected, rel=1e-4)


def test_d3pm_is_the_sum_of_divergences_of_the_reverse_steps():
    """KL(q(x_s | x_t, x_0) || p(x_s | x_t)) from the transition matrices, as the paper writes them."""
    steps = 10
    model = two_stage()
    objective = D3pm(UniformMasking(steps=steps))
    _, x_t, t, masked, *_ = objective.corruption(BATCH, V - 1, Noise(4))
    total = objective(model, BATCH, progress=0.0, noise=Noise(4)).nll_sum.item()
    mu = model.head.raw(model.features(x_t).final).double().softmax(-1)
    expected, mask = 0.0, V - 1

    def transition(keep):
        q = keep * torch.eye(V, dtype=torch.float64)
        q[:, mask] += 1 - keep
        return q

    def reverse(x_0, a_s, a_t):
        """q(x_s | x_t = mask, x_0) for a law x_0, normalised by q(x_t = mask | x_0)."""
        step = transition(a_t / a_s)[:, mask]
        return step * (x_0 @ transition(a_s)) / (x_0 @ transition(a_t))[mask]

    for row, position in masked.nonzero().tolist():
        a_t, a_s = (LogLinear().alpha(x).item() for x in (t[row].double(), t[row].double() - 1 / steps))
        truth = reverse(torch.nn.functional.one_hot(TOKENS[row, position], V).double(), a_s, a_t)
        model_law = reverse(mu[row, position], a_s, a_t)
        inside = truth > 1e-12
        expected += steps * (truth[inside] * (truth[inside] / model_law[inside]).log()).sum().item()
    assert total == pytest.approx(expected, rel=1e-3)


def test_d3pm_needs_steps():
    with raises(ConfigError, subject="corruption"):
        D3pm(UniformMasking())


@pytest.mark.parametrize("objective", [CrossEntropy(), Nelbo(), Anelbo(), ScoreEntropy(), D3pm()], ids=repr)
def test_an_objective_for_the_other_direction_is_refused(objective):
    """Else a bidirectional model would be trained to copy the token it is shown."""
    model = two_stage(causal=not isinstance(objective, CrossEntropy))
    with raises(ConfigError, subject="attention"):
        objective(model, BATCH, progress=1.0, noise=Noise(0))
    with raises(ConfigError, subject="attention"):
        objective.nats(model, BATCH, torch.full((32,), 0.5), Noise(0))


def test_a_curriculum_reports_no_bound_and_is_not_evaluated():
    objective = Nelbo(AnchoredMasking(RareInSequence(1)))
    model = two_stage()
    terms = objective(model, BATCH, progress=0.0, noise=Noise(0))
    assert terms.nll_sum.isnan()
    assert terms.loss_sum.isfinite()
    with raises(ConfigError, subject="corruption"):
        objective.nats(model, BATCH, torch.full((32,), 0.5), Noise(0))


def test_a_rule_for_another_vocabulary_is_refused():
    model = OneStageConfig(StackConfig(width=16, heads=2, layers=1)).build(Vocabulary(V + 1, V))
    with raises(ConfigError, subject="rule"):
        Nelbo(AnchoredMasking(FirstTypes()))(model, BATCH, progress=0.0, noise=Noise(0))
