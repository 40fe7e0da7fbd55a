"""Reading in blocks: two copies at once, one block after another from a cache, and the sizes in between."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from adlm.errors import ConfigError
from adlm.models.hand_over import Continued, Hidden
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_copies import block_numbers
from adlm.models.two_stage import TwoStageConfig
from tests.errors import raises

VOCABULARY = Vocabulary(11, 10)
MASK = VOCABULARY.mask_id
STACK = StackConfig(width=16, heads=2, layers=2, attention="block")
TOWERS = replace(STACK, attention="causal")
NETWORKS = {
    "plain": OneStageConfig(STACK, block_size=4),
    "shifted": OneStageConfig(STACK, block_size=4, shift=True),
    "convolution": OneStageConfig(replace(STACK, convolution=3), block_size=4),
    "shifted convolution": OneStageConfig(replace(STACK, convolution=3), block_size=4, shift=True),
    "adaptive": OneStageConfig(replace(STACK, condition=8, query_key_norm=True), block_size=4),
    "positions": OneStageConfig(STACK, positions=20, block_size=4, shift=True),
    "anchored": TwoStageConfig(STACK, 2, block_size=4),
    "shifted anchored": TwoStageConfig(replace(STACK, convolution=2), 2, Hidden(), block_size=4, shift=True),
    "adapters": OneStageConfig(replace(STACK, adapter_rank=3), block_size=4),
    "shifted adapters": OneStageConfig(replace(STACK, adapter_rank=3, mlp="swiglu"), block_size=4, shift=True),
    "anchored adapters": TwoStageConfig(
        replace(STACK, adapter_rank=2, condition=8, convolution=3), 2, Continued(), block_size=4, shift=True
    ),
    "towers": TwoStageConfig(TOWERS, 1, Hidden(), block_size=4, denoiser_attention="block"),
    "tower convolution": TwoStageConfig(
        replace(TOWERS, convolution=3), 2, Hidden(), block_size=4, denoiser_attention="block"
    ),
}


def built(network):
    torch.manual_seed(0)
    model = network.build(VOCABULARY).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def rows(count, length, masked=0.5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    clean = torch.randint(10, (count, length), generator=generator)
    hidden = torch.rand(count, length, generator=generator) < masked
    return clean, clean.masked_fill(hidden, MASK)


@pytest.mark.parametrize("length", [16, 18])
@pytest.mark.parametrize("name", NETWORKS)
def test_all_blocks_at_once_are_each_block_after_its_clean_past(name, length):
    model = built(NETWORKS[name])
    clean, noisy = rows(3, length)
    together = model.features(noisy, clean=clean).final
    cache = model.finished_blocks(3, length)
    with model.inference_weights():
        for start in range(0, length, 4):
            row = clean.clone()
            row[:, start:] = MASK
            row[:, start : start + 4] = noisy[:, start : start + 4]
            uncached = model.features(row).final[:, start : start + 4]
            cached = model.read_block(row, [start] * 3, cache).final.view(3, 4, -1)
            torch.testing.assert_close(uncached, together[:, start : start + 4])
            torch.testing.assert_close(cached[:, : length - start], uncached)  # beyond the row, it is blank


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_at_different_blocks_share_a_pass(name):
    model = built(NETWORKS[name])
    clean, noisy = rows(4, 16)
    starts = torch.tensor([8, 0, 12, 4])
    begin = starts.tolist()
    together = model.features(noisy, clean=clean).final
    cache = model.finished_blocks(4, 16)
    for some in ([0, 2], [1, 2, 3], [3]):
        mixed = clean.clone()
        for row, start in enumerate(starts.tolist()):
            mixed[row, start : start + 4] = noisy[row, start : start + 4]
        asked = torch.zeros_like(mixed, dtype=torch.bool)
        asked[torch.arange(4), starts + 1] = True
        found = model.read_block(
            mixed[some], [begin[row] for row in some], cache, rows=some, output_mask=asked[some]
        ).final
        torch.testing.assert_close(found, together[some, starts[some] + 1])


@pytest.mark.parametrize("name", ["shifted", "shifted convolution", "positions", "shifted anchored", "towers"])
def test_blocks_of_one_token_are_left_to_right(name):
    model = built(NETWORKS[name])
    clean, _ = rows(2, 12)
    left = model.in_blocks(1)
    assert left.causal
    assert left.cache_kind == "tokens"
    blocks = block_numbers(12, 1, None, clean.device)
    noisy = torch.full_like(clean, MASK)
    expected = model.features(noisy, clean=clean, blocks=blocks).final
    torch.testing.assert_close(left.features(clean).final, expected)
    cache = left.cache(2, 12)
    torch.testing.assert_close(left.extend(clean[:, :-1], cache, every=True).final, expected)


def test_one_block_of_all_is_full_attention():
    model = built(NETWORKS["plain"])
    _, noisy = rows(2, 12)
    whole = model.in_blocks(0)
    assert whole.attention == "full"
    assert whole.cache_kind is None
    blocks = block_numbers(12, 12, None, noisy.device)
    torch.testing.assert_close(model.features(noisy, blocks=blocks).final, whole.features(noisy).final)


@pytest.mark.parametrize("name", ["shifted", "shifted anchored"])
def test_a_shifted_row_sees_all_of_its_known_tokens(name):
    model = built(NETWORKS[name]).in_blocks(0)
    clean, _ = rows(1, 8)
    noisy = clean.clone()
    noisy[:, :4] = MASK
    before = model.features(noisy).final
    for position in range(4, 8):  # the last one too, which no position of the row reads
        other = noisy.clone()
        other[:, position] = (other[:, position] + 1) % 10
        assert not torch.allclose(model.features(other).final[:, 0], before[:, 0])


def test_sizes_may_differ_between_rows():
    for name in ("plain", "convolution", "shifted convolution", "anchored", "towers"):
        model = built(NETWORKS[name])
        clean, noisy = rows(3, 12)
        sizes = torch.tensor([1, 4, 6])
        together = model.features(noisy, clean=clean, blocks=block_numbers(12, sizes, None, noisy.device)).final
        for row, size in enumerate(sizes.tolist()):
            blocks = block_numbers(12, size, None, noisy.device)
            alone = model.features(noisy[row, None], clean=clean[row, None], blocks=blocks).final
            torch.testing.assert_close(together[row, None], alone)


@pytest.mark.parametrize("name", NETWORKS)
def test_documents_of_a_row_and_padding_do_not_meet(name):
    model = built(NETWORKS[name])
    clean, noisy = rows(1, 20)
    segments = torch.tensor([[3] * 8 + [5] * 8 + [-1] * 4])
    together = model.features(noisy, clean=clean, segments=segments).final
    for start, end in pairwise([0, 8, 16]):
        alone = model.features(noisy[:, start:end], clean=clean[:, start:end]).final
        torch.testing.assert_close(together[:, start:end], alone)


@pytest.mark.parametrize("name", [name for name in NETWORKS if "tower" not in name])
def test_one_block_of_a_padded_row_is_its_text_alone(name):
    """Blocks that are not told of padding, as those of whole rows in training."""
    model = built(NETWORKS[name])
    clean, noisy = rows(2, 12)
    noisy[:, 7] = clean[:, 7]  # the last token of the text is known
    segments = torch.tensor([[0] * 8 + [-1] * 4] * 2)
    blocks = torch.zeros(2, 12, dtype=torch.long)
    padded = model.features(noisy, clean=clean, blocks=blocks, segments=segments).final[:, :8]
    torch.testing.assert_close(padded, model.in_blocks(0).features(noisy[:, :8]).final)


def test_output_positions_are_those_of_the_whole_table():
    for name, network in NETWORKS.items():
        model = built(network)
        clean, noisy = rows(3, 12)
        asked = noisy == MASK
        features, whole = model.features(noisy, clean=clean, output_mask=asked), model.features(noisy, clean=clean)
        torch.testing.assert_close(features.final, whole.final[asked], msg=name)
        if whole.anchor is not None:
            assert features.anchor.shape == whole.anchor.shape == (3, 12, 16)


def test_the_first_of_two_towers_does_not_see_the_block():
    model = built(NETWORKS["towers"])
    clean, noisy = rows(2, 12)
    _, other = rows(2, 12, seed=5)
    torch.testing.assert_close(model.features(noisy, clean=clean).anchor, model.features(other, clean=clean).anchor)
    cache = model.finished_blocks(2, 12)
    start = [4, 4]
    first = model.read_block(clean, start, cache)
    noisy[:, :4] = clean[:, :4]
    again = model.read_block(noisy, start, cache, stage=first.stage)
    fresh = model.read_block(noisy, start, cache)
    torch.testing.assert_close(again.final, fresh.final)


def test_gradients_reach_every_weight():
    for name, network in NETWORKS.items():
        model = network.build(VOCABULARY)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        clean, noisy = rows(2, 12)
        asked = noisy == MASK
        features = model.features(noisy, clean=clean, output_mask=asked)
        loss = model.logits(features.final).log_softmax(-1)[:, 0].sum()
        if features.anchor is not None:
            loss = loss + model.anchor_logits(features.anchor).log_softmax(-1)[..., 0].sum()
        loss.backward()
        without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert not without, (name, without)


def test_what_does_not_fit_together_is_refused():
    with raises(ConfigError, subject="block_size"):
        OneStageConfig(STACK)
    with raises(ConfigError, subject="block_size"):
        OneStageConfig(replace(STACK, attention="full"), block_size=4)
    with raises(ConfigError, subject="timed"):
        replace(STACK, condition=8, timed=True)
    with raises(ConfigError, subject="hand_over"):
        TwoStageConfig(TOWERS, 1, Continued(), block_size=4, denoiser_attention="block")
    with raises(ConfigError, subject="denoiser_attention"):
        TwoStageConfig(STACK, 1, Hidden(), denoiser_attention="full")
    with raises(ConfigError, subject="block_size"):
        built(NETWORKS["plain"]).in_blocks(1)
    with raises(ConfigError, subject="block_size"):
        built(OneStageConfig(replace(STACK, attention="full"))).in_blocks(4)
    with raises(ConfigError, subject="attention"):
        built(OneStageConfig(replace(STACK, attention="full"))).finished_blocks(1, 8)
