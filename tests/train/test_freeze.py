from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from adlm.diffusion.corruption import CountMasking
from adlm.errors import ConfigError, UnknownName
from adlm.models.hand_over import Continued, Hidden, Logits, Probabilities
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo
from adlm.randomness import Noise
from adlm.train.ema import Ema
from adlm.train.lora import freeze
from adlm.train.optimizers import AdamW, Muon
from tests.conftest import batch_of
from tests.errors import raises

VOCABULARY = Vocabulary(13, 12)
STACK = StackConfig(width=8, heads=2, layers=2)
ONE, TWO = OneStageConfig(STACK, positions=8), TwoStageConfig(STACK, 1, Continued(), positions=8)
BEGINNINGS = sorted(
    {name.rsplit(".", cut)[0] for name, _ in ONE.build(VOCABULARY).named_parameters() for cut in range(5)}
)
BATCH = batch_of(torch.randint(0, 12, (4, 8), generator=torch.Generator().manual_seed(0)))


def learning(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def loss_of(model):
    return Anelbo(CountMasking(), gamma=0.1)(model, BATCH, progress=1.0, noise=Noise(0)).loss_sum


@given(st.lists(st.sampled_from(BEGINNINGS), max_size=4))
def test_exactly_what_begins_with_a_name_is_frozen(names):
    model = ONE.build(VOCABULARY)
    left = {n for n in learning(model) if not any(n == name or n.startswith(name + ".") for name in names)}
    if left:
        freeze(model, names)
        assert learning(model) == left
    else:
        with raises(ConfigError, subject="train.freeze"):
            freeze(model, names)
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_stages_of_a_model_share_its_parameters_out():
    every = learning(TWO.build(VOCABULARY))
    left = {}
    for stage in ("anchor", "denoiser"):
        model = TWO.build(VOCABULARY)
        freeze(model, (stage,))
        left[stage] = learning(model)
    assert left["anchor"] | left["denoiser"] == every
    assert {name.split(".")[0] for name in left["denoiser"]} == {"embedding", "anchor", "anchor_head"}
    assert {name.split(".")[0] for name in left["anchor"]} == {"denoiser", "head"}
    with raises(ConfigError, subject="train.freeze"):
        freeze(TWO.build(VOCABULARY), ("anchor", "denoiser"))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("hand_over", [Continued(), Hidden(), Logits(), Probabilities()], ids=repr)
def test_a_frozen_anchor_stage_is_left_out_of_the_backward_pass_and_stays_to_the_bit(hand_over, tied):
    network = replace(TWO, hand_over=hand_over, tied=tied)
    torch.manual_seed(0)
    whole, model = network.build(VOCABULARY), network.build(VOCABULARY)
    freeze(model, ("anchor",))
    assert not model.features(BATCH.tokens).anchor.requires_grad
    work = []
    for one in (whole, model):
        with FlopCounterMode(display=False) as counter:
            loss_of(one).backward()
        work.append(counter.get_total_flops())
    assert work[1] < 0.75 * work[0]  # two of three layers have no backward pass
    model.zero_grad()

    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizers, ema = Muon(weight_decay=0.5).build(model), Ema(model, 0.5)
    for _ in range(2):
        loss_of(model).backward()
        for optimizer in optimizers:
            optimizer.step()
        ema.update(model)
    ema.keep(model)
    for name, parameter in model.named_parameters():
        frozen = name.split(".")[0] in ("embedding", "anchor", "anchor_head")
        assert parameter.requires_grad != frozen
        assert (parameter.grad is None) == frozen
        assert not frozen or torch.equal(parameter, before[name])
    assert not torch.equal(model.head.bias, before["head.bias"])


def test_frozen_parameters_have_no_state_in_optimisers_and_no_average():
    model = TWO.build(VOCABULARY)
    freeze(model, ("anchor", "head"))
    expected = {f"denoiser.{name}" for name, _ in model.denoiser.named_parameters()}
    assert Ema(model, 0.9).mean.keys() == expected
    for config in (AdamW(weight_decay=0.1), Muon(weight_decay=0.1)):
        groups = [group for optimizer in config.build(model) for group in optimizer.param_groups]
        assert {name for group in groups for name in group["param_names"]} == expected


def test_a_tied_head_is_frozen_with_the_anchor_stage_and_never_by_half():
    tied = replace(TWO, tied=True)
    model = tied.build(VOCABULARY)
    freeze(model, ("anchor",))
    assert not model.head.weight.requires_grad
    assert model.head.bias.requires_grad
    model = tied.build(VOCABULARY)
    freeze(model, ("denoiser",))
    assert model.head.weight.requires_grad
    assert not model.head.bias.requires_grad
    model = tied.build(VOCABULARY)
    with raises(ConfigError, subject="head.weight"):
        freeze(model, ("head",))
    assert len(learning(model)) == len(list(model.parameters()))
    freeze(model, ("head", "embedding.tokens"))
    assert not learning(model) & {"embedding.tokens.weight", "head.bias"}
    freeze(model, ("anchor_head.bias",))
    assert "anchor_head.bias" not in learning(model)


@pytest.mark.parametrize(
    ("network", "name", "known"),
    [
        (ONE, "anchor", ["embedding", "head", "stack"]),
        (TWO, "anker", ["anchor", "anchor_head", "denoiser", "embedding", "head"]),
        (TWO, "anchor.block", ["anchor.blocks", "anchor.norm"]),
        (TWO, "anchor.blocks.7", ["anchor.blocks.0", "anchor.blocks.1"]),
        (TWO, "anchor.norm.weight.x", ["anchor.norm.weight"]),
        (TWO, "", ["anchor", "anchor_head", "denoiser", "embedding", "head"]),
    ],
)
def test_unknown_parts_are_answered_with_those_there_are(network, name, known):
    with raises(UnknownName, subject=name, known=known):
        freeze(network.build(VOCABULARY), (name,))
