import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ConfigError
from adlm.randomness import Noise
from adlm.samplers import (
    Above,
    AnyOrder,
    Blocks,
    Canvas,
    Confidence,
    EntropyBound,
    InSteps,
    LeastEntropy,
    Margin,
    Ordered,
    PerStep,
    Temperature,
    orders,
)
from adlm.samplers.orders import entropy
from adlm.samplers.paces import Ranked
from tests.conftest import TableModel
from tests.errors import raises
from tests.samplers.processes import MASK, VOCABULARY, assert_drawn_from, inconsistent, networks, number, states

# Three positions, whatever stands around them. Entropies 0.69, 0.95, 0.74; margins 0, 0.4, 0.11.
P = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.6, 0.2, 0.2, 0.0], [0.55, 0.44, 0.01, 0.0]], dtype=torch.float64)


def fixed():
    return TableModel(VOCABULARY, lambda tokens: P.log().expand(len(tokens), -1, -1))


def reveals(sampler, model, canvas, seed=0):
    """What each step revealed: [steps, B, L] bool."""
    views = []
    sample = sampler.sample(model, canvas, noise=Noise(seed), on_step=lambda view: views.append(view.fresh.clone()))
    assert MASK not in sample.tokens
    return torch.stack(views)


def order_of(sampler, seed=0):
    return [fresh[0].nonzero()[:, 0].tolist() for fresh in reveals(sampler, fixed(), Canvas.blank(1, 3, MASK), seed)]


@pytest.mark.parametrize("seed", range(3))
def test_positions_come_by_entropy_and_by_margin(seed):
    assert order_of(Ordered(order=LeastEntropy(), pace=PerStep(1)), seed) == [[0], [2], [1]]
    assert order_of(Ordered(order=Margin(), pace=PerStep(1)), seed) == [[1], [2], [0]]
    assert order_of(Ordered(order=LeastEntropy(), pace=PerStep(2)), seed) == [[0, 2], [1]]
    # Filters decide what is drawn and not where: greedily too, the surest place comes first.
    assert order_of(Ordered((Temperature(0.0),), order=Margin(), pace=PerStep(1)), seed) == [[1], [2], [0]]
    assert order_of(Ordered((Temperature(0.0),), order=Confidence(), pace=PerStep(1)), seed) == [[1], [2], [0]]


def test_positions_come_by_the_probability_of_what_was_drawn_there():
    """The law of drawing everywhere and keeping the surest draw, by enumeration."""
    process = inconsistent()
    step = torch.zeros(64, 64, dtype=torch.float64)
    for x, state in enumerate(states(3).tolist()):
        blanks = [position for position in range(3) if state[position] == MASK]
        for tokens in itertools.product(range(3), repeat=len(blanks)):
            sureness = [process.p[x, position, token].item() for position, token in zip(blanks, tokens, strict=True)]
            after = list(state)
            if blanks:
                best = sureness.index(max(sureness))
                after[blanks[best]] = tokens[best]
            step[x, number(torch.tensor(after))] += math.prod(sureness)
    sample = Ordered(order=Confidence(), pace=PerStep(1)).sample(
        process.model, Canvas.blank(4000, 3, MASK), noise=Noise(0)
    )
    assert_drawn_from(process.law(step, step, step), number(sample.tokens))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 12))
def test_in_steps_takes_equal_parts_of_every_row_the_larger_first(blanks, steps):
    canvas = Canvas.infilling([[*[1] * (9 - n), *[MASK] * n] for n in blanks], MASK)
    if not any(blanks):
        return
    model = TableModel(VOCABULARY, lambda tokens: torch.zeros(*tokens.shape, 4))
    counts = reveals(Ordered(order=AnyOrder(), pace=InSteps(steps)), model, canvas).sum(-1)
    assert len(counts) == min(steps, max(blanks))
    for row, n in enumerate(blanks):
        parts = [n // steps + (step < n % steps) for step in range(steps)]
        assert counts[:, row].tolist() == parts[: len(counts)]
        assert sum(parts) == n


ranks = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def ranked(scores, entropies, width=10):
    """One row, and a second with nothing left."""
    score, entropy = torch.full((2, width), -torch.inf), torch.full((2, width), torch.inf)
    score[0, : len(scores)], entropy[0, : len(scores)] = torch.tensor(scores), torch.tensor(entropies)
    left = torch.tensor([len(scores), 0])
    return Ranked(score, entropy, left, left, 0)


@settings(max_examples=60, deadline=None)
@given(ranks, st.floats(0, 1))
def test_above_takes_all_with_such_a_score(scores, least):
    scores = sorted(torch.tensor(scores).tolist(), reverse=True)
    assert Above(least).count(ranked(scores, scores)).tolist() == [
        sum(score >= torch.tensor(least).item() for score in scores),
        0,
    ]


@settings(max_examples=60, deadline=None)
@given(ranks, st.floats(0, 3))
def test_an_entropy_bound_takes_as_many_as_a_plain_loop_does(entropies, gamma):
    taken = 0
    for n in range(1, len(entropies) + 1):
        cost = math.fsum(entropies[:n]) - max(entropies[:n])
        if abs(cost - gamma) < 1e-5:
            return  # rounding decides
        if cost > gamma:
            break
        taken = n
    assert taken >= 1
    assert EntropyBound(gamma).count(ranked([0.5] * len(entropies), entropies)).tolist() == [taken, 0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-60, 60) | st.just(-math.inf), min_size=1, max_size=6))
