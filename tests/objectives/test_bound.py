import itertools
import math

import pytest
import torch

from adlm.anchors.rules import TypeRule
from adlm.diffusion.corruption import AnchoredMasking, CountMasking, UniformMasking
from adlm.diffusion.schedule import Cosine, LogLinear
from adlm.diffusion.times import Independent
from adlm.errors import ConfigError, OutOfRange
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.objectives.bound import enumerated_nats, mean_of, position_nats
from adlm.objectives.d3pm import D3pm
from adlm.objectives.nelbo import Nelbo
from adlm.objectives.score_entropy import ScoreEntropy
from adlm.randomness import Noise
from adlm.types import Batch, Features
from tests.conftest import TableModel, batch_of
from tests.errors import raises

LENGTH, MASK = 3, 3
VOCABULARY = Vocabulary(4, MASK)


def hashed_table(tokens):
    """Some fixed conditional law for every state of a row of three: not consistent with any joint law."""
    state = (tokens * torch.tensor([1, 5, 25])).sum(-1)
    angles = torch.outer(state + 1, torch.arange(1, LENGTH * 4 + 1)).double()
    return (2 * angles.sin()).view(-1, LENGTH, 4)


MODEL = TableModel(VOCABULARY, hashed_table)


def exact_bound(row):
    """-log p averaged over all orders, plainly: each order's chain rule over every masked subset it passes."""
    total = 0.0
    for count in range(1, LENGTH + 1):
        subsets = list(itertools.combinations(range(LENGTH), count))
        for subset in subsets:
            x_t = torch.tensor([[MASK if i in subset else token for i, token in enumerate(row)]])
            log_p = MODEL.logits(MODEL.features(x_t).final[0]).log_softmax(-1)
            total -= sum(log_p[i, row[i]].item() for i in subset) / count / len(subsets)
    return total


def law_of_sampling(row):
    """p(row) when it is written in uniformly random order."""
    likelihood = 0.0
    for order in itertools.permutations(range(LENGTH)):
        x_t, probability = [MASK] * LENGTH, 1.0
        for position in order:
            logits = MODEL.logits(MODEL.features(torch.tensor([x_t])).final[0, position])
            probability *= logits.softmax(-1)[row[position]].item()
            x_t[position] = row[position]
        likelihood += probability / math.factorial(LENGTH)
    return likelihood


def test_enumeration_is_the_average_over_all_orders():
    for row in ([0, 1, 2], [2, 2, 0]):
        assert enumerated_nats(MODEL, batch_of([row])).sum().item() == pytest.approx(exact_bound(row), abs=1e-9)


def test_enumeration_of_given_and_padded_positions_costs_nothing():
    batch = batch_of([[0, 1, 2]] * 2, torch.tensor([[True, True, False]] * 2))
    batch = Batch(batch.tokens, batch.valid, batch.index, batch.sample_id, torch.tensor([[True, False, False]] * 2))
    nats = enumerated_nats(MODEL, batch)
    assert (nats[:, [0, 2]] == 0).all()
    log_p = MODEL.logits(MODEL.features(torch.tensor([[0, MASK, 2]])).final[0, 1]).log_softmax(-1)
    assert nats[:, 1].tolist() == pytest.approx([-log_p[1].item()] * 2)
    with raises(ConfigError, subject="tokens"):
        enumerated_nats(MODEL, batch_of(torch.zeros(1, 20, dtype=torch.long)))


