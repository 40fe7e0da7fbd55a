"""Our networks with the official weights give the official figures (tests/golden/README.md)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adlm.anchors.rules import RareInSequence
from adlm.convert.official import key_map
from adlm.diffusion.corruption import Corruption, UniformMasking
from adlm.diffusion.schedule import LogLinear
from adlm.models.network import Vocabulary
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.randomness import Noise
from adlm.types import Corrupted
from tests.conftest import batch_of

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
WEIGHTS = load_file(GOLDEN / "adlm_tiny_weights.safetensors")
EXPECTED = load_file(GOLDEN / "adlm_tiny_expected.safetensors")

our_name = key_map({"backbone": 4, "denoiser": 2}, conditioned=True).__getitem__


def official(run: str):
    prefix = "weights_time." if run == "time_conditioned" else "weights."
    stack = StackConfig(width=48, heads=3, layers=4, condition=32, timed=run == "time_conditioned")
    model = TwoStageConfig(stack, denoiser_layers=2).build(Vocabulary(39, 38)).eval()
    weights = {
        our_name(key.removeprefix(prefix)): tensor
        for key, tensor in WEIGHTS.items()
        if key.startswith(prefix) and not key.endswith("inv_freq")
    }
    model.load_state_dict(weights, strict=True)
    return model, {key.removeprefix(run + "."): value for key, value in EXPECTED.items() if key.startswith(run + ".")}


class Given(Corruption):
    """The corruption of the golden run, so that only network and objective are compared."""

    def __init__(self, expected) -> None:
        super().__init__()
        object.__setattr__(self, "expected", expected)

    def __call__(self, batch, mask_id, noise, progress=1.0):
        return self.at(None, batch, mask_id, noise)

    def at(self, level, batch, mask_id, noise):
        t = self.expected["t_used"] if "t_used" in self.expected else self.expected["t"]
        x_t = self.expected["xt"]
        return Corrupted(batch.tokens, x_t, t, x_t == mask_id, LogLinear().weight(t)[:, None])


@pytest.mark.parametrize("run", ["continuous", "time_conditioned", "discrete_T50"])
def test_logits_and_log_probabilities_are_the_official_ones(run):
    model, expected = official(run)
    features = model.features(expected["xt"], expected["t"])
    raw = model.anchor_head.raw(features.anchor)
    assert (raw - expected["anchor_logits"]).abs().max() < 1e-5
    masked = expected["xt"] == 38
    ours = model.logits(features.final[masked]).log_softmax(-1)
    theirs = expected["log_p_x0"][masked]
    assert (ours - theirs)[:, :38].abs().max() < 1e-5


@pytest.mark.parametrize(
    ("run", "step"), [("continuous", 0), ("continuous", 1), ("continuous", 500), ("time_conditioned", 500)]
)
def test_losses_are_the_official_ones(run, step):
    model, expected = official(run)
    objective = Anelbo(Given(expected), RareInSequence(5), gamma=3e-3)
    terms = objective(model, batch_of(expected["x0"]), progress=step / 1000, noise=Noise(0))
    assert terms.nll_sum.item() == pytest.approx(expected[f"loss_per_token.val.step{step}"].sum().item(), rel=1e-5)
    assert terms.loss_sum.item() == pytest.approx(expected[f"loss_per_token.train.step{step}"].sum().item(), rel=1e-5)


@pytest.mark.parametrize("run", ["continuous", "time_conditioned", "discrete_T50"])
def test_gradients_are_the_official_ones(run):
    model, expected = official(run)
    corruption = Given(expected)
    objective = Nelbo(corruption) if run == "discrete_T50" else Anelbo(corruption, RareInSequence(5), gamma=3e-3)
    terms = objective(model, batch_of(expected["x0"]), progress=0.5, noise=Noise(0))
    (terms.loss_sum / terms.tokens).backward()
    norms = {key.removeprefix("grad_norm."): value for key, value in expected.items() if key.startswith("grad_norm.")}
    parameters = dict(model.named_parameters())
    assert len(norms) == len(parameters)
    for key, norm in norms.items():
        assert parameters[our_name(key)].grad.norm().item() == pytest.approx(norm.item(), rel=1e-4, abs=1e-7), key


@pytest.mark.parametrize(("run", "step"), [("continuous", 500), ("time_conditioned", 500), ("discrete_T50", 500)])
def test_the_loss_of_every_token_is_the_official_one(run, step):
    model, expected = official(run)
    ours = Nelbo(Given(expected)).nats(model, batch_of(expected["x0"]), None, Noise(0))
    assert (ours - expected[f"loss_per_token.val.step{step}"]).abs().max() < 1e-4
    if run == "discrete_T50":  # the official code adds no anchor term in discrete time
        assert (ours - expected[f"loss_per_token.train.step{step}"]).abs().max() < 1e-4


def test_times_in_steps_weigh_as_the_official_ones():
    """With T steps the official code rounds t up to a multiple of 1/T and keeps the weight of continuous time."""
    _, expected = official("discrete_T50")
    x_0, t = expected["x0"], expected["t"].double() + 1e-4  # they lie on the borders themselves
    ours = UniformMasking(steps=50).at(t, batch_of(x_0), 38, Noise(0))
    assert torch.allclose(ours.t, expected["t_used"])
    assert torch.allclose(ours.weight[:, 0], LogLinear().weight(expected["t_used"]))