def test_entropies_are_those_of_the_distribution(logits):
    law = torch.tensor([[*logits, 0.0]], dtype=torch.float64)
    exact = torch.special.entr(law.softmax(-1)).sum(-1)
    assert torch.allclose(entropy(law), exact, atol=1e-12)
    assert torch.allclose(entropy(law.float()), exact.float(), atol=1e-5)


class Counted(EntropyBound):
    reads_entropy = False

    def count(self, view):
        assert view.entropy.isinf().all()
        return super().count(view)


def test_entropies_are_computed_for_paces_that_read_them_alone(monkeypatch):
    canvas, asked = Canvas.blank(2, 3, MASK), []
    monkeypatch.setattr(orders, "entropy", lambda logits: asked.append(len(logits)) or entropy(logits))
    Ordered(pace=PerStep(1)).sample(fixed(), canvas, noise=Noise(0))
    Ordered(pace=Counted(0.1)).sample(fixed(), canvas, noise=Noise(0))
    assert not asked
    Ordered(pace=EntropyBound(0.1)).sample(fixed(), canvas, noise=Noise(0))
    assert asked


def test_paces_are_kept_by_the_sampler():
    def surest(pace):
        return order_of(Ordered(order=LeastEntropy(), pace=pace))

    assert surest(Above(-0.7)) == [[0], [2], [1]]
    assert surest(Above(-0.75)) == [[0, 2], [1]]
    assert surest(Above(-1.0)) == [[0, 1, 2]]
    # 0.69 + 0.74 less 0.74 is 0.69; with 0.95 in place of the largest, 1.43.
    assert surest(EntropyBound(0.6)) == [[0], [2], [1]]
    assert surest(EntropyBound(0.7)) == [[0, 2], [1]]
    assert surest(EntropyBound(1.5)) == [[0, 1, 2]]


@pytest.mark.parametrize("pace", [Above(2.0), EntropyBound(0.0), InSteps(100), PerStep(1)], ids=repr)
@pytest.mark.parametrize("order", [Confidence(), Margin(), LeastEntropy(), AnyOrder()], ids=repr)
def test_every_step_reveals_something_in_every_row_that_has_blanks(order, pace):
    rows = [[MASK] * 3, [1, MASK, MASK], [1, 1, 1]]
    counts = reveals(Ordered(order=order, pace=pace), inconsistent().model, Canvas.infilling(rows, MASK)).sum(-1)
    assert counts.tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 0]]


def test_models_that_are_told_the_time_are_told_the_share_of_masks_they_see():
    model, told = networks("adlm-timed")["adlm-timed"], []
    features = model.features
    model.features = lambda tokens, t, **rest: told.append(t.tolist()) or features(tokens, t, **rest)
    rows = [[MASK] * 4, [1, 1, MASK, MASK]]
    Ordered(pace=PerStep(1)).sample(model, Canvas.infilling(rows, MASK), noise=Noise(0))
    fractions = [[1, 0.5], [0.75, 0.25], [0.5], [0.25]]
    assert all(pytest.approx(row, abs=2e-3) == step for row, step in zip(fractions, told, strict=True))
    told.clear()
    Blocks(inner=Ordered(pace=PerStep(1)), size=2).sample(model, Canvas.blank(1, 4, MASK), noise=Noise(0))
    assert [t for step in told for t in step] == pytest.approx([1, 0.75, 0.5, 0.25], abs=2e-3)


@pytest.mark.parametrize(
    ("make", "subject"),
    [
        (lambda: PerStep(0), "tokens_per_step"),
        (lambda: InSteps(0), "steps"),
        (lambda: EntropyBound(-1.0), "gamma"),
        (lambda: EntropyBound(math.nan), "gamma"),
        (lambda: Ordered(order=AnyOrder(), agreeing=True), "Ordered.agreeing"),
        (lambda: Ordered(stale_anchors=0), "stale_anchors"),
    ],
)
def test_orders_and_paces_that_mean_nothing_are_refused(make, subject):
    with raises(ConfigError, subject=subject):
        make()
