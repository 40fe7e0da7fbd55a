from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.config import from_json, to_json
from adlm.errors import ConfigError, DataError
from adlm.models.fed import fed_features
from adlm.models.hand_over import Hidden
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.objective import CrossEntropy, Objective
from adlm.randomness import Noise
from adlm.types import Batch
from adlm_studies.reasoning.objective import ThoughtCrossEntropy, first_thought_column
from tests.errors import raises

V = 11
STACK = StackConfig(width=16, heads=2, layers=2, attention="causal", convolution=3)
NOISE = Noise(0)


def network(config):
    torch.manual_seed(0)
    model = config.build(Vocabulary(V, V - 1))
    with torch.no_grad():
        for parameter in model.parameters():  # fresh blocks do nothing
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


AR = network(OneStageConfig(STACK))


def rows(before=(0, 1, 3), thoughts=2, after=(3, 2, 1)):
    """Rows with so much padding before and after; the first thought of each has a target."""
    given, rest = max(before) + 3 + thoughts, max(after) + 4
    count, length = len(before), given + rest
    place = torch.arange(length)
    tokens = torch.randint(0, V - 1, (count, length), generator=torch.Generator().manual_seed(1))
    valid = (place >= torch.tensor(before)[:, None]) & (place < length - torch.tensor(after)[:, None])
    targets = torch.full((count, length), -1)
    targets[:, given - thoughts] = torch.arange(count)
    index = torch.arange(count)
    return Batch(tokens, valid, index, index, valid & (place < given), targets=targets)


def terms(objective, batch, model=AR):
    return objective(model, batch, progress=0.5, noise=NOISE)


def test_without_thoughts_it_is_plain_cross_entropy():
    batch = replace(rows(), targets=None)
    ours, plain = terms(ThoughtCrossEntropy(), batch), terms(CrossEntropy(), batch)
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


@settings(deadline=None, max_examples=10)
@given(st.floats(0, 10))
def test_the_reported_figure_does_not_move_with_the_anchor_weight_and_the_loss_does_by_the_targets_cost(weight):
    batch = rows()
    found = terms(ThoughtCrossEntropy(2, weight), batch)
    assert torch.allclose(found.nll_sum, terms(ThoughtCrossEntropy(2, 0.0), batch).nll_sum)
    final = fed_features(AR, batch.tokens, first_thought_column(batch, 2), 2, segments=batch.segments).final
    told = batch.targets >= 0
    cost = F.cross_entropy(AR.logits(final[told]), batch.targets[told], reduction="sum")
    assert torch.allclose(found.loss_sum - found.nll_sum, weight * cost, rtol=1e-4, atol=1e-4)
    assert found.tokens == batch.scored.sum()


def test_each_position_costs_what_the_sum_says_and_thoughts_change_it():
    batch, level = rows(), torch.zeros(3)
    fed = ThoughtCrossEntropy(2)
    nats = fed.nats(AR, batch, level, NOISE)
    assert torch.allclose(nats.sum(), terms(fed, batch).nll_sum)
    assert (nats[~batch.scored] == 0).all()
    assert not torch.allclose(nats.sum(), ThoughtCrossEntropy(0).nats(AR, batch, level, NOISE).sum())


@pytest.mark.parametrize(
    "config", [OneStageConfig(STACK), TwoStageConfig(STACK, 1, Hidden(), tied=True)], ids=["ar", "a2r"]
)
def test_padding_on_either_side_changes_nothing(config):
    model, batch = network(config), rows()
    together = ThoughtCrossEntropy(2).nats(model, batch, torch.zeros(3), NOISE)
    for row in range(3):
        kept = batch.valid[row]
        tokens, valid, fixed, targets = (
            part[row : row + 1, kept] for part in (batch.tokens, batch.valid, batch.frozen, batch.targets)
        )
        alone = Batch(tokens, valid, batch.index[:1], batch.sample_id[:1], fixed, targets=targets)
        nats = ThoughtCrossEntropy(2).nats(model, alone, torch.zeros(1), NOISE)
        assert torch.allclose(nats[0], together[row, kept], atol=1e-5)


def test_the_first_stage_of_two_has_a_term_of_its_own_that_grows_with_progress_and_is_not_reported():
    model, batch = network(TwoStageConfig(STACK, 1, Hidden())), rows()
    plain, anchored = ThoughtCrossEntropy(2), ThoughtCrossEntropy(2, gamma=0.1)
    assert (plain.trains_anchor, anchored.trains_anchor) == (False, True)

    def extra(progress):
        with_it, without = (each(model, batch, progress=progress, noise=NOISE) for each in (anchored, plain))
        assert torch.equal(with_it.nll_sum, without.nll_sum)
        return with_it.loss_sum - without.loss_sum

    anchor = fed_features(model, batch.tokens, first_thought_column(batch, 2), 2, segments=batch.segments).anchor
    chosen = anchored.rule.mark(batch) & batch.scored
    cost = F.cross_entropy(model.anchor_logits(anchor[chosen]), batch.tokens[chosen], reduction="sum")
    assert torch.allclose(extra(1.0), 0.1 * cost, rtol=1e-3)
    assert torch.allclose(extra(0.05), 0.05 * cost, rtol=1e-3)
    with raises(ConfigError, subject="gamma"):
        terms(anchored, batch)


def test_what_a_thought_is_to_predict_teaches_what_was_read_before_it():
    batch = rows()
    only = replace(batch, valid=batch.frozen)  # nothing left to write
    AR.zero_grad()
    found = terms(ThoughtCrossEntropy(2), only)
    assert (found.tokens, found.nll_sum) == (0, 0)
    found.loss_sum.backward()
    assert AR.embedding.tokens.weight.grad[batch.tokens[0, 0]].abs().sum() > 0


def test_a_model_that_sees_both_sides_is_refused():
    model = network(OneStageConfig(replace(STACK, attention="full")))
    with raises(ConfigError, subject="network"):
        terms(ThoughtCrossEntropy(2), rows(), model)


def test_rows_whose_thoughts_are_not_aligned_are_refused():
    batch = rows()
    moved = replace(batch, frozen=batch.frozen & (torch.arange(batch.tokens.shape[1]) < torch.tensor([[5], [9], [9]])))
    with raises(DataError, subject="columns"):
        terms(ThoughtCrossEntropy(2), moved)
    with raises(DataError, subject="frozen"):
        first_thought_column(replace(batch, frozen=None), 2)
    with raises(DataError, subject="columns"):
        first_thought_column(batch, 8)


@pytest.mark.parametrize("wrong", [{"fed": -1}, {"anchor_weight": -0.1}, {"anchor_weight": float("nan")}], ids=str)
def test_settings_below_zero_are_refused(wrong):
    with raises(ConfigError, subject=next(iter(wrong))):
        ThoughtCrossEntropy(**wrong)


def test_it_comes_back_from_json():
    objective = ThoughtCrossEntropy(3, 0.5)
    assert from_json(Objective, to_json(objective)) == objective
