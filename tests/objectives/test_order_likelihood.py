"""The likelihood of a decoder that reveals one token per pass: exact, so it sums to 1 and is what the sampler draws."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from adlm.diffusion.blocks import BlockMasking
from adlm.errors import ConfigError
from adlm.models.hand_over import Hidden
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.bound import enumerated_nats, position_nats
from adlm.objectives.likelihood import estimator
from adlm.objectives.order_likelihood import ORDERS
from adlm.randomness import Noise
from adlm.samplers.blocks import Blocks
from adlm.samplers.canvas import Canvas
from adlm.samplers.ordered import Ordered
from adlm.samplers.orders import AnchorConfidence, LeastEntropy, Margin
from adlm.samplers.paces import PerStep
from adlm.types import Batch
from tests.errors import raises

VOCABULARY = Vocabulary(4, 3)  # two tokens besides the end token, and the mask
LENGTH = 4
FULL = StackConfig(width=16, heads=2, layers=2)
BLOCK = replace(FULL, attention="block")
NETWORKS = {
    "whole rows": OneStageConfig(FULL),
    "whole rows, anchored": TwoStageConfig(FULL, 1, Hidden()),
    "blocks": OneStageConfig(BLOCK, block_size=2, shift=True),
    "blocks, anchored": TwoStageConfig(BLOCK, 1, Hidden(), block_size=2, shift=True),
}
CASES = [
    (name, order) for name in NETWORKS for order in ORDERS if order != "anchors" or NETWORKS[name].variant().stacks[1:]
]


def built(network, std=0.6):
    torch.manual_seed(0)
    model = network.build(VOCABULARY).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


def every_row():
    tokens = torch.tensor(list(product(range(3), repeat=LENGTH)))
    numbers = torch.arange(len(tokens))
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), numbers, numbers)


def nats(model, batch, order):
    objective = estimator(f"order:{order}", model)
    return position_nats(model, batch, draws=8, noise=Noise(0), objective=objective).double().sum(-1)


@pytest.mark.parametrize(("network", "order"), CASES)
def test_the_probabilities_of_all_texts_sum_to_one(network, order):
    total = torch.exp(-nats(built(NETWORKS[network]), every_row(), order)).sum()
    assert abs(total.item() - 1) < 1e-5


@pytest.mark.parametrize(
    ("order", "drawn"), [("entropy", LeastEntropy()), ("margin", Margin()), ("anchors", AnchorConfidence())]
)
@pytest.mark.parametrize("network", ["whole rows, anchored", "blocks, anchored"])
def test_the_sampler_with_this_order_draws_from_it(network, order, drawn):
    model, count = built(NETWORKS[network], std=0.9), 2000
    p = torch.exp(-nats(model, every_row(), order))
    sampler = Ordered(order=drawn, pace=PerStep(1))
    if model.attention == "block":
        sampler = Blocks(inner=sampler, size=2)
    canvas = Canvas(torch.full((count, LENGTH), 3), torch.zeros(count, LENGTH, dtype=torch.bool), torch.arange(count))
    tokens = sampler.sample(model, canvas, noise=Noise(5)).tokens
    index = (tokens * torch.tensor([27, 9, 3, 1])).sum(-1)
    found = torch.bincount(index, minlength=len(p)).double()
    often = p * count >= 5
    expected = torch.cat([p[often], p[~often].sum()[None]]) * count
    seen = torch.cat([found[often], found[~often].sum()[None]])
    chi = ((seen - expected) ** 2 / expected.clamp_min(1e-9)).sum().item()
    freedom = len(expected) - 1
    assert chi < freedom + 4 * (2 * freedom) ** 0.5
    if network == "whole rows, anchored":  # The test has power: another order has another distribution.
        other = torch.exp(-nats(model, every_row(), "left-to-right"))
        expected = torch.cat([other[often], other[~often].sum()[None]]) * count
        assert ((seen - expected) ** 2 / expected.clamp_min(1e-9)).sum().item() > freedom + 8 * (2 * freedom) ** 0.5


def test_blocks_of_one_token_have_one_order():
    model = built(NETWORKS["blocks"])
    exact = position_nats(model.in_blocks(1), every_row(), draws=1, noise=Noise(0))
    objective = replace(estimator("order:entropy", model), corruption=BlockMasking((1,)))
    found = position_nats(model, every_row(), draws=1, noise=Noise(0), objective=objective)
    torch.testing.assert_close(found, exact)


def test_the_bound_is_above_the_likelihood_under_the_mean_of_orders_only():
    """No order has to be below the bound, and here one is and one is not: so neither figure may stand for the other."""
    model = built(NETWORKS["whole rows"])
    bound = enumerated_nats(model, every_row()).sum(-1)
    differences = torch.stack([nats(model, every_row(), order) - bound for order in ("left-to-right", "entropy")])
    assert bool((differences < 0).any())
    assert bool((differences > 0).any())


def test_padding_up_to_the_end_of_a_block_is_part_of_the_text():
    """Of a row of 3 tokens in blocks of 2, the fourth position is predicted too, as the bound has it."""
    model, batch = built(NETWORKS["blocks"]), every_row()
    valid = torch.ones_like(batch.tokens, dtype=torch.bool)
    valid[:, 3] = False
    padded = replace(batch, valid=valid)
    torch.testing.assert_close(nats(model, padded, "entropy"), nats(model, batch, "entropy"))


def test_models_without_the_order_are_refused():
    with raises(ConfigError, subject="estimator"):
        estimator("order:entropy", built(OneStageConfig(replace(FULL, attention="causal"))))
    with raises(ConfigError):
        nats(built(NETWORKS["whole rows"]), every_row(), "anchors")
    timed = built(OneStageConfig(replace(FULL, condition=8, timed=True)))
    with raises(ConfigError, subject="estimator"):
        nats(timed, every_row(), "entropy")
