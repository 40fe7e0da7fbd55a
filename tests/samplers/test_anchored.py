"""What samplers do with the two stages of an anchored model."""

import math

import pytest
import torch

from adlm.errors import ConfigError
from adlm.randomness import Noise
from adlm.samplers import (
    Ancestral,
    AnchorConfidence,
    Canvas,
    Cap,
    Confidence,
    FirstHitting,
    InSteps,
    Ordered,
    PerStep,
    Remasking,
)
from adlm.samplers.network import NetworkWrapper
from adlm.samplers.state import SamplerState
from tests.errors import raises
from tests.samplers.processes import MASK, networks

ROWS = [[MASK] * 8, [0, 1, *[MASK] * 6], [MASK, 1, 2, MASK, 0, 0, 1, 1], [1] * 8]


class Spy(NetworkWrapper):
    def __init__(self, network):
        super().__init__(network)
        self.seen = {"anchor": [], "final": []}

    def logits(self, final):
        self.seen["final"].append(len(final))
        return super().logits(final)

    def anchor_logits(self, anchor):
        self.seen["anchor"].append(len(anchor))
        return super().anchor_logits(anchor)


def test_anchor_confidence_reads_the_anchor_head_at_blanks_and_the_final_head_where_it_writes():
    model, views = networks("adlm")["adlm"], []
    spy = Spy(model)
    sampler = Ordered(order=AnchorConfidence(), pace=InSteps(3))
    canvas = Canvas.infilling(ROWS, MASK)
    sample = sampler.sample(
        spy, canvas, noise=Noise(0), on_step=lambda view: views.append((view.fresh, view.tokens.clone()))
    )
    blanks, before = [], canvas.tokens
    for _, after in views:
        blanks.append(int((before == MASK).sum()))
        before = after
    assert spy.seen["anchor"] == blanks
    assert spy.seen["final"] == [int(fresh.sum()) for fresh, _ in views]
    assert sample.network_calls == sample.anchor_calls == sum(int(fresh.any(-1).sum()) for fresh, _ in views)


def test_anchor_confidence_goes_where_the_anchor_stage_is_surest():
    model, views = networks("adlm")["adlm"], []
    canvas = Canvas.blank(5, 8, MASK)
    # Different visible tokens make the rows, and their anchors, different.
    canvas.tokens[:, 0] = torch.tensor([0, 1, 2, 0, 1])
    canvas.tokens[:3, 5] = 1
    canvas = Canvas.infilling(canvas.tokens.tolist(), MASK)
    before = canvas.tokens.clone()
    Ordered(order=AnchorConfidence(), pace=PerStep(1)).sample(
        model, canvas, noise=Noise(0), on_step=lambda view: views.append((view.fresh, view.tokens.clone()))
    )
    for fresh, after in views:
        with torch.no_grad():
            sure = model.anchor_head(model.features(before).anchor).softmax(-1).amax(-1)
        best = sure.masked_fill(before != MASK, -1)
        rows = fresh.any(-1)
        assert torch.allclose(best.amax(-1)[rows], best[fresh], atol=5e-5)  # what is nearly equal goes by place
        before = after


def test_agreeing_reveals_where_both_stages_agree_and_the_surest_beside():
    # A row of nothing but blanks looks the same everywhere to this model: rounding would decide.
    model, canvas, views = networks("adlm")["adlm"], Canvas.infilling(ROWS[1:], MASK), []
    sampler = Ordered(order=Confidence(), pace=PerStep(1), agreeing=True)
    sample = sampler.sample(model, canvas, noise=Noise(1), on_step=lambda view: views.append(view.fresh))
    with model.inference_weights():
        state = sampler.start(model, canvas, noise=Noise(1))
        blank = state.blank
        tokens, confidence = state.predict(blank, 1.0, 0)
        anchors = model.anchor_head(model.features(canvas.tokens).anchor[blank]).argmax(-1)
    sure = torch.zeros(blank.shape).masked_fill(~blank, -1)
    sure[blank] = confidence
    expected = (sure == sure.amax(-1, keepdim=True)) & blank
    expected[blank] |= tokens == anchors
    assert torch.equal(views[0], expected)
    assert 2 < expected.sum() < blank.sum()
    plain = Ordered(order=Confidence(), pace=PerStep(1)).sample(model, canvas, noise=Noise(1))
    assert sample.network_calls < plain.network_calls
    assert sample.anchor_calls == sample.network_calls


