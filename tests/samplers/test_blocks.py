import pytest
import torch

from adlm.errors import ConfigError
from adlm.randomness import Noise
from adlm.samplers import (
    Ancestral,
    AnchorConfidence,
    Blocks,
    Canvas,
    Cap,
    FirstHitting,
    InSteps,
    Ordered,
    Remasking,
    Temperature,
)
from tests.conftest import TableModel
from tests.errors import raises
from tests.samplers.processes import (
    MASK,
    VOCABULARY,
    assert_drawn_from,
    inconsistent,
    networks,
    number,
    states,
)

SAMPLES = 4000


@pytest.mark.parametrize(
    "inner",
    [
        Ancestral(steps=4),
        Remasking(steps=4, rule=Cap(0.2)),
        FirstHitting(),
        FirstHitting(stale_anchors=3),
        Ordered(pace=InSteps(3)),
        Ordered(order=AnchorConfidence(), pace=InSteps(3), stale_anchors=2),
    ],
    ids=repr,
)
def test_one_block_is_its_inner_sampler_token_for_token(inner):
    model = networks("adlm")["adlm"]
    canvas = Canvas.infilling([[MASK] * 9, [0, 1, *[MASK] * 4, 2, MASK, MASK]], MASK)
    plain = inner.sample(model, canvas, noise=Noise(0))
    for size in (9, 40):
        again = Blocks(inner=inner, size=size).sample(model, canvas, noise=Noise(0))
        assert torch.equal(again.tokens, plain.tokens)
        assert again[1:] == plain[1:]


def at(process, *positions):
    """One for these positions of every state."""
    probabilities = torch.zeros(4**process.length, process.length, dtype=torch.float64)
    probabilities[:, list(positions)] = 1
    return probabilities


@pytest.mark.parametrize("inner", [Ancestral(steps=3), FirstHitting(), Ordered()], ids=repr)
def test_blocks_of_one_token_write_from_left_to_right(inner):
    process = inconsistent()
    law = process.law(*(process.step(at(process, position)) for position in range(3)))
    sample = Blocks(inner=inner, size=1).sample(process.model, Canvas.blank(SAMPLES, 3, MASK), noise=Noise(1))
    assert_drawn_from(law, number(sample.tokens))
    assert sample.network_calls == 3 * SAMPLES


def test_blocks_of_two_tokens_have_their_enumerated_law():
    process = inconsistent()
    law = process.law(process.step(at(process, 0, 1)), process.step(at(process, 2)))
    sampler = Blocks(inner=Ancestral(steps=1), size=2)
    sample = sampler.sample(process.model, Canvas.blank(SAMPLES, 3, MASK), noise=Noise(2))
    assert_drawn_from(law, number(sample.tokens))


def test_a_window_shows_the_network_what_ends_with_the_block_and_no_more():
    """Four positions seen two at a time: after the first pair, each token follows its predecessor alone."""
    pair = inconsistent(2)
    seen = []
    model = TableModel(VOCABULARY, lambda tokens: seen.append(tokens.shape[1]) or pair.logits[number(tokens)])
    sampler = Blocks(inner=Ancestral(steps=2), size=1, window=2)
    tokens = sampler.sample(model, Canvas.blank(SAMPLES, 4, MASK), noise=Noise(3)).tokens
    assert set(seen) == {2}

    full = states(4)
    blank, after = torch.full_like(full[:, :1], MASK), pair.p
    law = after[number(torch.cat([blank, blank], 1)), 0].gather(-1, full[:, :1].clamp_max(2))[:, 0]
    for position in range(1, 4):
        context = number(torch.cat([full[:, position - 1 : position], blank], 1))
        law = law * after[context, 1].gather(-1, full[:, position : position + 1].clamp_max(2))[:, 0]
    law[(full == MASK).any(-1)] = 0
    assert_drawn_from(law, number(tokens))


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(
    "inner",
    [FirstHitting(), Ordered(pace=InSteps(2)), FirstHitting(stale_anchors=3)],
    ids=lambda inner: str(inner)[:22],
)
def test_rows_with_other_prompts_do_not_move_a_rows_blocks(inner, window):
    model = networks("adlm-hidden")["adlm-hidden"]
    rows = [[MASK] * 11, [1, 2, 0, *[MASK] * 8], [0, *[MASK] * 5, 2, *[MASK] * 4], [*[2] * 9, MASK, MASK], [1] * 11]
    canvas = Canvas.infilling(rows, MASK)
    sampler = Blocks(inner=inner, size=3, window=window)
    whole = sampler.sample(model, canvas, noise=Noise(4)).tokens
    assert MASK not in whole
    for i in range(len(rows)):
        alone = Canvas(canvas.tokens[i : i + 1], canvas.frozen[i : i + 1], canvas.sample_ids[i : i + 1])
        assert torch.equal(sampler.sample(model, alone, noise=Noise(4)).tokens[0], whole[i])


def test_a_block_sees_nothing_of_the_blanks_behind_it_filled():
    order = []
    process = inconsistent()
    Blocks(inner=FirstHitting(), size=2).sample(
        process.model,
        Canvas.infilling([[MASK, MASK, MASK], [1, MASK, MASK]], MASK),
        noise=Noise(5),
        on_step=lambda view: order.append((view.step, view.steps, view.fresh.nonzero().tolist())),
    )
    positions = {row: [position for *_, fresh in order for r, position in fresh if r == row] for row in (0, 1)}
    assert sorted(positions[0][:2]) == [0, 1]
    assert positions[0][2] == 2
    assert sorted(positions[1]) == [1, 2]
    assert [step for step, *_ in order] == list(range(len(order)))
    assert {steps for _, steps, _ in order} == {None}


def test_a_row_that_has_ended_is_not_continued():
    stop = 0
    table = TableModel(VOCABULARY, lambda tokens: torch.zeros(*tokens.shape, 4))
    sampler = Blocks(inner=Ancestral(steps=1), size=2)
    canvas = Canvas.continuing([[stop]] * 50, 9, MASK)
    sample = sampler.sample(table, canvas, noise=Noise(6), stop=stop)
    calls = 0
    for row in sample.tokens.tolist():
        blocks = [row[start : start + 2] for start in range(1, 9, 2)]
        ends = [i for i, block in enumerate(blocks) if stop in block]
        last = ends[0] if ends else 3
        calls += last + 1
        assert all(block == [stop, stop] for block in blocks[last + 1 :])
    assert sample.network_calls == calls
    assert len({tuple(row) for row in sample.tokens.tolist()}) > 10


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        ({"size": -1}, "block_size"),
        ({"size": 4, "window": 3}, "window"),
        ({"inner": Blocks()}, "Blocks.inner"),
        ({"filters": (Temperature(0.5),)}, "Blocks.filters"),
        ({"stale_anchors": 2}, "Blocks.stale_anchors"),
    ],
    ids=repr,
)
def test_blocks_that_mean_nothing_are_refused(arguments, subject):
    with raises(ConfigError, subject=subject):
        Blocks(**arguments)
