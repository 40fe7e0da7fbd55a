"""Adapters that act at noisy positions only: the left-to-right model stays in the network as it was."""

from dataclasses import replace

import pytest
import torch

import adlm
from adlm.adapt import AdaptOptions, adapt
from adlm.errors import ConfigError
from adlm.models.hand_over import Continued
from adlm.models.one_stage import OneStageConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.train.lora import train_adapters_only
from adlm.train.run import FitOptions
from tests.adapt.models import left_to_right
from tests.errors import raises
from tests.models.test_block_reading import STACK, built, rows

ADAPTED = replace(STACK, adapter_rank=3)
ONE = OneStageConfig(ADAPTED, block_size=4, shift=True)
TWO = TwoStageConfig(replace(ADAPTED, convolution=3), 2, Continued(), block_size=4, shift=True)


def without_adapters(model, network):
    plain = network.variant(adapter_rank=0).build(model.vocabulary).double().eval()
    plain.load_state_dict({name: x for name, x in model.state_dict().items() if ".adapters." not in name})
    return plain


@pytest.mark.parametrize("network", [ONE, TWO])
def test_from_left_to_right_it_is_the_model_without_adapters(network):
    model = built(network)
    plain = without_adapters(model, network)
    clean, noisy = rows(2, 12)
    expected = plain.in_blocks(1).features(clean).final
    torch.testing.assert_close(model.in_blocks(1).features(clean).final, expected)
    assert not torch.allclose(model.features(noisy).final, plain.features(noisy).final)
    # A draft is verified with the cache of the blocks.
    cache = model.finished_blocks(2, 12)
    for start in (0, 4, 8):
        read = model.read_block(clean, [start] * 2, cache, left_to_right=True).final.view(2, 4, -1)
        torch.testing.assert_close(read, expected[:, start : start + 4])


@pytest.mark.parametrize("network", [ONE, TWO])
def test_the_gradients_of_the_adapters_do_not_depend_on_what_else_is_trained(network):
    clean, noisy = rows(2, 12)
    gradients = []
    for alone in (False, True):
        model = built(network).train()
        if alone:
            train_adapters_only(model)
        model.features(noisy, clean=clean).final.square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if ".adapters." in name})
        trained = {name for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}
        assert (trained == set(gradients[-1])) is alone
    for name, gradient in gradients[0].items():
        assert gradient.abs().sum() > 0
        torch.testing.assert_close(gradients[1][name], gradient)


@pytest.mark.parametrize("to", ["block:4", "anchored-block:4"])
def test_adapting_with_adapters_leaves_the_source_in_the_model(tmp_path, to):
    source = left_to_right()
    source.save(tmp_path / "ar")
    report = adapt(
        tmp_path / "ar", to, ["self:60"], tmp_path / "out", options=AdaptOptions(steps=3, rows=4, adapter_rank=2),
        device="cpu", fit_options=FitOptions(cache=tmp_path / "cache"), callbacks=(),
    )  # fmt: skip
    model = adlm.load(tmp_path / "out")
    assert model.block_sizes == (1, 2, 4)
    (own,) = report.held_out
    assert own.after[1].mean == pytest.approx(own.source.mean, rel=1e-6)
    assert own.after[4].mean != own.before[4].mean
    tokens = torch.randint(8, (2, 12))
    left, was = (m.network.features(tokens).final for m in (model.in_blocks(1), source))
    assert torch.equal(left, was)
    # Whoever trains it further starts from the adapters too.
    assert any("adapters" in name and x.abs().sum() > 0 for name, x in model.network.state_dict().items())


def test_int8_reads_both_sets_of_weights():
    model = built(ONE).float()
    clean, noisy = rows(2, 12)
    with model.inference_weights():
        exact = [m.features(x).final for m, x in ((model, noisy), (model.in_blocks(1), clean))]
    model.use_int8()
    with model.inference_weights():
        rounded = [m.features(x).final for m, x in ((model, noisy), (model.in_blocks(1), clean))]
    for before, after in zip(exact, rounded, strict=True):
        assert 0 < (before - after).norm() < 0.1 * before.norm()


def test_what_cannot_be_is_refused():
    with raises(ConfigError, subject="adapter_rank"):
        replace(ADAPTED, attention="full", timed=True, condition=8)
    with raises(ConfigError, subject="adapter_rank"):
        AdaptOptions(lora=2, adapter_rank=2)
