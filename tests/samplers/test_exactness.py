"""What samplers draw, against laws computed by enumeration (processes.py)."""

import math

import pytest
import torch

from adlm.diffusion.schedule import Clipped, Cosine, Geometric, LogLinear
from adlm.randomness import Noise
from adlm.samplers import (
    Analytic,
    Ancestral,
    AnyOrder,
    Banned,
    ByConfidence,
    Canvas,
    Cap,
    FirstHitting,
    FlowCorrector,
    ForwardBackward,
    LeastEntropy,
    Loop,
    Margin,
    Never,
    Ordered,
    PerStep,
    Remasking,
    Rescale,
    Temperature,
    TopK,
    ancestral,
)
from tests.conftest import TableModel
from tests.samplers.processes import (
    MASK,
    VOCABULARY,
    Process,
    assert_drawn_from,
    consistent,
    inconsistent,
    number,
    states,
)

SAMPLES = 4000
RULES = [Cap(0.3), Rescale(0.6), ForwardBackward(), FlowCorrector(2.0), Loop(0.5, t_on=0.7, t_off=0.2, alpha_on=0.6)]


def drawn(sampler, process, seed=0):
    canvas = Canvas.blank(SAMPLES, process.length, MASK)
    return number(sampler.sample(process.model, canvas, noise=Noise(seed)).tokens)


def grid_steps(process, rule, steps, schedule):
    """The matrices of a sampler on a grid of times, written down anew from the posterior."""
    for step in range(steps):
        t, s = 1 - step / steps, 1 - (step + 1) / steps
        change = rule.step(t, s, schedule, torch.empty(0))
        alpha_t, alpha_s, sigma = change.alpha_t, change.alpha_s, change.sigma
        if step == steps - 1:
            alpha_s, sigma = 1.0, 0.0
        yield process.step((alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t), sigma)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_ancestral_sampling_in_few_steps_has_its_enumerated_law(steps):
    for process in (consistent()[1], inconsistent()):
        for schedule in (LogLinear(0.0), Cosine()):
            law = process.law(*grid_steps(process, Never(), steps, schedule))
            assert_drawn_from(law, drawn(Ancestral(steps=steps, schedule=schedule), process))


def test_few_steps_are_told_from_many():
    """The test has power: tokens revealed together do not see each other, and that shows."""
    joint, process = consistent()
    with pytest.raises(AssertionError):
        assert_drawn_from(joint, drawn(Ancestral(steps=1), process))
    with pytest.raises(AssertionError):
        assert_drawn_from(inconsistent().in_any_order(), drawn(Ancestral(steps=2), inconsistent()))


def test_first_hitting_writes_one_token_after_another_in_random_order():
    joint, process = consistent()
    assert torch.allclose(process.in_any_order(), joint)
    assert_drawn_from(joint, drawn(FirstHitting(), process))
    assert_drawn_from(inconsistent().in_any_order(), drawn(FirstHitting(), inconsistent()))


@pytest.mark.parametrize("schedule", [LogLinear(0.0), Cosine(), Geometric()], ids=repr)
def test_surplus_steps_leave_the_law_and_cost_nothing(schedule):
    """Steps that reveal nothing are not taken; reveals in one step are as rare as they should be."""
    process, events = inconsistent(), []
    assert_drawn_from(process.in_any_order(), drawn(Ancestral(steps=10**9, schedule=schedule), process))
    canvas = Canvas.blank(1, 3, MASK)
    Ancestral(steps=10**9).sample(process.model, canvas, noise=Noise(0), on_step=events.append)
    assert len(events) == 3


@pytest.mark.parametrize("schedule", [LogLinear(0.0), Cosine(), Clipped(), LogLinear(0.1)], ids=repr)
def test_leaping_over_empty_steps_has_the_enumerated_law_of_few_steps(schedule, monkeypatch):
    monkeypatch.setattr(ancestral, "_MANY_STEPS", 0)
    process = inconsistent()
    for steps in (1, 2, 3):
        law = process.law(*grid_steps(process, Never(), steps, schedule))
        assert_drawn_from(law, drawn(Ancestral(steps=steps, schedule=schedule), process))