@pytest.mark.parametrize("stale", [1, 2, 3, 100])
@pytest.mark.parametrize(
    "make",
    [
        lambda stale: FirstHitting(stale_anchors=stale),
        lambda stale: Ancestral(steps=6, stale_anchors=stale),
        lambda stale: Remasking(steps=8, rule=Cap(0.3), stale_anchors=stale),
        lambda stale: Ordered(pace=InSteps(4), stale_anchors=stale),
        lambda stale: Ordered(order=AnchorConfidence(), pace=InSteps(4), stale_anchors=stale),
    ],
)
def test_the_anchor_stage_of_a_row_is_computed_at_every_so_many_of_its_passes(make, stale):
    model, passes, computed = networks("adlm-hidden")["adlm-hidden"], [], []
    stage = model.anchor_stage
    model.anchor_stage = lambda tokens, *rest, **more: computed.append(len(tokens)) or stage(tokens, *rest, **more)
    sample = make(stale).sample(
        model, Canvas.infilling(ROWS, MASK), noise=Noise(2), on_step=lambda view: passes.append(view.fresh.any(-1))
    )
    each = torch.stack(passes).sum(0).tolist()  # rows that revealed nothing were not computed
    assert sample.network_calls == sum(each)
    assert sample.anchor_calls == sum(math.ceil(n / stale) for n in each) == sum(computed)


@pytest.mark.parametrize(("kind", "sees"), [("adlm", False), ("adlm-hidden", True)])
def test_stale_anchors_let_new_tokens_through_with_hidden_states_and_not_with_logits(kind, sees):
    model = networks(kind)[kind]
    seen = []
    logits = model.logits
    model.logits = lambda final: seen.append(final) or logits(final)
    where = torch.tensor([[False, True, True]])
    with model.inference_weights():
        for stale in (4, 1):
            state = SamplerState(model, Canvas.blank(1, 3, MASK), Noise(0))
            state.stale_anchors = stale
            state.predict(where, 0.5)
            state.tokens[0, 0] = 1
            state.predict(where, 0.5)
    assert torch.allclose(seen[0], seen[2], atol=1e-6)
    assert torch.allclose(seen[0], seen[1], atol=1e-6) != sees
    assert not torch.allclose(seen[2], seen[3], atol=1e-3)  # fresh anchors see them with either


def test_two_stages_apart_write_what_they_write_together():
    """Anchor features that are asked for, and those that are not, lead to the same tokens."""
    model, canvas = networks("adlm")["adlm"], Canvas.infilling(ROWS, MASK)
    together, apart = (FirstHitting().start(model, canvas, noise=Noise(3)) for _ in range(2))
    with model.inference_weights():
        apart.anchor_measure(apart.blank, 1.0, lambda logits: logits.amax(-1))
        for state in (together, apart):
            FirstHitting().fill(state)
    assert torch.equal(together.tokens, apart.tokens)


@pytest.mark.parametrize(
    ("sampler", "subject"),
    [
        (FirstHitting(stale_anchors=2), "stale_anchors"),
        (Ordered(order=AnchorConfidence()), "anchor confidence"),
        (Ordered(order=AnchorConfidence(), stale_anchors=2), "stale_anchors"),
        (Ordered(agreeing=True), "anchor confidence"),
    ],
    ids=repr,
)
def test_models_of_one_stage_are_refused_where_anchors_are_needed(sampler, subject):
    with raises(ConfigError, subject=subject):
        sampler.sample(networks("mdlm")["mdlm"], Canvas.blank(1, 4, MASK), noise=Noise(0))


def test_agreeing_needs_an_order_that_draws():
    with raises(ConfigError, subject="Ordered.agreeing"):
        Ordered(order=AnchorConfidence(), agreeing=True)
