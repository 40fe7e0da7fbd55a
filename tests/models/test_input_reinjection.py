"""Tokens that are read again: what a stack computes then, in one pass and in parts."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from adlm.errors import OutOfRange
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from tests.errors import raises

STACK = StackConfig(width=16, heads=2, layers=3, convolution=3, query_key_norm=True, input_reinjection=2)
VOCABULARY = Vocabulary(11, 10)


def randomised(module):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return module.eval()


def test_the_input_is_added_at_unit_size_before_that_block():
    stack = randomised(STACK.build())
    x = torch.randn(2, 5, 16)
    unit = F.rms_norm(x, (16,))
    layout = stack._layout(x, None, 0)
    expected = unit
    for number, block in enumerate(stack.blocks):
        expected = block(expected + unit if number == 2 else expected, layout, None)
    assert torch.allclose(stack(x)[0], expected, atol=1e-6)
    assert not torch.allclose(randomised(replace(STACK, input_reinjection=0).build())(x)[0], expected, atol=1e-2)


def test_only_the_wanted_positions_are_the_same_alone():
    stack = randomised(STACK.build())
    x, output_mask = torch.randn(2, 9, 16), torch.zeros(2, 9, dtype=torch.bool)
    output_mask[0, 3] = output_mask[1, 0] = True
    with torch.no_grad():
        assert torch.allclose(stack(x, output_mask=output_mask)[1], stack(x)[1][output_mask], atol=1e-5)


def test_a_left_to_right_model_reads_in_parts_as_it_reads_at_once():
    model = randomised(OneStageConfig(replace(STACK, attention="causal"), tied=True).build(VOCABULARY))
    tokens = torch.randint(0, 10, (2, 7))
    with torch.no_grad(), model.inference_weights():
        cache = model.cache(2, 8)
        parts = [model.extend(part, cache, every=True).final for part in (tokens[:, :3], tokens[:, 3:6])]
        assert torch.allclose(torch.cat(parts, 1), model.features(tokens).final, atol=1e-5)


def test_a_denoiser_does_not_read_again_by_itself():
    model = TwoStageConfig(STACK, 1).build(VOCABULARY)
    assert (model.anchor.config.input_reinjection, model.denoiser.config.input_reinjection) == (2, 0)


@pytest.mark.parametrize("block", [-1, 3])
def test_a_block_that_is_not_there_is_refused(block):
    with raises(OutOfRange, subject="input_reinjection", value=block):
        replace(STACK, input_reinjection=block)
