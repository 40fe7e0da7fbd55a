"""Gradients written by hand are those of autograd."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import adlm.models.hand_gradients as module
from adlm.models import block, hand_second_half, layers
from adlm.models.layers import Layout, ShortConvolution, attend, paired_queries_keys_values, queries_keys_values
from adlm.models.stack import StackConfig

ROWS, LENGTH, HEADS, WIDTH = 3, 7, 2, 6
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0] * 7, [0, 0, 0, 0, 0, -1, -1]])
APART = (SEGMENTS[:, :, None] != SEGMENTS[:, None])[:, None]
TRIANGLE = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


@pytest.fixture
def both_ways(monkeypatch):
    """Computes a function by hand and by autograd: results and gradients of each."""

    def compute(function, *inputs):
        found = []
        for hand in (True, False):
            with monkeypatch.context() as patch:
                if not hand:
                    patch.setattr(layers, "by_hand", lambda x: False)
                    patch.setattr(block, "by_hand", lambda x: False)
                    patch.setattr(layers, "short_rows", lambda q, k: False)
                outputs = function(*inputs)
                outputs = outputs if isinstance(outputs, tuple) else (outputs,)
                weights = [torch.arange(y.numel(), dtype=y.dtype).view(y.shape).cos() for y in outputs]
                total = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
                assert isinstance(total, torch.Tensor)
                found.append((*outputs, *torch.autograd.grad(total, inputs)))
        return zip(*found, strict=True)

    return compute


@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["whole", "segments"])
@pytest.mark.parametrize("shifted", [False, True], ids=["centred", "left"])
@pytest.mark.parametrize("size", [2, 5, 9])
def test_convolution(both_ways, segments, shifted, size):
    convolution = ShortConvolution(WIDTH, size).double()
    layout = Layout(torch.empty(0), torch.empty(0), segments, None, shifted=shifted)

    def function(x, weight):
        return torch.func.functional_call(convolution, {"weight": weight}, (x, layout))

    for hand, plain in both_ways(function, drawn(ROWS, LENGTH, WIDTH), drawn(size, WIDTH, seed=1)):
        torch.testing.assert_close(hand, plain)


@pytest.mark.parametrize("rows", [(), (ROWS,)], ids=["same angles", "angles by row"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("counts", [(2, 2, 2), (4, 2, 1)])
def test_queries_keys_and_values(both_ways, rows, normalize, counts):
    angles = drawn(*rows, LENGTH, 1, 1, WIDTH // 2, seed=1).detach()
    layout = Layout(angles.cos(), angles.sin(), None, None)

    inputs = drawn(ROWS, LENGTH, 5), drawn(sum(counts) * WIDTH, 5, seed=2), drawn(sum(counts) * WIDTH, seed=3)
    hand = paired_queries_keys_values(*inputs, layout, counts, normalize=normalize)
    products = F.linear(*inputs).unflatten(-1, (-1, WIDTH))
    plain = queries_keys_values(products, layout, counts, normalize=normalize)
    order = torch.arange(WIDTH).view(2, -1).T.flatten()  # of channels: pairs side by side
    plain = (plain[0][..., order], plain[1][..., order], plain[2])
    slopes = [torch.arange(y.numel(), dtype=y.dtype).view(y.shape).cos() for y in plain]
    for found, expected in zip(hand, plain, strict=True):
        torch.testing.assert_close(found, expected)
    for found, expected in zip(*(torch.autograd.grad(y, inputs, slopes) for y in (hand, plain)), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("causal", "hidden"),
    [(False, None), (True, TRIANGLE), (True, None), (False, APART), (False, APART | TRIANGLE)],
    ids=["all", "causal", "causal without a mask", "segments", "both"],
)
@pytest.mark.parametrize("scores", [1 << 18, 1])
def test_attention(both_ways, monkeypatch, causal, hidden, scores):
    monkeypatch.setattr(module, "_SCORES", scores)

    def function(q, k, v):
        return attend(q, k, v, causal=causal, hidden=hidden)

    qkv = [drawn(ROWS, HEADS, LENGTH, WIDTH, seed=i) for i in range(3)]
    for hand, plain in both_ways(function, *qkv):
        torch.testing.assert_close(hand, plain)


def test_queries_may_be_fewer_than_keys(both_ways):
    qkv = drawn(ROWS, HEADS, 2, WIDTH), *(drawn(ROWS, HEADS, LENGTH, WIDTH, seed=i) for i in (1, 2))
    for hand, plain in both_ways(lambda q, k, v: attend(q, k, v, causal=False, hidden=APART[:, :, :2]), *qkv):
        torch.testing.assert_close(hand, plain)


def test_under_autocast_attention_is_as_near_as_the_library_to_float64():
    q, k, v = (drawn(ROWS, HEADS, LENGTH, WIDTH, seed=i, dtype=torch.float32) for i in range(3))
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    with torch.autocast("cpu", torch.bfloat16):
        ours = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), causal=False, hidden=None)
        theirs = F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert (ours - exact).norm() < 1.05 * (theirs - exact).norm()
    ours.sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("biases", ["none", "mlp", "all"])
@pytest.mark.parametrize("condition", [0, 4])
def test_what_follows_attention(both_ways, monkeypatch, count, biases, condition):
    monkeypatch.setattr(hand_second_half, "_SLICE", 100)
    torch.manual_seed(0)
    made = StackConfig(12, 2, 1, biases=biases, condition=condition).build().double().blocks[0]
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    given = None if not condition else drawn(1, condition, seed=2).detach()
    assert made._plain_second_half()

    def function(x, mixed, *_):
        return made._after_attention(x, mixed, made._folded(given))

    trained = [parameter for name, parameter in made.named_parameters() if "qkv" not in name and "norm_1" not in name]
    for hand, plain in both_ways(function, drawn(count, 12), drawn(count, 12, seed=1), *trained):
        torch.testing.assert_close(hand, plain)


def test_what_follows_attention_trains_adapters_alone(both_ways):
    torch.manual_seed(0)
    made = StackConfig(12, 2, 1, attention="block", adapter_rank=2).build().double().blocks[0]
    for name, parameter in made.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3)
        parameter.requires_grad_("adapters" in name)
    trained = [parameter for name, parameter in made.named_parameters() if "adapters" in name and "qkv" not in name]

    def function(x, mixed, *_):
        return made._after_attention(x, mixed, made._changed(made._folded(None)))

    for hand, plain in both_ways(function, drawn(5, 12), drawn(5, 12, seed=1), *trained):
        torch.testing.assert_close(hand, plain)


@pytest.mark.parametrize("attention", ["full", "causal"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_stack_computes_the_same_both_ways(both_ways, attention, dropout):
    torch.manual_seed(0)
    config = StackConfig(12, 2, 2, attention=attention, convolution=3, query_key_norm=True, condition=4)
    stack = replace(config, dropout=dropout).build().double().train()
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, std=0.3)

    def function(x):
        torch.manual_seed(1)
        return stack(x, segments=SEGMENTS)[1]

    for hand, plain in both_ways(function, drawn(ROWS, LENGTH, 12)):
        torch.testing.assert_close(hand, plain)


@pytest.mark.parametrize("shared", [False, True])
def test_a_convolution_over_neighbors_anywhere(shared):
    convolution = ShortConvolution(WIDTH, 3).double()
    torch.nn.init.normal_(convolution.weight)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64, requires_grad=True)
    neighbors = torch.randint(-1, 7, (1 if shared else 2, 3, 7), generator=torch.Generator().manual_seed(0))
    found = convolution._gathered(x, x, neighbors)
    with torch.no_grad():
        plain = convolution._gathered(x, x, neighbors)
    torch.testing.assert_close(found, plain)
    expected = x
    for k, weight in enumerate(convolution.weight):
        entry = neighbors[:, k, :, None]
        expected = expected + x.take_along_dim(entry.clamp_min(0), 1) * (entry >= 0) * weight
    torch.testing.assert_close(found, expected)
    slope = torch.randn(found.shape, dtype=found.dtype)
    inputs = (x, convolution.weight)
    for one, two in zip(*(torch.autograd.grad(y, inputs, slope) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, two)