EXACT = LogLinear(eps=0.0)
ESTIMATORS = [
    Nelbo(CountMasking()),
    Nelbo(UniformMasking(EXACT, first=0.0)),
    Nelbo(UniformMasking(Cosine(eps=0.0), first=0.0)),
    Nelbo(UniformMasking(EXACT, first=1e-4, importance=True, times=Independent())),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_every_estimator_converges_to_the_exact_any_order_average(estimator):
    for row in ([0, 1, 2], [2, 2, 0]):
        many = batch_of([row] * 6000)
        nats = position_nats(MODEL, many, draws=6, noise=Noise(0), objective=estimator)
        estimate = mean_of(nats.sum(-1), 6)
        assert estimate.mean == pytest.approx(exact_bound(row), abs=4.5 * estimate.error)
        assert estimate.error < 0.05
        exact = enumerated_nats(MODEL, batch_of([row]))[0]
        assert (nats.mean(0) - exact).abs().max() < 0.1


def test_mask_counts_vary_less_than_times_and_strata_less_than_neither():
    many = batch_of([[0, 1, 2]] * 4000)

    def error(objective, draws):
        return mean_of(position_nats(MODEL, many, draws=draws, noise=Noise(0), objective=objective).sum(-1), 0).error

    assert error(ESTIMATORS[0], 1) < error(ESTIMATORS[1], 1)
    assert error(ESTIMATORS[0], 6) < error(ESTIMATORS[0], 1) / math.sqrt(6)


def test_the_bound_lies_above_the_exact_likelihood():
    """The law of sampling in random order is the average of the orders' laws: Jensen puts the bound above it."""
    for row in itertools.product(range(3), repeat=LENGTH):
        assert exact_bound(row) >= -math.log(law_of_sampling(row)) - 1e-9


class ZeroIsAnchor(TypeRule):
    def types(self):
        return torch.tensor([True, False, False, False])


def law_of_anchored_sampling(power, steps=400):
    """p(row) of the reverse process in small steps: type v leaves the mask at rate p_v mu_v / t."""
    states = list(itertools.product(range(4), repeat=LENGTH))
    index = {state: i for i, state in enumerate(states)}
    mu = MODEL.logits(MODEL.features(torch.tensor(states)).final).softmax(-1).double()
    powers = torch.tensor([power, 1.0, 1.0])
    p = torch.zeros(len(states), dtype=torch.float64)
    p[index[(MASK,) * LENGTH]] = 1
    grid = torch.linspace(1, 0, steps + 1).double()
    for t, s in itertools.pairwise(grid):
        reveal = 1 - (s / t) ** powers  # (alpha_s - alpha_t) / (1 - alpha_t) with alpha = 1 - t^p
        after = torch.zeros_like(p)
        for i, state in enumerate(states):
            if p[i] == 0:
                continue
            options = []
            for position, token in enumerate(state):
                if token != MASK:
                    options.append([(token, 1.0)])
                    continue
                probabilities = (mu[i, position, :3] * reveal).tolist()
                options.append([*enumerate(probabilities), (MASK, 1 - sum(probabilities))])
            for choice in itertools.product(*options):
                after[index[tuple(token for token, _ in choice)]] += p[i] * math.prod(
                    probability for _, probability in choice
                )
        p = after
    return {state: p[i].item() for state, i in index.items()}


def test_the_bound_of_anchored_masking_lies_above_the_likelihood_of_its_own_reverse_process():
    law = law_of_anchored_sampling(3.0)
    assert sum(law.values()) == pytest.approx(1)
    objective = Nelbo(AnchoredMasking(ZeroIsAnchor(), power=3.0, first=0.0))
    gaps = []
    for row in itertools.product(range(3), repeat=LENGTH):
        nats = position_nats(MODEL, batch_of([row] * 4000), draws=8, noise=Noise(0), objective=objective).sum(-1)
        estimate = mean_of(nats, 8)
        gaps.append(estimate.mean + math.log(law[row]) + 4 * estimate.error)
    assert min(gaps) > 0


def independent_table(tokens):
    """Positions that know nothing of each other: then every bound is exact."""
    table = torch.tensor([[0.5, -1.0, 0.2, 9.0], [1.5, 0.3, -0.7, 9.0], [0.0, 2.0, 1.0, 9.0]]).double()
    return table.expand(len(tokens), LENGTH, 4)


@pytest.mark.parametrize("power", [1.0, 2.5])
def test_the_bound_of_anchored_masking_is_exact_where_positions_are_independent(power):
    """The network predicts p(x_0 | masked at t), which leans to types that vanish early; here it is the exact one."""
    law = independent_table(torch.zeros(1, 3))[0, :, :3].softmax(-1)
    powers = torch.tensor([power, 1.0, 1.0]).double()

    class Posterior(TableModel):
        def _features(self, tokens, t, segments, output_mask):
            weights = law[None] * t.double()[:, None, None] ** powers  # p(v) p(masked | v, t)
            return Features(torch.nn.functional.pad(weights.log(), (0, 1))[output_mask])

    objective = Nelbo(AnchoredMasking(ZeroIsAnchor(), power=power, first=0.0))
    model = Posterior(VOCABULARY, None)
    for row in ([0, 0, 0], [0, 1, 2], [2, 1, 1]):
        exact = -sum(law[position, token].log().item() for position, token in enumerate(row))
        nats = position_nats(model, batch_of([row] * 20_000), draws=8, noise=Noise(0), objective=objective).sum(-1)
        estimate = mean_of(nats, 8)
        assert estimate.mean == pytest.approx(exact, abs=4.5 * estimate.error)
        assert estimate.error < 0.02


def test_one_step_predicts_all_at_once_and_many_steps_are_continuous_time():
    row = [0, 1, 2]
    at_once = MODEL.logits(MODEL.features(torch.full((1, 3), MASK)).final[0]).log_softmax(-1)
    costs = {1: -sum(at_once[position, token].item() for position, token in enumerate(row)), 2000: exact_bound(row)}
    for steps, exact in costs.items():
        objective = Nelbo(UniformMasking(EXACT, steps=steps))
        nats = position_nats(MODEL, batch_of([row] * 8000), draws=8, noise=Noise(0), objective=objective).sum(-1)
        estimate = mean_of(nats, 8)
        assert estimate.mean == pytest.approx(exact, abs=5 * estimate.error + 1e-6)


def network(causal=False, **options):
    model = OneStageConfig(
        StackConfig(width=16, heads=2, layers=1, attention="causal" if causal else "full", **options)
    ).build(VOCABULARY)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


def test_d3pm_and_score_entropy_agree_with_the_nelbo_where_they_must():
    """A network that gives the mask no chance is SUBS: then D3PM of many steps is the continuous bound."""
    model = network()
    with torch.no_grad():
        model.head.bias[MASK] = -1e4
    many = batch_of([[0, 1, 2]] * 4000)
    exact = enumerated_nats(model, batch_of([[0, 1, 2]])).sum().item()
    objective = D3pm(UniformMasking(EXACT, steps=2000))
    d3pm = mean_of(position_nats(model, many, draws=8, noise=Noise(0), objective=objective).sum(-1), 8)
    assert d3pm.mean == pytest.approx(exact, abs=5 * d3pm.error)
    scores = position_nats(model, many, draws=8, noise=Noise(0), objective=ScoreEntropy(CountMasking())).sum(-1)
    assert scores.mean().item() > exact  # its scores are not normalised


def test_time_conditioned_models_have_one_bound_by_either_estimator():
    model = network(condition=8, timed=True)
    many = batch_of([[0, 1, 2]] * 8000)
    results = [
        mean_of(position_nats(model, many, draws=4, noise=Noise(0), objective=o).sum(-1), 4) for o in ESTIMATORS[:2]
    ]
    assert results[0].mean == pytest.approx(results[1].mean, abs=4 * (results[0].error + results[1].error))


def test_a_bound_from_no_draws_is_refused():
    with raises(OutOfRange, subject="draws", value=0):
        position_nats(MODEL, batch_of([[0, 1, 2]]), draws=0, noise=Noise(0))


def test_a_left_to_right_model_is_scored_exactly():
    model = network(causal=True)
    first, second = (position_nats(model, batch_of([[0, 1, 2]]), draws=1, noise=Noise(seed)) for seed in (0, 1))
    assert torch.equal(first, second)
    assert first.shape == (1, 3)
