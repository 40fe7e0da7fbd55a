"""What callers may ask of a network, before and after it is built, instead of its class."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from adlm.errors import ConfigError
from adlm.models.hand_over import Continued, Logits
from adlm.models.language_model import LanguageModel
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.transformers_causal import TransformersCausalConfig
from adlm.models.two_stage import TwoStageConfig, as_two_stage
from tests.errors import raises

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = Vocabulary(11, 10)
STACK = StackConfig(width=16, heads=2, layers=2)
CAUSAL = replace(STACK, attention="causal")
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24}
LLAMA = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
LLAMA["intermediate_size"] = 32
NETWORKS = {
    "mdlm": OneStageConfig(STACK),
    "ar": OneStageConfig(CAUSAL, positions=9),
    "sedd": OneStageConfig(replace(STACK, condition=8, timed=True)),
    "adlm": TwoStageConfig(STACK, 1, Logits()),
    "a2r": TwoStageConfig(CAUSAL, 1, Continued(), tied=True),
    "gpt2": TransformersCausalConfig(json.dumps(GPT2)),
    "llama": TransformersCausalConfig(json.dumps(LLAMA)),
}
# stages, attention, cache, learned positions, time-conditioned, layers
EXPECTED = {
    "mdlm": (1, "full", None, 0, False, (2,)),
    "ar": (1, "causal", "tokens", 9, False, (2,)),
    "sedd": (1, "full", None, 0, True, (2,)),
    "adlm": (2, "full", None, 0, False, (2, 1)),
    "a2r": (2, "causal", "tokens", 0, False, (2, 1)),
    "gpt2": (1, "causal", "tokens", 24, False, (2,)),
    "llama": (1, "causal", "tokens", 0, False, (3,)),
}


def built(name):
    if name in ("gpt2", "llama"):
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = NETWORKS[name].build(VOCABULARY).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_says_what_its_configuration_says(name):
    network, model = NETWORKS[name], built(name)
    names = ("stages", "attention", "cache_kind", "learned_positions", "time_conditioned")
    assert tuple(getattr(network, each) for each in (*names, "layers")) == EXPECTED[name]
    assert [getattr(model, each) for each in names] == [getattr(network, each) for each in names]
    assert model.causal == network.causal == model.shifted == (network.attention == "causal")
    assert network.width == 16


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_calling_a_model_gives_logits(name):
    model = built(name)
    tokens = torch.randint(0, 10, (3, 7), generator=torch.Generator().manual_seed(1))
    t = torch.rand(3) if model.time_conditioned else None
    segments = torch.zeros_like(tokens)
    segments[1, :4] = -1
    mask = torch.rand(3, 7, generator=torch.Generator().manual_seed(2)) < 0.5
    logits = model(tokens, t)
    assert logits.shape == (3, 7, 11)
    assert torch.equal(logits, model.logits(model.features(tokens, t).final))
    assert torch.allclose(model(tokens, t, output_mask=mask), logits[mask], atol=1e-5)
    kept = segments >= 0
    found = model(tokens, t, segments=segments)
    assert torch.allclose(found[0], logits[0], atol=1e-5)
    assert torch.allclose(model(tokens, t, segments=segments, output_mask=mask & kept), found[mask & kept], atol=1e-5)


def test_compile_is_that_of_a_module():
    assert LanguageModel.compile is nn.Module.compile


def test_a_variant_differs_in_what_was_asked_for():
    network = TwoStageConfig(STACK, 1, Logits(), tied=True, positions=8)
    assert network.variant(layers=(3, 2)) == TwoStageConfig(replace(STACK, layers=3), 2, Logits(), True, 8)
    assert network.variant(positions=0, hand_over=Continued()) == TwoStageConfig(STACK, 1, Continued(), True, 0)
    assert network.variant(attention="causal") == TwoStageConfig(CAUSAL, 1, Logits(), True, 8)
    assert network.variant() == network
    assert network.one_stage() == OneStageConfig(STACK, True, 8)
    assert OneStageConfig(STACK).one_stage().variant(layers=(5,)) == OneStageConfig(replace(STACK, layers=5))
    with pytest.raises(TypeError):
        network.variant(colour="red")
    with raises(ConfigError, subject="TransformersCausalConfig"):
        NETWORKS["gpt2"].variant(positions=0)


def test_a_second_stage_is_asked_for_by_name():
    model, tokens = built("mdlm"), torch.zeros(1, 4, dtype=torch.long)
    for ask in (lambda: model.anchor_stage(tokens), lambda: as_two_stage(model, "a test")):
        with raises(ConfigError, subject="stages"):
            ask()
    two = built("adlm")
    assert as_two_stage(two, "a test") is two


def test_callers_ask_for_capabilities_and_not_for_classes():
    """Weights that go from one class of network to another are the exception (`train/init.py`)."""
    check = re.compile(r"isinstance\([^\n]*\b(OneStage|TwoStage|TransformersCausal)(Config)?\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("adlm", "adlm_studies", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parent != ROOT / "adlm" / "models"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if check.search(line)
    ]
    assert len(found) <= 3, found