def test_first_hitting_is_ancestral_sampling_in_very_many_steps():
    process = inconsistent()
    laws = [process.law(*grid_steps(process, Never(), steps, LogLinear(0.0))) for steps in (16, 128)]
    far, near = ((law - process.in_any_order()).abs().sum() for law in laws)
    assert near < far / 7 < 0.02
    assert_drawn_from(process.in_any_order(), drawn(Ancestral(steps=128), process))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_remasking_has_the_enumerated_law_of_its_posterior(rule):
    for process, steps in ((consistent()[1], 3), (inconsistent(), 8)):
        sampler = Remasking(steps=steps, rule=rule)
        law = process.law(*grid_steps(process, rule, steps, sampler.schedule))
        assert_drawn_from(law, drawn(sampler, process))


@pytest.mark.parametrize("rule", [*RULES[:-1], Loop(0.01)], ids=lambda rule: type(rule).__name__)
def test_remasking_in_many_steps_with_exact_conditionals_gives_the_joint_law_back(rule):
    joint, process = consistent()
    law = process.law(*grid_steps(process, rule, 64, LogLinear(0.0)))
    assert (law - joint).abs().sum() < 0.06
    assert_drawn_from(joint, drawn(Remasking(steps=64, rule=rule), process))


def test_remasking_by_confidence_takes_back_sigma_max_tokens_per_row_the_least_sure_first():
    seen = []
    Remasking(steps=20, rule=ByConfidence()).sample(
        inconsistent().model,
        Canvas.blank(SAMPLES, 3, MASK),
        noise=Noise(0),
        on_step=lambda view: seen.append((view.tokens.clone(), view.fresh, view.remasked)),
    )
    confidence = torch.full((SAMPLES, 3), torch.inf, dtype=torch.float64)
    before = torch.full((SAMPLES, 3), MASK)
    for step, (tokens, fresh, remasked) in enumerate(seen):
        t, s = 1 - step / 20, 1 - (step + 1) / 20
        visible = before != MASK
        fraction = (-confidence).exp() / (-confidence).exp().sum(-1, keepdim=True).clamp_min(1e-12)
        probability = torch.where(visible, fraction * min(1, (1 - (1 - s)) / max(1 - t, 1e-12)), 0.0)
        assert not (remasked & ~visible).any()
        for sure in (confidence < 0.5, confidence >= 0.5):
            expected, spread = probability[sure].sum(), (probability * (1 - probability))[sure].sum().sqrt()
            assert abs(remasked[sure].sum() - expected) <= 5 * spread + 1e-6
        p = inconsistent().p[number(before)]
        drawn_p = p.gather(-1, tokens.clamp_max(2)[..., None])[..., 0]
        confidence = torch.where(fresh, drawn_p, confidence).masked_fill(remasked, torch.inf)
        before = tokens


