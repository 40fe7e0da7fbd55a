"""Reverse steps of the official samplers (tests/golden/README.md): for dt = 1/64, at a row with blanks."""

import functools

import pytest
import torch
from torch.nn.functional import one_hot

from adlm.samplers import Cap, ForwardBackward, Loop, Never, Remasking, Rescale, TopP
from adlm.samplers.filters import Sites
from tests.models.test_official import EXPECTED, official

MASK = 38
RULES = {
    "mdlm": Never(),
    "forward-backward": ForwardBackward(),
    "remdm-cap": Cap(0.04),
    "remdm-rescale": Rescale(0.05),
    "remdm-loop": Loop(0.02, t_on=0.55, t_off=0.05, alpha_on=0.9),
}


@functools.cache
def official_logits():
    model, _ = official("continuous")
    with model.inference_weights():
        return model.logits(model.features(EXPECTED["reverse.xt"]).final[0]).double()


def reverse_step(sampler, t, p):
    """Our distribution of each token of the row after a step, the official one, and where the row is blank."""
    tokens, logits = EXPECTED["reverse.xt"], official_logits()
    positions = torch.arange(tokens.shape[1])
    kept = TopP(p, keep_crossing=False)(logits, Sites(tokens, torch.zeros_like(positions), positions))
    step = RULES[sampler].step(t, t - 1 / 64, Remasking().schedule, torch.full(tokens.shape, torch.inf))
    mask = one_hot(torch.tensor(MASK), 39)
    blank = tokens[0] == MASK
    revealed = step.reveal * kept.softmax(-1) + (1 - step.reveal) * mask
    visible = (1 - step.sigma) * one_hot(tokens[0], 39) + step.sigma * mask
    return torch.where(blank[:, None], revealed, visible), EXPECTED[f"reverse.{sampler}.t{t}.p{p}"][0], blank


@pytest.mark.parametrize("p", [1.0, 0.9])
@pytest.mark.parametrize("t", [0.03, 0.5, 0.9])
@pytest.mark.parametrize("sampler", RULES)
def test_reverse_steps_are_the_official_ones(sampler, t, p):
    ours, theirs, blank = reverse_step(sampler, t, p)
    carried_over = sampler == "mdlm" or (sampler == "remdm-loop" and t != 0.5)
    beyond = sampler == "forward-backward" and t == 0.03  # see below
    if not beyond:
        compared = blank if carried_over else torch.ones_like(blank)
        assert (ours - theirs)[compared].abs().max() < 1e-6
    else:
        assert (ours - theirs.clamp_min(0) / theirs.clamp_min(0).sum(-1, keepdim=True))[blank].abs().max() < 1e-6


def test_official_forward_backward_steps_leave_the_posterior_near_the_end_and_ours_stay_within():
    """Where s < dt their sigma exceeds sigma_max and the probability to stay masked falls below 0. On a grid that is
    the
    last step alone, in which nothing may be masked again."""
    ours, theirs, blank = reverse_step("forward-backward", 0.03, 1.0)
    assert (theirs[blank, MASK] < -0.01).all()
    assert (ours >= 0).all()
    assert (ours[~blank, MASK] < theirs[~blank, MASK]).all()
    steps = 64
    for step in range(steps - 1):
        t, s = 1 - step / steps, 1 - (step + 1) / steps
        change = ForwardBackward().step(t, s, Remasking().schedule, torch.empty(0))
        if t < 1:
            assert change.sigma == pytest.approx((change.alpha_s - change.alpha_t) / change.alpha_t)
