from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from adlm.errors import UnknownName
from adlm.models.costs import count_parameters, forward_work, training_work
from adlm.models.hand_over import Continued, Hidden, Logits, Probabilities
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.sizes import KINDS, SIZES, published
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from tests.errors import raises

GPT2 = Vocabulary(50_258, 50_257)


def test_the_small_models_have_the_published_number_of_parameters():
    assert round(count_parameters(published("mdlm", "small"), GPT2).total / 1e6) == 170
    assert round(count_parameters(published("adlm", "small"), GPT2).total / 1e6) == 293


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_every_name_builds(kind, size):
    vocabulary = Vocabulary(100, 99)
    assert count_parameters(published(kind, size), vocabulary).total > 0
    with torch.device("meta"):
        model = published(kind, size).build(vocabulary)
        assert model.causal == (kind in ("ar", "a2r"))
        assert model.features(torch.zeros(1, 8, dtype=torch.long)).final.shape == (1, 8, SIZES[size].width)


def test_counts_are_those_of_the_built_network():
    network = TwoStageConfig(StackConfig(width=16, heads=2, layers=2), 1, tied=True)
    counted = count_parameters(network, Vocabulary(50, 49))
    assert counted.total == sum(p.numel() for p in network.build(Vocabulary(50, 49)).parameters())
    assert counted.vocabulary == 2 * 50 * 16 + 2 * 50  # the embedding, which is the heads; the hand-over; two biases


STACK = StackConfig(width=32, heads=2, layers=3)
NETWORKS = [
    OneStageConfig(STACK),
    *(TwoStageConfig(STACK, 1, h) for h in (Logits(), Probabilities(), Hidden(), Continued())),
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: type(getattr(n, "hand_over", n)).__name__)
def test_the_work_is_what_torch_counts(network):
    vocabulary, length = Vocabulary(70, 69), 16
    model = network.build(vocabulary)
    tokens = torch.zeros(2, length, dtype=torch.long)
    # The fused attention of a CPU is not counted by torch; the plain one is.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        output_mask = torch.zeros(2, length, dtype=torch.bool)
        output_mask[:, :5] = True
        model.logits(model.features(tokens, output_mask=output_mask).final)
    expected = forward_work(network, vocabulary, length).forward(2 * length, 10)
    assert counter.get_total_flops() == expected


BLOCKS = replace(STACK, attention="block")
BLOCK_NETWORKS = {
    "plain": OneStageConfig(BLOCKS, block_size=4),
    "shifted": OneStageConfig(BLOCKS, block_size=4, shift=True),
    "anchored": TwoStageConfig(BLOCKS, 2, block_size=8),
    "towers": TwoStageConfig(replace(STACK, attention="causal"), 1, Hidden(), block_size=4, denoiser_attention="block"),
}


@pytest.mark.parametrize("length", [16, 30])
@pytest.mark.parametrize("name", BLOCK_NETWORKS)
def test_the_work_of_two_copies_is_what_torch_counts(name, length):
    network, vocabulary = BLOCK_NETWORKS[name], Vocabulary(70, 69)
    size = network.block_size
    model = network.build(vocabulary)
    clean = torch.zeros(2, length, dtype=torch.long)
    noisy = torch.full_like(clean, 69)
    # As many blocks whose last token is visible as there are on average.
    blocks = -(-length // size)
    for block in range(round(blocks * (size - 1) / (2 * size))):
        noisy[:, size * block + size - 1] = 0
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        output_mask = torch.zeros_like(clean, dtype=torch.bool)
        output_mask[:, :5] = True
        model.logits(model.features(noisy, clean=clean, output_mask=output_mask).final)
    expected = forward_work(network, vocabulary, length).forward(2 * length, 10)
    assert counter.get_total_flops() == pytest.approx(expected, abs=length)


def test_blocks_of_a_row_and_of_one_token_cost_what_masked_and_left_to_right_models_do():
    vocabulary = Vocabulary(70, 69)
    masked, causal = (OneStageConfig(replace(STACK, attention=attention)) for attention in ("full", "causal"))
    plain, shifted = BLOCK_NETWORKS["plain"], BLOCK_NETWORKS["shifted"]
    assert forward_work(plain, vocabulary, 32, 0) == forward_work(masked, vocabulary, 32)
    assert forward_work(shifted, vocabulary, 32, 1) == forward_work(causal, vocabulary, 32)
    half = training_work(plain, vocabulary, length=32, rows=4, block_sizes=(0, 4))
    parts = [training_work(plain, vocabulary, length=32, rows=4, block_sizes=(size,)) for size in (0, 4)]
    assert half == pytest.approx(sum(parts) / 2)
    assert 1.5 < parts[1] / parts[0] < 2.2


def test_a_training_step_is_three_forward_passes():
    network, vocabulary = NETWORKS[0], Vocabulary(70, 69)
    work = forward_work(network, vocabulary, 16)
    step = training_work(network, vocabulary, length=16, rows=4, scored=0.5)
    assert step == 3 * (64 * work.token + 32 * (work.output + work.logits))
    anchored = training_work(network, vocabulary, length=16, rows=4, scored=0.5, anchors=0.25)
    assert anchored == step + 3 * 16 * work.logits


def test_unknown_names_are_met_with_known_ones():
    with raises(UnknownName, subject="adml", known=sorted(KINDS)):
        published("adml", "small")
    with raises(UnknownName, subject="large", known=sorted(SIZES)):
        published("adlm", "large")