@pytest.mark.parametrize("rule", [Never(), *RULES], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("steps", [5, 16])
def test_remasking_keeps_the_share_of_visible_tokens_at_alpha(rule, steps):
    model = TableModel(VOCABULARY, lambda tokens: torch.zeros(*tokens.shape, 4))
    sampler, fractions = Remasking(steps=steps, rule=rule), []
    sampler.sample(
        model,
        Canvas.blank(2000, 8, MASK),
        noise=Noise(1),
        on_step=lambda view: fractions.append((view.tokens != MASK).double().mean().item()),
    )
    for step, fraction in enumerate(fractions):
        alpha = rule.step(1 - step / steps, 1 - (step + 1) / steps, sampler.schedule, torch.empty(0)).alpha_s
        assert fraction == pytest.approx(alpha, abs=5 * math.sqrt(max(alpha * (1 - alpha), 1e-12) / 16_000))
    assert fractions[-1] == 1


@pytest.mark.parametrize("schedule", [Geometric(), Clipped(), Cosine(0.3), LogLinear(0.1)], ids=repr)
@pytest.mark.parametrize("rule", [Never(), *RULES, ByConfidence()], ids=lambda rule: type(rule).__name__)
def test_no_mask_is_left_whatever_the_schedule_ends_with(rule, schedule):
    process = inconsistent()
    for steps in (1, 3):
        sampler = Remasking(steps=steps, rule=rule, schedule=schedule)
        assert MASK not in sampler.sample(process.model, Canvas.blank(200, 3, MASK), noise=Noise(2)).tokens


def test_remasking_that_never_remasks_is_ancestral_draw_for_draw():
    process, canvas = inconsistent(), Canvas.blank(300, 3, MASK)
    plain = Ancestral(steps=6).sample(process.model, canvas, noise=Noise(3))
    for rule in (Cap(0.0), Rescale(0.0), FlowCorrector(0.0), Never()):
        again = Remasking(steps=6, rule=rule).sample(process.model, canvas, noise=Noise(3))
        assert torch.equal(again.tokens, plain.tokens)
        assert again.network_calls == plain.network_calls


@pytest.mark.parametrize("steps", [2, 4])
def test_analytic_steps_reveal_by_the_models_own_total(steps):
    """exp(logits) / (V - 1) sums to Z, which multiplies the probability to reveal."""
    process = inconsistent()
    open_logits = process.logits[..., :MASK]
    for offset in (0.0, None, 1.5):  # Z = 1, as the table happens to have it, and far too large
        logits = process.logits
        if offset is not None:
            logits = logits - open_logits.logsumexp(-1, keepdim=True) + math.log(3) + offset
        total = logits[..., :MASK].logsumexp(-1).exp() / 3
        scaled, matrices = Process(logits), []
        for step in range(steps):
            last = step == steps - 1
            probability = torch.ones_like(total) if last else (total / (steps - step)).clamp_max(1)
            matrices.append(scaled.step(probability))
        assert_drawn_from(scaled.law(*matrices), drawn(Analytic(steps=steps), scaled))
        if offset == 0.0:
            ancestral = process.law(*grid_steps(process, Never(), steps, LogLinear(0.0)))
            assert torch.allclose(scaled.law(*matrices), ancestral)


def test_one_token_a_step_in_any_order_has_the_law_of_first_hitting():
    process = inconsistent()
    assert_drawn_from(process.in_any_order(), drawn(Ordered(order=AnyOrder(), pace=PerStep(1)), process))


@pytest.mark.parametrize("order", [LeastEntropy(), Margin()], ids=repr)
def test_the_surest_position_first_has_its_enumerated_law(order):
    process = inconsistent()
    p = process.p
    top = p.sort(-1, descending=True).values
    sureness = (p * p.log()).sum(-1) if isinstance(order, LeastEntropy) else top[..., 0] - top[..., 1]
    first = sureness.masked_fill(~process.blank, -torch.inf).argmax(-1)
    probabilities = torch.nn.functional.one_hot(first, 3) * process.blank
    law = process.law(*[process.one_at(probabilities.double())] * 3)
    assert_drawn_from(law, drawn(Ordered(order=order, pace=PerStep(1)), process))
    with pytest.raises(AssertionError):
        assert_drawn_from(process.in_any_order(), drawn(Ordered(order=order, pace=PerStep(1)), process))


def test_filters_change_the_law_as_they_say():
    process = inconsistent()
    top = process.logits[..., :MASK].topk(2, -1).values[..., -1:]
    for filters, logits in (
        ((Temperature(0.5),), 2 * process.logits),
        ((Banned((1,)),), process.logits.index_fill(-1, torch.tensor([1]), -math.inf)),
        ((TopK(2),), process.logits.masked_fill(process.logits < top, -math.inf)),
        ((TopK(2), Temperature(2.0)), process.logits.masked_fill(process.logits < top, -math.inf) / 2),
    ):
        assert_drawn_from(Process(logits).in_any_order(), drawn(FirstHitting(filters), process))


def test_a_frozen_token_conditions_what_is_drawn():
    joint, process = consistent()
    canvas = Canvas.infilling([[MASK, 2, MASK]] * SAMPLES, MASK)
    law = torch.where(states(3)[:, 1] == 2, joint, 0.0)
    for sampler in (FirstHitting(), Ancestral(steps=64), Remasking(steps=64, rule=Cap(0.1))):
        assert_drawn_from(law / law.sum(), number(sampler.sample(process.model, canvas, noise=Noise(4)).tokens))
