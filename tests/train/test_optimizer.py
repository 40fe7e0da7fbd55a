from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn

import adlm.train.muon as muon_module
from adlm.errors import OutOfRange
from adlm.models.hand_over import Continued, Hidden, Logits, Probabilities
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.train.ema import Ema
from adlm.train.muon import MuonOptimizer, orthogonalised
from adlm.train.optimizers import AdamW, Muon
from tests.errors import raises

VOCABULARY = Vocabulary(13, 12)
STACK = StackConfig(width=8, heads=2, layers=2, convolution=3, condition=4)
TWO = TwoStageConfig(STACK, 1, positions=6)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def groups_of(config, model):
    return [group for optimizer in config.build(model) for group in optimizer.param_groups]


@pytest.mark.parametrize("config", [AdamW(), Muon()], ids=["adamw", "muon"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("hand_over", [Continued(), Hidden(), Logits(), Probabilities()], ids=repr)
def test_every_parameter_that_learns_is_in_one_group_under_its_name(config, tied, hand_over):
    model = replace(TWO, tied=tied, hand_over=hand_over).build(VOCABULARY)
    model.embedding.positions.requires_grad_(False)
    groups = groups_of(config, model)
    pairs = [pair for group in groups for pair in zip(group["param_names"], group["params"], strict=True)]
    names = [name for name, _ in pairs]
    assert sorted(names) == sorted(name for name, p in model.named_parameters() if p.requires_grad)
    assert all(model.get_parameter(name) is parameter for name, parameter in pairs)


@pytest.mark.parametrize("config", [AdamW(weight_decay=0.1), Muon(weight_decay=0.1)], ids=["adamw", "muon"])
def test_weight_decay_is_for_matrices_of_maps_and_heads_alone(config):
    decaying = {
        name
        for group in groups_of(config, TWO.build(VOCABULARY))
        for name in group["param_names"]
        if group["weight_decay"]
    }
    maps = ("qkv", "out", "up", "down", "modulation")
    expected = {f"anchor.blocks.{i}.{name}.weight" for i in range(2) for name in maps}
    expected |= {f"denoiser.blocks.0.{name}.weight" for name in maps}
    outside = ("modulation", "time.first", "time.second")
    expected |= {f"{stack}.{name}.weight" for stack in ("anchor", "denoiser") for name in outside}
    assert decaying == expected | {"hand_over.project.weight", "anchor_head.weight", "head.weight"}


def test_a_tied_head_is_an_embedding_and_does_not_decay():
    model = replace(TWO, tied=True).build(VOCABULARY)
    before = model.head.weight.detach().clone(), model.denoiser.blocks[0].up.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    (adamw,) = AdamW(lr=0.1, weight_decay=0.5).build(model)
    adamw.step()
    assert torch.equal(model.head.weight, before[0])
    assert torch.allclose(model.denoiser.blocks[0].up.weight, 0.95 * before[1])


@pytest.mark.parametrize("kind", [AdamW, Muon], ids=["adamw", "muon"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_embeddings_may_have_a_rate_of_their_own_and_a_tied_head_goes_with_them(kind, tied):
    model = replace(TWO, tied=tied).build(VOCABULARY)
    config = kind(lr=1e-3, weight_decay=0.1, embedding_lr=1e-2)
    rates = {name: group["lr"] for group in groups_of(config, model) for name in group["param_names"]}
    plain = {name: group["lr"] for group in groups_of(kind(lr=1e-3), model) for name in group["param_names"]}
    assert {name for name in rates if rates[name] != plain[name]} == {"embedding.tokens.weight"}
    assert rates["embedding.tokens.weight"] == 1e-2
    assert model.head.weight is model.embedding.tokens.weight or not tied
    with raises(OutOfRange, subject="embedding_lr"):
        kind(embedding_lr=0.0)


def test_muon_takes_the_matrices_of_the_stacks_and_adamw_the_rest():
    muon, adamw = Muon().build(TWO.build(VOCABULARY))
    (group,) = muon.param_groups
    assert all(".blocks." in name and name.endswith(".weight") for name in group["param_names"])
    assert all(parameter.ndim == 2 for parameter in group["params"])
    assert len(group["params"]) == 3 * 5
    assert all(group["fused"] for group in adamw.param_groups)


@pytest.mark.parametrize(("learning", "kinds"), [("head", ["AdamW"]), ("stack.blocks.0.up.weight", ["MuonOptimizer"])])
def test_an_optimiser_that_would_have_nothing_to_do_is_not_made(learning, kinds):
    model = OneStageConfig(STACK).build(VOCABULARY)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(learning))
    assert [type(optimizer).__name__ for optimizer in Muon().build(model)] == kinds


def test_orthogonalised_matrices_have_singular_values_near_one():
    for shape in ((20, 50), (64, 16)):
        values = torch.linalg.svdvals(torch.stack(orthogonalised([drawn(*shape, seed=i) for i in range(3)])))
        assert values.min() > 0.3
        assert values.max() < 1.4


def iterated(x):
    """The iteration as it is published, in float64."""
    if len(x) > x.shape[1]:
        return iterated(x.T).T
    x = x.double() / x.double().norm()
    for _ in range(5):
        s = x @ x.T
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
    return x


def test_iterating_the_small_square_equals_iterating_the_matrix():
    """Also with singular values over six orders of magnitude, of which the squares keep three."""
    u, _, v = torch.linalg.svd(drawn(24, 60), full_matrices=False)
    matrices = [drawn(24, 60), drawn(60, 24), drawn(24, 24), (u * torch.logspace(0, -6, 24)) @ v]
    for matrix, ours in zip(matrices, orthogonalised(matrices), strict=True):
        expected = iterated(matrix)
        assert (ours - expected).norm() < 1e-3 * expected.norm()


def test_muon_equals_the_one_in_torch(monkeypatch):
    """It computes in bfloat16, so the updates agree to its precision."""
    monkeypatch.setattr(muon_module, "_multiplies_bf16", lambda device: True)
    first, second = nn.Parameter(drawn(24, 12)), nn.Parameter(drawn(24, 12))
    ours = MuonOptimizer([first], lr=0.1)
    theirs = torch.optim.Muon([second], lr=0.1, weight_decay=0.0)
    for step in range(3):
        for parameter, optimizer in ((first, ours), (second, theirs)):
            parameter.grad = drawn(24, 12, seed=step + 1)
            optimizer.step()
    assert (first - second).abs().max() < 0.01
    assert (first - second).norm() < 0.01 * second.norm()


def test_how_many_matrices_muon_does_at_a_time_makes_no_difference(monkeypatch):
    results = []
    for at_once in (1 << 25, 2 * 6 * 4, 1):
        monkeypatch.setattr(muon_module, "_AT_ONCE", at_once)
        matrices = [nn.Parameter(drawn(6, 4, seed=i)) for i in range(5)] + [nn.Parameter(drawn(4, 6))]
        for i, matrix in enumerate(matrices):
            matrix.grad = drawn(*matrix.shape, seed=10 + i)
        MuonOptimizer(matrices, lr=0.1).step()
        results.append(torch.cat([matrix.detach().flatten() for matrix in matrices]))
    assert torch.allclose(results[0], results[1], atol=1e-6)
    assert torch.allclose(results[0], results[2], atol=1e-6)


class Small(nn.Module):
    """Sizes that two processes cannot share out evenly, and a real block."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stack = replace(STACK, condition=0).build()
        self.first, self.second = nn.Linear(8, 7), nn.Linear(7, 8)

    def forward(self, x):
        return self.second(self.first(self.stack(x)[1]))


def trained(model, part_of):
    """Weights, averages and what the averages predict after steps by known gradients."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    optimizers = [MuonOptimizer(matrices, lr=0.1, weight_decay=0.1), torch.optim.AdamW(others, lr=0.1, fused=True)]
    ema = Ema(model, 0.5)
    for step in range(3):
        for i, parameter in enumerate(model.parameters()):
            parameter.grad = part_of(drawn(*parameter.shape, seed=100 * step + i), parameter)
        for optimizer in optimizers:
            optimizer.step()
        ema.update(model)
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    x = drawn(2, 5, 8)
    with torch.no_grad():
        own = model(x)
        with ema.applied(model):
            averaged = model(x)
        assert torch.equal(model(x), own)
    assert not torch.allclose(own, averaged)
    return {**weights, **{f"mean {name}": mean for name, mean in ema.mean.items()}, "own": own, "averaged": averaged}


def in_parts(rank, folder):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor

    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = Small()
    for block in model.stack.blocks:
        fully_shard(block)
    fully_shard(model, reshard_after_forward=True)
    found = trained(
        model, lambda whole, like: distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    )
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    whole = {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in found.items()}
    torch.save(whole, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_muon_and_averages_of_a_model_in_parts_on_two_processes_are_those_of_a_whole_one(tmp_path):
    multiprocessing.spawn(in_parts, (tmp_path,), nprocs=2)
    expected = trained(Small(), lambda whole, like: whole)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert (found[name] - value).abs().max() < 1e-6, name
