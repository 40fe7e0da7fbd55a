"""Wrong anchors change what the anchor term says, and nothing else."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.config import from_json, to_json
from adlm.diffusion.corruption import CountMasking
from adlm.errors import OutOfRange
from adlm.models.hand_over import Continued
from adlm.models.network import Vocabulary
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStage, TwoStageConfig
from adlm.objectives.degraded import DegradedAnelbo, spoilt
from adlm.objectives.nelbo import Anelbo
from adlm.objectives.objective import LossContext, Objective
from adlm.randomness import Noise
from adlm.types import Batch
from tests.conftest import batch_of
from tests.errors import raises

VOCABULARY = Vocabulary(11, 4)
NOISE = Noise(3)


def model_of() -> TwoStage:
    torch.manual_seed(0)
    model = TwoStageConfig(StackConfig(16, 2, 1), 1, Continued(), tied=True).build(VOCABULARY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def some_rows(seed: int = 0, rows: int = 6) -> Batch:
    tokens = torch.randint(0, 10, (rows, 12), generator=torch.Generator().manual_seed(seed))
    return batch_of(tokens + (tokens >= VOCABULARY.mask_id))


@pytest.mark.parametrize("masked_only", [True, False])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_with_no_wrong_anchors_loss_and_gradients_are_anelbos_to_the_bit(masked_only, fraction):
    fields = {"corruption": CountMasking(), "gamma": 0.3, "masked_only": masked_only, "fraction": fraction}
    found = []
    for objective in (Anelbo(**fields), DegradedAnelbo(**fields, wrong=0.0)):
        model = model_of()
        terms = objective(model, some_rows(), progress=1.0, noise=NOISE)
        terms.loss_sum.backward()
        found.append([terms.loss_sum, terms.nll_sum, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_reported_bound_does_not_move_with_wrong_anchors():
    plain, wrong = (
        DegradedAnelbo(gamma=0.3, wrong=q)(model_of(), some_rows(), progress=1.0, noise=NOISE) for q in (0.0, 1.0)
    )
    assert torch.equal(plain.nll_sum, wrong.nll_sum)
    assert plain.loss_sum != wrong.loss_sum


def test_with_all_anchors_wrong_the_anchor_term_knows_nothing_of_the_text():
    """Another text with as many anchors gives the same term, where the first stage sees the same."""
    model, batch = model_of(), some_rows()
    other = replace(batch, tokens=(batch.tokens + 5) % 11)
    corrupted = CountMasking()(batch, VOCABULARY.mask_id, NOISE)
    features = model.features(corrupted.x_t)
    context = LossContext(model, batch, corrupted, 1.0, NOISE, features)
    for wrong, same in ((1.0, True), (0.5, False)):
        objective = DegradedAnelbo(gamma=0.3, wrong=wrong)
        terms = [objective.extra(replace(context, batch=each)) for each in (batch, other)]
        assert torch.equal(*terms) is same


@settings(max_examples=25, deadline=None)
@given(probability=st.sampled_from([0.0, 0.25, 0.5, 1.0]), rows=st.integers(1, 5), seed=st.integers(0, 99))
def test_what_is_wrong_belongs_to_the_row_and_not_to_its_batch(probability, rows, seed):
    batch = some_rows(seed)
    whole = spoilt(batch, probability, VOCABULARY, NOISE)
    parts = torch.cat([spoilt(part, probability, VOCABULARY, NOISE) for part in batch.split(rows)])
    assert torch.equal(whole, parts)
    assert (whole != VOCABULARY.mask_id).all()
    assert 0 <= whole.min() <= whole.max() < VOCABULARY.size


def test_as_many_tokens_are_wrong_as_asked():
    batch = some_rows(rows=2000)
    changed = (spoilt(batch, 0.5, VOCABULARY, NOISE) != batch.tokens).float().mean().item()
    assert changed == pytest.approx(0.5 * 9 / 10, abs=0.02)  # one in ten of those drawn is the right one


def test_a_chance_beyond_one_is_refused_and_a_stored_objective_comes_back():
    with raises(OutOfRange, subject="wrong"):
        DegradedAnelbo(wrong=1.5)
    objective = DegradedAnelbo(wrong=0.25)
    assert from_json(Objective, to_json(objective)) == objective
