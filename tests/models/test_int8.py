import pytest
import torch

from adlm.errors import ConfigError
from adlm.models import int8
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from tests.errors import raises

VOCABULARY = Vocabulary(40, 39)
pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


def build(config):
    torch.manual_seed(0)
    model = config.build(VOCABULARY)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def networks():
    stack = StackConfig(64, 4, 2, condition=16)
    return [TwoStageConfig(stack, 1), OneStageConfig(stack), OneStageConfig(StackConfig(64, 4, 2, attention="causal"))]


def test_products_are_right_to_their_seven_bits():
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(96, 64, generator=generator), torch.randn(96, generator=generator)
    x = torch.randn(5, 7, 64, generator=generator) * torch.logspace(-3, 3, 7)[:, None]  # rows of very different size
    exact = torch.nn.functional.linear(x, weight, bias)
    error = (int8.linear(x, int8.packed(weight, bias)) - exact).norm(dim=-1) / (exact - bias).norm(dim=-1)
    assert error.max() < 0.04
    nothing = int8.linear(torch.zeros(2, 64), int8.packed(weight, None))
    assert torch.equal(nothing, torch.zeros(2, 96))


@pytest.mark.parametrize("config", networks(), ids=["adlm", "mdlm", "ar"])
def test_it_comes_near_and_goes_off_again(config):
    model = build(config)
    tokens = torch.randint(0, 39, (3, 20), generator=torch.Generator().manual_seed(2))
    with model.inference_weights():
        exact = model.logits(model.features(tokens).final).softmax(-1)
    model.use_int8()
    with model.inference_weights():
        short = model.logits(model.features(tokens).final).softmax(-1)
    assert not torch.equal(short, exact)
    assert (short - exact).abs().sum(-1).max() < 0.1
    model.use_int8(False)
    with model.inference_weights():
        assert torch.equal(model.logits(model.features(tokens).final).softmax(-1), exact)


def test_training_is_not_touched():
    model = build(networks()[0])
    tokens = torch.randint(0, 39, (2, 8))
    before = model.features(tokens).final
    model.use_int8()
    after = model.features(tokens).final
    assert torch.equal(before, after)
    after.sum().backward()


def test_other_devices_are_refused():
    model = build(networks()[1]).to("meta")
    with raises(ConfigError, subject="int8"):
        model.use_int8()
