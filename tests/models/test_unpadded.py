from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adlm.models import unpadded
from adlm.models.hand_over import Hidden
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.models.unpadded import plan_for

STACK = StackConfig(width=16, heads=2, layers=2, convolution=3)
CONFIGS = {
    "mdlm": OneStageConfig(STACK, positions=12),
    "ar": OneStageConfig(StackConfig(width=16, heads=2, layers=2, attention="causal")),
    "adlm": TwoStageConfig(STACK, 1),
    "blocks": OneStageConfig(replace(STACK, attention="block"), positions=12, block_size=2),
    "shifted blocks": OneStageConfig(replace(STACK, attention="block"), block_size=3, shift=True),
    "anchored blocks": TwoStageConfig(replace(STACK, attention="block"), 1, block_size=2, shift=True),
    "towers": TwoStageConfig(replace(STACK, attention="causal"), 1, Hidden(), block_size=2, denoiser_attention="block"),
}


def built(config):
    model = config.build(Vocabulary(19, 18)).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def segments_of(lengths, starts, length, documents):
    """Rows with a run of text from `start`, cut into two documents where asked."""
    rows = torch.full((len(lengths), length), -1)
    for row, (count, start) in enumerate(zip(lengths, starts, strict=True)):
        start = min(start, length - count)
        rows[row, start : start + count] = 0
        if documents and count > 2:
            rows[row, start + count // 2 : start + count] = 1
    return rows


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("documents", [False, True])
def test_features_and_gradients_are_those_of_the_padded_rows(config, documents, monkeypatch):
    model = built(CONFIGS[config])
    segments = segments_of([3, 12, 0, 5, 1, 4], [0, 0, 0, 7, 3, 2], 12, documents)
    tokens = torch.randint(0, 18, segments.shape, generator=torch.Generator().manual_seed(1))
    text = segments >= 0
    output_mask = text & (torch.rand(text.shape, generator=torch.Generator().manual_seed(2)) < 0.5)
    results = []
    for fraction in (0.0, 0.99):
        monkeypatch.setattr(unpadded, "WORTHWHILE", fraction)
        assert (plan_for(segments) is None) == (fraction == 0)
        model.zero_grad()
        whole = model.features(tokens, segments=segments)
        part = model.features(tokens, segments=segments, output_mask=output_mask)
        assert torch.allclose(part.final, whole.final[output_mask], atol=1e-6)
        anchor = part.anchor[text] if part.anchor is not None else torch.zeros(1)
        (part.final.square().sum() + anchor.square().sum()).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        results.append([whole.final[text], part.final, anchor, *gradients])
    for padded, packed in zip(*results, strict=True):
        assert torch.allclose(padded, packed, rtol=1e-5, atol=1e-5)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(9, 12), st.booleans())
def test_every_token_has_a_place_of_its_own_beside_its_own_text(lengths, length, documents):
    segments = segments_of(lengths, [i % 5 for i in range(len(lengths))], length, documents)
    plan = plan_for(segments)
    if plan is None:
        return
    assert len(plan.segments) < len(segments)
    assert plan.new.unique().numel() == plan.old.numel() == (segments >= 0).sum()
    rows = plan.old // length
    pairs = set(zip(rows.tolist(), segments.flatten()[plan.old].tolist(), strict=True))
    numbers = plan.segments.flatten()[plan.new]
    assert numbers.unique().numel() == len(pairs)  # no two documents became one
    assert torch.equal(torch.diff(plan.new)[torch.diff(rows) == 0], torch.ones((torch.diff(rows) == 0).sum()).long())
    assert (plan.segments.flatten()[plan.new] >= 0).all()
    assert (plan.segments >= 0).sum() == plan.old.numel()


def test_full_rows_and_texts_with_gaps_stay_as_they_are():
    assert plan_for(torch.zeros(4, 8, dtype=torch.long)) is None
    assert plan_for(torch.tensor([[0, -1, 0, -1], [0, -1, -1, -1]])) is None
