import math
from dataclasses import replace

import pytest
import torch

import adlm.train.muon as muon_module
from adlm.data.loader import LoaderConfig
from adlm.data.packing import Wrapped
from adlm.data.prepare import prepare
from adlm.data.tokenizer import characters
from adlm.diffusion.corruption import CountMasking
from adlm.errors import TrainingError
from adlm.models.hand_over import Continued, Logits
from adlm.models.language_model import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy
from adlm.train.muon import MuonOptimizer, orthogonalised
from adlm.train.optimizer import AdamW, Muon
from adlm.train.rates import StableDecay
from adlm.train.trainer import TrainConfig, train
from tests.conftest import Texts

TOKENIZER = characters("abcdefgh")
VOCABULARY = Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id)
STACK = StackConfig(width=32, heads=2, layers=2, convolution=3)
CONFIG = TrainConfig(steps=60, rate=StableDecay(5), optimizer=Muon(lr=5e-3))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    text = Texts(("abcdefgh" * 400,))
    return prepare(text, "train", TOKENIZER, Wrapped(16), cache=tmp_path_factory.mktemp("data"))


def run(shards, network=None, objective=None, config=CONFIG):
    torch.manual_seed(0)
    model = (network or OneStageConfig(STACK, tied=True)).build(VOCABULARY)
    reports = []
    train(model, objective or Nelbo(CountMasking()), LoaderConfig(16).build(shards), config, watch=reports.append)
    return model, reports


@pytest.mark.parametrize(
    ("network", "objective"),
    [
        (OneStageConfig(replace(STACK, causal=True), tied=True), CrossEntropy()),
        (OneStageConfig(STACK, tied=True), Nelbo(CountMasking())),
        (TwoStageConfig(STACK, 1, Continued(), tied=True), Anelbo(CountMasking(), gamma=0.05)),
        (TwoStageConfig(STACK, 1, Logits()), Anelbo(CountMasking(), gamma=0.05)),
    ],
    ids=["AR", "MDLM", "ADLM continued", "ADLM logits"],
)
def test_every_model_learns_a_pattern(shards, network, objective):
    _, reports = run(shards, network, objective, replace(CONFIG, steps=120))
    start, end = reports[0].bound, sum(r.bound for r in reports[-10:]) / 10
    assert start > 1.8
    # A row holds one of eight phases: log 8 / 16 = 0.13 nats a token is the least possible.
    assert end < 0.8


def test_the_same_seed_gives_the_same_weights_and_another_does_not(shards):
    weights = []
    for seed in (0, 0, 1):
        model, _ = run(shards, config=replace(CONFIG, steps=5, seed=seed))
        weights.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_averaged_weights_are_kept_when_asked(shards):
    last, _ = run(shards, config=replace(CONFIG, steps=8))
    mean, _ = run(shards, config=replace(CONFIG, steps=8, ema=0.9))
    assert not torch.equal(last.embedding.tokens.weight, mean.embedding.tokens.weight)
    assert (last.embedding.tokens.weight - mean.embedding.tokens.weight).norm() < last.embedding.tokens.weight.norm()


def test_a_loss_that_is_not_finite_stops_before_the_step(shards):
    torch.manual_seed(0)
    model = OneStageConfig(STACK).build(VOCABULARY)
    with torch.no_grad():
        model.embedding.tokens.weight[0] = math.nan
    before = model.stack.blocks[0].qkv.weight.clone()
    with pytest.raises(TrainingError, match=r"step 0\n.*samples \["):
        train(model, Nelbo(CountMasking()), LoaderConfig(16).build(shards), CONFIG)
    assert torch.equal(model.stack.blocks[0].qkv.weight, before)


def test_orthogonalised_matrices_have_singular_values_near_one():
    for shape in ((3, 20, 50), (2, 64, 16)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
        assert values.min() > 0.3
        assert values.max() < 1.4


def test_muon_equals_the_one_in_torch(monkeypatch):
    """Where torch has one. It computes in bfloat16, so the updates agree to its precision."""
    monkeypatch.setattr(muon_module, "bf16_is_fast", lambda device: True)
    first, second = (torch.nn.Parameter(torch.randn(24, 12, generator=torch.Generator().manual_seed(0))) for _ in "ab")
    ours = MuonOptimizer([first], lr=0.1)
    theirs = torch.optim.Muon([second], lr=0.1, weight_decay=0.0)
    for step in range(3):
        gradient = torch.randn(24, 12, generator=torch.Generator().manual_seed(step + 1))
        for parameter, optimizer in ((first, ours), (second, theirs)):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert (first - second).abs().max() < 0.01
    assert (first - second).norm() < 0.01 * second.norm()


def test_muon_takes_the_matrices_of_the_stacks_and_adamw_the_rest():
    model = TwoStageConfig(STACK, 1).build(VOCABULARY)
    muon, adamw = Muon().build(model)
    count = [sum(p.numel() for g in o.param_groups for p in g["params"]) for o in (muon, adamw)]
    assert sum(count) == sum(p.numel() for p in model.parameters())
    assert all(p.ndim == 2 and min(p.shape) == 32 for g in muon.param_groups for p in g["params"])
    assert len(AdamW().build(model)) == 1
