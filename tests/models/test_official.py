"""Our networks with the official weights give the official figures (tests/golden/README.md)."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from adlm.anchors.rules import RareInSequence
from adlm.diffusion.corruption import Corruption
from adlm.diffusion.schedule import LogLinear
from adlm.models.language_model import Vocabulary
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.objective import Anelbo
from adlm.randomness import Noise
from adlm.types import Corrupted
from tests.conftest import batch_of

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
WEIGHTS = load_file(GOLDEN / "adlm_tiny_weights.safetensors")
EXPECTED = load_file(GOLDEN / "adlm_tiny_expected.safetensors")

# Official names on the left; both networks are called backbone or denoiser there.
NAMES = {
    "vocab_embed.embedding": "embedding.tokens.weight",
    "vocab_embed.0": "hand_over.project",
    "sigma_map.mlp.0": "time.first",
    "sigma_map.mlp.2": "time.second",
    "attn_qkv": "qkv",
    "attn_out": "out",
    "mlp.0": "up",
    "mlp.2": "down",
    "norm1": "norm_1",
    "norm2": "norm_2",
    "output_layer.norm_final": "norm",
    "output_layer.adaLN_modulation": "modulation",
    "adaLN_modulation": "modulation",
}


def our_name(official: str) -> str:
    network, name = official.split(".", 1)
    stage = {"backbone": "anchor", "denoiser": "denoiser"}[network]
    if name.startswith("output_layer.linear"):
        head = "anchor_head" if stage == "anchor" else "head"
        return name.replace("output_layer.linear", head)
    for theirs, ours in NAMES.items():
        if theirs in name:
            name = name.replace(theirs, ours)
            break
    return name if name.startswith(("embedding", "hand_over")) else f"{stage}.{name}"


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
        object.__setattr__(self, "expected", expected)

    def __call__(self, batch, mask_id, noise):
        t = self.expected["t"]
        x_t = self.expected["xt"]
        return Corrupted(batch.tokens, x_t, t, x_t == mask_id, LogLinear().weight(t))


@pytest.mark.parametrize("run", ["continuous", "time_conditioned"])
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


@pytest.mark.parametrize("run", ["continuous", "time_conditioned"])
def test_gradients_are_the_official_ones(run):
    model, expected = official(run)
    objective = Anelbo(Given(expected), RareInSequence(5), gamma=3e-3)
    terms = objective(model, batch_of(expected["x0"]), progress=0.5, noise=Noise(0))
    (terms.loss_sum / terms.tokens).backward()
    norms = {key.removeprefix("grad_norm."): value for key, value in expected.items() if key.startswith("grad_norm.")}
    parameters = dict(model.named_parameters())
    assert len(norms) == len(parameters)
    for key, norm in norms.items():
        assert parameters[our_name(key)].grad.norm().item() == pytest.approx(norm.item(), rel=1e-4, abs=1e-7), key
