"""Rows read in parts, and attention where few positions are wanted: the features of whole rows, for less work."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from adlm.errors import ConfigError, OutOfRange
from adlm.models.hand_over import Continued, Hidden, Logits, Probabilities
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.train.lora import Lora
from tests.errors import raises

VOCABULARY = Vocabulary(19, 18)
LENGTH = 12


def stack(**options):
    return StackConfig(width=16, heads=2, layers=2, **options)


STACKS = {
    "plain": stack(attention="causal"),
    "convolution": stack(attention="causal", convolution=4),
    "convolution of one": stack(attention="causal", convolution=1),
    "unit queries": stack(attention="causal", query_key_norm=True),
    "folded": stack(attention="causal", condition=8),
    "timed": stack(attention="causal", condition=8, timed=True),
    "all": stack(attention="causal", convolution=3, query_key_norm=True, condition=8, timed=True),
}
CONFIGS = {
    **{name: OneStageConfig(shape) for name, shape in STACKS.items()},
    "learned positions": OneStageConfig(STACKS["plain"], tied=True, positions=LENGTH),
    "two stages": TwoStageConfig(STACKS["all"], 1),
    "two stages, learned positions": TwoStageConfig(STACKS["folded"], 2, positions=LENGTH),
    **{type(h).__name__: TwoStageConfig(STACKS["convolution"], 1, h) for h in (Logits(), Probabilities(), Hidden())},
    "Continued": TwoStageConfig(STACKS["convolution"], 1, Continued(), tied=True),
}
BOTH_SIDES = {
    "masked": OneStageConfig(stack(convolution=3, query_key_norm=True)),
    "masked, timed": OneStageConfig(stack(condition=8, timed=True)),
    "masked, two stages": TwoStageConfig(stack(condition=8), 1),
}
TIMES = torch.tensor([0.1, 0.5, 0.9])


def built(config):
    """A model with every parameter away from zero, where it starts for many."""
    model = config.build(VOCABULARY)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


MODELS = {name: built(config) for name, config in {**CONFIGS, **BOTH_SIDES}.items()}
TOKENS = torch.randint(0, 18, (3, LENGTH), generator=torch.Generator().manual_seed(1))


def close(one, two):
    return torch.allclose(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=6, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 2)), first=st.integers(0, 4))
def test_rows_read_in_parts_have_the_features_of_whole_rows(name, cuts, first):
    model = MODELS[name]
    cuts = sorted({first, LENGTH - 1, *(cut for cut in cuts if cut > first)})
    with torch.no_grad():
        whole = model.features(TOKENS, TIMES)
    every, last = (model.cache(3, LENGTH, TIMES) for _ in range(2))
    parts, ends, anchors = [], [], []
    for start, end in zip([0, *cuts], cuts, strict=False):
        features = model.extend(TOKENS[:, start:end], every, every=True)
        parts.append(features.final)
        anchors.append(features.anchor)
        ends.append(model.extend(TOKENS[:, start:end], last).final)
    assert close(torch.cat(parts, 1), whole.final)
    assert close(torch.stack(ends, 1), whole.final[:, cuts])
    assert whole.anchor is None or close(torch.cat(anchors, 1), whole.anchor)


@pytest.mark.parametrize("name", ["all", "two stages"])
def test_rows_that_leave_the_cache_do_not_change_the_others(name):
    model = MODELS[name]
    cache = model.cache(3, LENGTH, TIMES)
    model.extend(TOKENS[:, :4], cache)
    cache.keep(torch.tensor([True, False, True]))
    found = model.extend(TOKENS[[0, 2], 4:6], cache, every=True).final
    with torch.no_grad():
        assert close(found, model.features(TOKENS, TIMES).final[[0, 2], 5:7])
    cache.keep(torch.tensor([False, True]))
    assert cache.rows == 1
    with torch.no_grad():
        assert close(model.extend(TOKENS[2:, 6:9], cache).final, model.features(TOKENS, TIMES).final[2:, 9])


def flops(call):
    # The fused attention of a CPU is not counted by torch; the plain one is.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def test_reading_on_costs_what_is_new_and_ends_with_the_last_position():
    model = MODELS["plain"]
    one, new, seen = 16 * 16, 8, 4
    cache = model.cache(1, LENGTH)
    model.extend(TOKENS[:1, : seen - 1], cache)
    # Two blocks with 12 maps of D x D; the last needs keys and values of all that is new, the rest at the last alone.
    attention = 2 * (seen + new) * 16
    expected = 2 * (new * (12 * one + attention) + new * 2 * one + 10 * one + attention)
    assert flops(lambda: model.extend(TOKENS[:1, seen - 1 : seen + new - 1], cache)) == expected


def test_what_cannot_be_read_is_refused():
    with raises(ConfigError, subject="attention"):
        MODELS["masked"].cache(1, 4)
    model = MODELS["learned positions"]
    cache = model.cache(2, 4)
    with raises(OutOfRange, subject="rows"):
        model.extend(TOKENS[:1, :2], cache)
    model.extend(TOKENS[:2, :0], cache)
    with raises(OutOfRange, subject="tokens"):
        model.extend(TOKENS[:2, :0], cache)
    with raises(ConfigError, subject="length"):
        model.extend(TOKENS[:2, :4], cache)
    with raises(ConfigError, subject="positions"):
        model.extend(torch.zeros(2, 13, dtype=torch.long), model.cache(2, 20))


def test_a_model_reads_on_beyond_any_length_it_was_trained_for():
    tokens = torch.randint(0, 18, (1, 90), generator=torch.Generator().manual_seed(2))
    model = MODELS["convolution"]
    cache = model.cache(1, 90)
    model.extend(tokens[:, :80], cache)
    with torch.no_grad():
        assert close(model.extend(tokens[:, 80:89], cache).final, model.features(tokens).final[:, 89])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_few_wanted_positions_are_those_of_all_positions(name, packed):
    model = MODELS[name]
    segments = torch.tensor([[0] * 5 + [1] * 7, [0] * 11 + [-1], [0] * 12]) if packed else None
    output_mask = torch.zeros(3, LENGTH, dtype=torch.bool)
    output_mask[0, [2, 3, 11]] = output_mask[1, 0] = True  # three, one and none
    with torch.no_grad():
        whole = model.features(TOKENS, TIMES, segments=segments).final
        for chosen in (output_mask, torch.zeros_like(output_mask)):
            found = model.features(TOKENS, TIMES, segments=segments, output_mask=chosen).final
            assert close(found, whole[chosen])
            assert found.shape == whole[chosen].shape


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ["plain", "masked"])
def test_queries_are_made_only_where_few_are_wanted(name, count):
    model = MODELS[name]
    output_mask = torch.zeros(3, LENGTH, dtype=torch.bool)
    output_mask[:, :count] = True
    with torch.no_grad():
        few = flops(lambda: model.features(TOKENS, output_mask=output_mask))
    training = flops(lambda: model.features(TOKENS, output_mask=output_mask))
    left_out = 3 * (LENGTH - count)
    assert training - few == 2 * left_out * (16 * 16 + 2 * LENGTH * 16)


def test_adapters_count_where_few_positions_are_wanted():
    pytest.importorskip("peft")
    model = built(BOTH_SIDES["masked"])
    before = model.features(TOKENS).final
    Lora(rank=2).apply(model)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(parameter)
    output_mask = torch.zeros(3, LENGTH, dtype=torch.bool)
    output_mask[:, 4] = True
    with torch.no_grad():
        whole = model.features(TOKENS).final
        assert close(model.features(TOKENS, output_mask=output_mask).final, whole[output_mask])
    assert not close(whole, before)
