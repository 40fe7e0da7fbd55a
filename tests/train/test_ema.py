import pytest
import torch
from torch import nn

from adlm.errors import OutOfRange
from adlm.train.ema import Ema
from tests.errors import raises


def moved(model, by):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)


def test_the_average_follows_the_published_formula():
    model = nn.Linear(2, 2)
    start = model.weight.detach().clone()
    ema = Ema(model, 0.9)
    expected = start.clone()
    for n in range(1, 200):
        moved(model, 0.1)
        decay = min(0.9, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * model.weight.detach()
        ema.update(model)
    assert torch.allclose(ema.mean["weight"], expected, atol=1e-5)


def test_applied_weights_are_the_averages_and_then_the_own_ones_again():
    model = nn.Linear(2, 2)
    ema = Ema(model, 0.99)
    moved(model, 1.0)
    ema.update(model)
    own, mean = model.weight.detach().clone(), ema.mean["weight"].clone()
    assert not torch.equal(own, mean)

    def failing():
        with ema.applied(model):
            assert torch.equal(model.weight, mean)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        failing()
    assert torch.equal(model.weight, own)
    assert torch.equal(ema.mean["weight"], mean)
    model(torch.ones(1, 2)).sum().backward()  # still a parameter that learns
    assert model.weight.grad is not None


def test_weights_keep_their_storage_when_averages_are_applied():
    """FSDP2 and compiled code know parameters by it."""
    model = nn.Linear(2, 2)
    ema = Ema(model, 0.9)
    storage = model.weight.data_ptr()
    with ema.applied(model):
        assert model.weight.data_ptr() == storage
    ema.keep(model)
    assert model.weight.data_ptr() == storage


def test_kept_weights_are_the_averages():
    model = nn.Linear(2, 2)
    ema = Ema(model, 0.9)
    moved(model, 1.0)
    ema.update(model)
    ema.keep(model)
    assert torch.equal(model.weight, ema.mean["weight"])
    moved(model, 1.0)
    assert not torch.equal(model.weight, ema.mean["weight"])


def test_weights_that_do_not_learn_have_no_average_and_stay():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    before = model.bias.clone()
    ema = Ema(model, 0.9)
    assert list(ema.mean) == ["weight"]
    moved(model, 1.0)
    ema.update(model)
    with ema.applied(model):
        assert torch.equal(model.bias, before + 1)
    ema.keep(model)
    assert torch.equal(model.bias, before + 1)


def test_tied_weights_are_averaged_once():
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    ema = Ema(model, 0.5)
    assert list(ema.mean) == ["a.weight"]
    moved(model, 1.0)
    ema.update(model)
    with ema.applied(model):
        assert model["a"].weight is model["b"].weight
        assert torch.equal(model["b"].weight, model["a"].weight)


def test_the_state_survives_saving():
    model = nn.Linear(2, 2)
    first, second = Ema(model, 0.9), Ema(model, 0.9)
    moved(model, 1.0)
    first.update(model)
    second.load_state_dict(first.state_dict())
    for ema in (first, second):
        ema.update(model)
    assert torch.equal(first.mean["weight"], second.mean["weight"])


def test_impossible_decays_are_refused():
    for decay in (0.0, 1.0, 1.5):
        with raises(OutOfRange, subject="ema_decay"):
            Ema(nn.Linear(1, 1), decay)
