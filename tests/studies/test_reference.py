"""The benchmarks' plain peer is right: it gives the official figures, on weights under our names."""

import pytest
import torch

from adlm.models.network import Vocabulary
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm_studies.reference import (
    ReferenceAdlm,
    log_probabilities,
    rare_in_row,
    reference_loss,
    reference_probabilities,
)
from tests.models.test_official import official, our_name

MASK = 38


def peer(run):
    ours, expected = official(run)
    shape = {"width": 48, "heads": 3, "anchor_layers": 4, "denoiser_layers": 2, "condition": 32}
    model = ReferenceAdlm(39, MASK, **shape, timed=run == "time_conditioned").eval()
    model.load_state_dict(ours.state_dict(), strict=True)
    return model, expected


def test_parameters_are_those_of_the_published_two_stage_model():
    ours = TwoStageConfig(StackConfig(width=32, heads=2, layers=2, condition=128), denoiser_layers=1)
    plain = ReferenceAdlm(11, 10, width=32, heads=2, anchor_layers=2, denoiser_layers=1)
    shapes = {key: tensor.shape for key, tensor in ours.build(Vocabulary(11, 10)).state_dict().items()}
    assert {key: tensor.shape for key, tensor in plain.state_dict().items()} == shapes


@pytest.mark.parametrize("run", ["continuous", "time_conditioned"])
def test_logits_and_log_probabilities_are_the_official_ones(run):
    model, expected = peer(run)
    x_t, t = expected["xt"], expected["t"]
    with torch.no_grad():
        anchor_logits, logits = model(x_t, t)
        log_p = log_probabilities(logits, x_t, MASK)
    assert (anchor_logits - expected["anchor_logits"]).abs().max() < 1e-5
    possible = expected["log_p_x0"] > -1e5
    assert torch.equal(log_p > -1e5, possible)
    assert (log_p - expected["log_p_x0"])[possible].abs().max() < 1e-5
    torch.testing.assert_close(reference_probabilities(model, x_t, t), expected["log_p_x0"].exp(), rtol=1e-5, atol=1e-6)


def test_anchors_are_the_official_ones():
    _, expected = peer("continuous")
    assert torch.equal(rare_in_row(expected["x0"]).long(), expected["anchor_mask"])
    assert torch.equal(rare_in_row(expected["x0"], most=2).long(), expected["anchor_mask_threshold2"])


@pytest.mark.parametrize(
    ("run", "step"), [("continuous", 0), ("continuous", 1), ("continuous", 500), ("time_conditioned", 500)]
)
def test_losses_are_the_official_ones(run, step):
    model, expected = peer(run)
    arguments = model, expected["x0"], expected["xt"], expected["t"]
    loss, nll = reference_loss(*arguments, gamma=min(3e-3, step / 1000))
    without, _ = reference_loss(*arguments, gamma=0.0)
    train, valid = (expected[f"loss_per_token.{split}.step{step}"].sum().item() for split in ("train", "val"))
    assert loss.item() == pytest.approx(train, rel=1e-5)
    assert nll.item() == without.item() == pytest.approx(valid, rel=1e-5)


@pytest.mark.parametrize("run", ["continuous", "time_conditioned"])
def test_gradients_are_the_official_ones(run):
    model, expected = peer(run)
    loss, _ = reference_loss(model, expected["x0"], expected["xt"], expected["t"], gamma=3e-3)
    (loss / expected["x0"].numel()).backward()
    norms = {key.removeprefix("grad_norm."): value for key, value in expected.items() if key.startswith("grad_norm.")}
    parameters = dict(model.named_parameters())
    assert len(norms) == len(parameters)
    for key, norm in norms.items():
        assert parameters[our_name(key)].grad.norm().item() == pytest.approx(norm.item(), rel=1e-4, abs=1e-7), key
