"""Writing from left to right over a cache: the tokens of the plain loop, in fewer and smaller calls."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ConfigError
from adlm.models.hand_over import Hidden
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.randomness import Noise
from adlm.samplers import Canvas, Forced, LeftToRight, RepetitionPenalty, TopK
from tests.errors import raises

MASK, STOP = 6, 0
STACK = StackConfig(width=16, heads=2, layers=2, attention="causal", convolution=3)
TIMED = StackConfig(width=16, heads=2, layers=1, attention="causal", condition=8, timed=True)


def built(config, vocabulary=None):
    model = config.build(vocabulary or Vocabulary(7, MASK))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model.eval()


MODELS = {
    "AR": built(OneStageConfig(STACK)),
    "timed AR": built(OneStageConfig(TIMED)),
    "A2R": built(TwoStageConfig(STACK, 1)),
    "A2R, hidden": built(TwoStageConfig(STACK, 1, Hidden())),
}
# Prompts of several lengths, a suffix, a frozen token between blanks, nothing and everything given.
ROWS = [
    [1, 2, 3, 6, 6, 6, 6, 6],
    [1, 6, 6, 6, 6, 6, 6, 6],
    [4, 3, 2, 6, 6, 6, 1, 5],
    [6, 6, 2, 6, 4, 6, 6, 6],
    [6, 6, 6, 6, 6, 6, 6, 6],
    [1, 2, 3, 4, 5, 4, 3, 2],
]


def rows_of(canvas, chosen):
    return Canvas(canvas.tokens[chosen], canvas.frozen[chosen], canvas.sample_ids[chosen])


def plain(model, canvas, noise, sampler):
    """Without a cache: the whole row again for every token."""
    length = canvas.tokens.shape[1]
    with model.inference_weights():
        state = sampler.start(model, canvas, noise=noise)
        for position in range(length):
            state.look(slice(0, position + 1))
            state.reveal(state.blank & (torch.arange(length) == position), 0.0)
        return state.sample()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_the_cache_does_not_change_a_token(name, seed):
    canvas = Canvas.infilling(ROWS, MASK)
    for sampler in (LeftToRight(), LeftToRight((RepetitionPenalty(1.5), TopK(3), Forced(5, 2)))):
        expected = plain(MODELS[name], canvas, Noise(seed), sampler)
        found = sampler.sample(MODELS[name], canvas, noise=Noise(seed))
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.equal(found.tokens[canvas.frozen], canvas.tokens[canvas.frozen])
        assert MASK not in found.tokens


@settings(max_examples=20, deadline=None)
@given(
    frozen=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4),
    name=st.sampled_from(["AR", "A2R"]),
)
def test_any_canvas_is_filled_as_by_the_plain_loop(frozen, name):
    canvas = Canvas.infilling(
        [[position % 6 if given else MASK for position, given in enumerate(r)] for r in frozen], MASK
    )
    expected = plain(MODELS[name], canvas, Noise(7), LeftToRight())
    assert torch.equal(LeftToRight().sample(MODELS[name], canvas, noise=Noise(7)).tokens, expected.tokens)


def stopped(canvas, tokens):
    """Rows as they are after their first written stop token is noticed: blanks behind it repeat it."""
    for row, frozen in zip(tokens, canvas.frozen, strict=True):
        written = ((row == STOP) & ~frozen).nonzero()
        if len(written):
            behind = torch.arange(len(row)) >= written[0]
            row[behind & ~frozen] = STOP
    return tokens


@pytest.mark.parametrize("name", ["AR", "A2R"])
def test_a_row_that_wrote_the_stop_token_repeats_it_and_leaves_the_others_alone(name):
    rows = [[STOP, *row[1:]] if row[0] == 1 else row for row in ROWS]  # a given stop token ends nothing
    canvas = Canvas.infilling(rows * 3, MASK)
    free = LeftToRight().sample(MODELS[name], canvas, noise=Noise(1))
    found = LeftToRight().sample(MODELS[name], canvas, noise=Noise(1), stop=STOP)
    expected = stopped(canvas, free.tokens.clone())
    assert not torch.equal(expected, free.tokens)
    assert torch.equal(found.tokens, expected)
    assert found.network_calls < free.network_calls


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_is_the_same_alone_and_in_a_batch(name):
    canvas = Canvas.infilling(ROWS, MASK)
    whole = LeftToRight().sample(MODELS[name], canvas, noise=Noise(3), stop=STOP).tokens
    for row in range(len(ROWS)):
        alone = LeftToRight().sample(MODELS[name], rows_of(canvas, [row]), noise=Noise(3), stop=STOP)
        assert torch.equal(alone.tokens, whole[row : row + 1])


def calls(monkeypatch, model):
    """(rows, tokens read) of each call, and the number of rows of logits, as they happen."""
    read, logits = [], []
    extend, head = model.extend, model.logits
    monkeypatch.setattr(model, "extend", lambda t, *a, **k: read.append(tuple(t.shape)) or extend(t, *a, **k))
    monkeypatch.setattr(model, "logits", lambda final: logits.append(len(final)) or head(final))
    return read, logits


@pytest.mark.parametrize(("name", "anchors"), [("AR", 0), ("A2R", 1)])
def test_what_all_rows_have_is_read_at_once_and_nothing_behind_the_last_blank(name, anchors, monkeypatch):
    canvas = Canvas.infilling([[1, 2, 3, 6, 6, 1, 1, 6, 2], [2, 2, 6, 6, 6, 1, 1, 3, 3], [1] * 9], MASK)
    read, logits = calls(monkeypatch, MODELS[name])
    found = LeftToRight().sample(MODELS[name], canvas, noise=Noise(0))
    # The second row has no blank behind place 4 and leaves; the third never takes part; place 8 is never predicted.
    assert read == [(2, 2), (2, 1), (2, 1), (1, 3)]
    assert logits == [1, 2, 2, 1]
    assert found.network_calls == 7
    assert found.anchor_calls == 7 * anchors


def test_a_row_costs_one_call_a_token_until_it_ends(monkeypatch):
    canvas = Canvas.blank(40, 8, MASK)
    read, _ = calls(monkeypatch, MODELS["AR"])
    found = LeftToRight().sample(MODELS["AR"], canvas, noise=Noise(2), stop=STOP)
    ends = [row.index(STOP) + 1 if STOP in row else 8 for row in found.tokens.tolist()]
    assert found.network_calls == sum(ends) == sum(rows for rows, _ in read)
    assert len(set(ends)) > 3


def test_a_full_canvas_needs_no_call():
    found = LeftToRight().sample(MODELS["A2R"], Canvas.infilling([[1, 2, 3]], MASK), noise=Noise(0))
    assert found.tokens.tolist() == [[1, 2, 3]]
    assert found.network_calls == found.anchor_calls == 0


def test_watchers_see_every_place_and_every_blank_filled_once():
    canvas = Canvas.infilling(ROWS, MASK)
    views = []
    LeftToRight().sample(MODELS["AR"], canvas, noise=Noise(5), on_step=views.append, stop=STOP)
    assert [(view.step, view.steps) for view in views] == [(position, 8) for position in range(8)]
    assert torch.equal(torch.stack([view.fresh for view in views]).sum(0), (~canvas.frozen).long())
    assert not any(view.remasked.any() for view in views)


@pytest.mark.parametrize("config", [OneStageConfig(STACK), TwoStageConfig(STACK, 1)], ids=["AR", "A2R"])
def test_samples_have_the_law_of_the_model(config):
    """Three tokens of three kinds: every text's frequency against its exact probability."""
    model = built(config, Vocabulary(4, 3))
    texts = torch.tensor(list(itertools.product(range(3), repeat=3)))
    with torch.no_grad():
        final = model.features(texts).final
        each = model.logits(final.flatten(0, 1)).view(27, 3, 4).log_softmax(-1)
    p = each.gather(-1, texts[..., None]).sum((1, 2)).exp().double()
    assert p.sum().item() == pytest.approx(1, abs=1e-5)
    drawn = LeftToRight().sample(model, Canvas.blank(20_000, 3, 3), noise=Noise(6)).tokens
    counts = Counter(map(tuple, drawn.tolist()))
    found = torch.tensor([counts[tuple(text)] for text in texts.tolist()])
    expected = 20_000 * p
    assert expected.min() > 5
    limit = 26 * (1 - 2 / (9 * 26) + 4.3 * math.sqrt(2 / (9 * 26))) ** 3  # above this with probability about 1e-5
    assert ((found - expected) ** 2 / expected).sum() < limit


def test_learned_positions_end_where_they_end():
    model = built(OneStageConfig(STACK, positions=4))
    assert LeftToRight().sample(model, Canvas.blank(1, 4, MASK), noise=Noise(0)).tokens.shape == (1, 4)
    with raises(ConfigError, subject="positions"):
        LeftToRight().sample(model, Canvas.blank(1, 5, MASK), noise=Noise(0))
