import sys
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from adlm.config import from_json, to_json
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import characters
from adlm.diffusion.corruption import CountMasking
from adlm.errors import MissingExtra, OutOfRange
from adlm.models.hand_over import Continued
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Nelbo
from adlm.randomness import Noise
from adlm.train.ema import Ema
from adlm.train.lora import Lora, freeze
from adlm.train.optimizers import AdamW, Muon
from tests.conftest import batch_of
from tests.errors import raises

TOKENIZER = characters("abcdefgh")
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
STACK = StackConfig(width=16, heads=2, layers=2, convolution=3)
NETWORKS = {
    "one": OneStageConfig(STACK, tied=True),
    "two": TwoStageConfig(STACK, 1, Continued()),
    "modulated": OneStageConfig(replace(STACK, condition=8)),
    "timed": OneStageConfig(replace(STACK, condition=8, timed=True)),
}
BATCH = batch_of(torch.randint(0, 8, (4, 12), generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def _peft():
    pytest.importorskip("peft")


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS)
def model(request, _peft):
    """With weights that are all in use: adapters of blocks that do nothing would learn nothing."""
    torch.manual_seed(0)
    model = request.param.build(VOCABULARY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def loss_of(model, noise=0):
    return Nelbo(CountMasking())(model, BATCH, progress=1.0, noise=Noise(noise)).loss_sum


def logits_of(model):
    model.eval()
    with torch.no_grad():
        return model.logits(model.features(BATCH.tokens, torch.full((4,), 0.5)).final.flatten(0, 1))


def weights_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def is_adapter(name):
    return ".lora_" in name


@pytest.mark.parametrize("optimizer", [AdamW(lr=1e-2, weight_decay=0.1), Muon(weight_decay=0.1)], ids=["adamw", "muon"])
def test_only_adapters_learn_and_merged_they_are_a_plain_model_that_predicts_the_same(model, optimizer):
    plain = deepcopy(model)
    Lora(rank=4).apply(model)
    before, first = weights_of(model), loss_of(model).item()
    optimizers = optimizer.build(model.train())
    for _ in range(20):
        loss_of(model).backward()
        for one in optimizers:
            one.step()
            one.zero_grad()
    assert loss_of(model).item() < 0.9 * first
    for name, weight in weights_of(model).items():
        assert torch.equal(weight, before[name]) != is_adapter(name), name

    adapted = logits_of(model)
    assert (adapted - logits_of(plain)).abs().nan_to_num().max() > 0.1
    Lora(rank=4).merge(model)
    assert (logits_of(model) - adapted).abs().nan_to_num().max() < 1e-5
    assert repr(model) == repr(plain)
    assert vars(model).keys() == vars(plain).keys()
    assert list(weights_of(model)) == list(weights_of(plain))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_adapters_change_nothing_at_first_and_all_of_them_get_gradients(model):
    before = logits_of(model)
    Lora().apply(model)
    assert torch.equal(logits_of(model), before)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_adapter(name):
                parameter.normal_()
    loss_of(model.train()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == is_adapter(name)
        assert (parameter.grad is not None and parameter.grad.any()) == is_adapter(name), name


def test_adapters_stand_beside_every_map_that_is_called(model):
    Lora(rank=2).apply(model)
    beside = {name.split(".lora_")[0].split(".")[-1] for name in weights_of(model) if is_adapter(name)}
    assert beside == ({"qkv", "up", "out", "down"} if model.time_conditioned else {"qkv", "up"})
    stacks = [model.stack] if hasattr(model, "stack") else [model.anchor, model.denoiser]
    blocks = sum(len(stack.blocks) for stack in stacks)
    assert sum(map(is_adapter, weights_of(model))) == 2 * len(beside) * blocks


def test_the_seed_decides_the_adapters(model):
    drawn = []
    for seed in (0, 0, 1):
        copy = deepcopy(model)
        torch.manual_seed(seed)
        Lora().apply(copy)
        drawn.append(torch.cat([weight.flatten() for name, weight in weights_of(copy).items() if "lora_A" in name]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.usefixtures("_peft")
def test_an_adapted_model_is_saved_as_an_ordinary_folder_with_its_averages(tmp_path):
    config = ModelConfig(NETWORKS["two"], VOCABULARY, Wrapped(12))
    model = config.build()
    Lora().apply(model)
    ema = Ema(model, 0.9)
    assert all(map(is_adapter, ema.mean))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_adapter(name):
                parameter.normal_()
    ema.update(model)
    with ema.applied(model):
        expected = logits_of(model)
        merged = deepcopy(model)
    Lora().merge(merged)
    save_model(tmp_path, merged, config, TOKENIZER)
    loaded, _, _ = load_model(tmp_path)
    assert torch.allclose(logits_of(loaded), expected, atol=1e-5)
    assert any(map(is_adapter, weights_of(model)))  # and the run can go on


@pytest.mark.usefixtures("_peft")
def test_a_frozen_stage_leaves_the_adapters_of_the_other():
    model = NETWORKS["two"].build(VOCABULARY)
    Lora().apply(model)
    freeze(model, ("anchor",))
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert learning
    assert all(name.startswith("denoiser.") and is_adapter(name) for name in learning)


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with raises(MissingExtra, subject="lora"):
        Lora().apply(NETWORKS["one"].build(VOCABULARY))


@pytest.mark.parametrize("values", [{"rank": 0}, {"alpha": 0.0}, {"dropout": 1.0}, {"dropout": -0.1}], ids=str)
def test_impossible_adapters_are_refused(values):
    with raises(OutOfRange, subject=f"adapters.{next(iter(values))}"):
        Lora(**values)


def test_adapters_can_be_stored():
    assert from_json(Lora, to_json(Lora(4, 8.0, 0.1))) == Lora(4, 8.0, 0.1)
