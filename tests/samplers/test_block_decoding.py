"""Writing with models that read blocks: any sampler inside a block, an exact cache, rows at blocks of their own."""

from dataclasses import replace

import pytest
import torch

from adlm.data.packing import Padded
from adlm.data.tokenizer import train_words
from adlm.errors import ConfigError
from adlm.models.hand_over import AnchorState, Hidden
from adlm.models.io import ModelConfig
from adlm.models.language_model import BlockFeatures
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.randomness import Noise
from adlm.samplers.ancestral import Ancestral
from adlm.samplers.blocks import Blocks
from adlm.samplers.canvas import Canvas
from adlm.samplers.left_to_right import LeftToRight
from adlm.samplers.named import named_samplers
from adlm.samplers.network import NetworkWrapper
from adlm.samplers.recording import RecordingNetwork
from adlm.text_model import TextModel
from tests.errors import raises

WORDS = train_words(["the cat sat on the mat", "the cat sat by the dog"] * 2)
VOCABULARY = Vocabulary(9, 8)
MASK, END = 8, 0
STACK = StackConfig(width=16, heads=2, layers=2, attention="block")
NETWORKS = {
    "plain": OneStageConfig(replace(STACK, convolution=3), block_size=4),
    "shifted": OneStageConfig(STACK, block_size=4, shift=True),
    "anchored": TwoStageConfig(STACK, 1, Hidden(), block_size=4, shift=True),
    "towers": TwoStageConfig(replace(STACK, attention="causal"), 1, Hidden(), block_size=4, denoiser_attention="block"),
}


def built(network, vocabulary=VOCABULARY):
    torch.manual_seed(1)
    model = network.build(vocabulary).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def canvas(prompts, length, first=0):
    tokens = torch.full((len(prompts), length), MASK)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt, dtype=torch.long)
    return Canvas(tokens, tokens != MASK, torch.arange(first, first + len(prompts)))


class Uncached(NetworkWrapper):
    """Reads whole rows, both copies, at every step: what the cache must agree with."""

    def read_block(self, tokens, start, cache, *, rows=None, output_mask=None, stage=None):
        tokens = tokens.clone()
        for row, begin in zip(tokens, start, strict=True):
            row[begin + self.block_size :] = MASK
        features = self.network.features(tokens, output_mask=output_mask)
        part = None
        if features.anchor is not None:
            index = torch.tensor(start)[:, None, None] + torch.arange(self.block_size + 1)[None, :, None]
            part = features.anchor.take_along_dim(index.clamp_max(tokens.shape[1] - 1), 1)
            part = AnchorState(part, part, part)
        return BlockFeatures(features.final, part)


PROMPTS = [[1, 2, 3, 4, 5], [3], [], [2, 2, 2, 2, 2, 2, 2, 2, 1]]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_cache_changes_nothing(name):
    model = built(NETWORKS[name])
    sampler = Blocks(inner=Ancestral(steps=5), size=4)
    ours = sampler.sample(model, canvas(PROMPTS, 16), noise=Noise(0))
    theirs = sampler.sample(Uncached(model), canvas(PROMPTS, 16), noise=Noise(0))
    assert torch.equal(ours.tokens, theirs.tokens)
    assert ours.network_calls == theirs.network_calls


@pytest.mark.parametrize("name", NETWORKS)
def test_a_row_does_not_depend_on_its_batch(name):
    model = built(NETWORKS[name])
    sampler = Blocks(inner=Ancestral(steps=3), size=4)
    together = sampler.sample(model, canvas(PROMPTS, 16), noise=Noise(0)).tokens
    for i, prompt in enumerate(PROMPTS):
        alone = sampler.sample(model, canvas([prompt], 16, first=i), noise=Noise(0)).tokens
        assert torch.equal(alone[0], together[i])


@pytest.mark.parametrize("sampler", sorted(named_samplers()))
def test_every_sampler_writes_in_blocks(sampler):
    for network in ("shifted", "anchored"):
        model, named = built(NETWORKS[network]), named_samplers()[sampler]
        if named.needs == "causal" or (named.needs == "two-stage" and network == "shifted"):
            continue
        made = named.make(**({"steps": 4} if "steps" in named.options else {}))
        start = canvas(PROMPTS, 14)
        sample = made.sample(model, start, noise=Noise(0))
        assert not bool((sample.tokens == MASK).any())
        assert torch.equal(sample.tokens[start.frozen], start.tokens[start.frozen])
        assert sample.network_calls > 0


def test_passes_are_counted_and_anchors_may_be_stale():
    model = built(NETWORKS["anchored"])
    fresh = Ancestral(steps=4).sample(model, canvas([[], []], 8), noise=Noise(0))
    assert fresh.anchor_calls == fresh.network_calls
    stale = Ancestral(steps=4, stale_anchors=3).sample(model, canvas([[], []], 8), noise=Noise(0))
    assert stale.anchor_calls < stale.network_calls
    alone = Ancestral(steps=4, stale_anchors=3).sample(model, canvas([[]], 8, first=1), noise=Noise(0))
    assert torch.equal(alone.tokens[0], stale.tokens[1])
    towers = Ancestral(steps=4).sample(built(NETWORKS["towers"]), canvas([[], []], 8), noise=Noise(0))
    assert towers.anchor_calls == 4  # once per row and block


def test_the_end_token_ends_the_work():
    model = built(NETWORKS["shifted"])
    model.head.bias.data[END] = 50.0
    sample = Ancestral(steps=4).sample(model, canvas([[1], [2]], 64), noise=Noise(0), stop=END)
    assert sample.network_calls <= 2 * 4
    assert bool((sample.tokens[:, 4:] == END).all())


def test_one_network_decodes_from_left_to_right_in_blocks_and_whole():
    model = built(NETWORKS["shifted"])
    left = LeftToRight().sample(model.in_blocks(1), canvas(PROMPTS, 12), noise=Noise(0)).tokens
    assert torch.equal(LeftToRight().sample(model, canvas(PROMPTS, 12), noise=Noise(0)).tokens, left)
    assert torch.equal(Blocks(size=1).sample(model, canvas(PROMPTS, 12), noise=Noise(0)).tokens, left)
    whole = Ancestral(steps=6).sample(model.in_blocks(0), canvas(PROMPTS, 12), noise=Noise(0)).tokens
    assert torch.equal(
        Blocks(inner=Ancestral(steps=6), size=0).sample(model, canvas(PROMPTS, 12), noise=Noise(0)).tokens, whole
    )
    two = Blocks(inner=Ancestral(steps=6), size=2).sample(model, canvas(PROMPTS, 12), noise=Noise(0)).tokens
    assert not torch.equal(two, whole)


def text_model(sizes=(4,), attention="block"):
    vocabulary = Vocabulary(WORDS.vocab_size, WORDS.mask_id)
    network = OneStageConfig(replace(STACK, attention=attention), block_size=4, shift=True)
    run = {"objective": {"kind": "Nelbo", "corruption": {"kind": "BlockMasking", "sizes": list(sizes)}}}
    return TextModel(built(network, vocabulary), ModelConfig(network, vocabulary, Padded(16), run), WORDS)


def test_texts_may_be_longer_than_the_rows_of_training():
    model = text_model()
    (text,) = model.generate("the cat", max_new_tokens=50, stop=False)
    assert len(WORDS.encode(text)) > 30
    assert model.generate("the cat", max_new_tokens=50, stop=False, n=2)[0] == text
    assert model.generate("the cat", block_size=1) == model.in_blocks(1).generate("the cat")


def test_holes_need_a_model_that_has_read_whole_rows():
    with raises(ConfigError, subject="text"):
        text_model().infill("the [MASK] sat")
    whole = text_model((1, 4, 0))
    assert whole.block_sizes == (1, 4, 0)
    (text,) = whole.infill("the [MASK:2] sat")
    assert text.startswith("the ")
    assert text.endswith(" sat")
    surest = whole.infill("the [MASK:2] sat", sampler="confidence", tokens_per_step=1)
    assert whole.infill("the [MASK:2] sat", sampler="draft-and-verify") == surest
    assert text_model().infill("the cat [MASK:3]")[0].startswith("the cat")
    with raises(ConfigError, subject="suffix"):
        text_model().generate("the", suffix=" sat")
    assert text_model().score("the cat sat").nats.mean > 0


def test_predictions_at_all_blanks_of_a_block_are_recorded():
    model, start = built(NETWORKS["anchored"]), canvas([[1, 2]], 8)
    seen = []
    network = RecordingNetwork(model, start, seen.append)
    sampler = Blocks(inner=Ancestral(steps=4), size=4)
    recorded = sampler.sample(network, start, noise=Noise(0)).tokens
    assert torch.equal(recorded, sampler.sample(model, start, noise=Noise(0)).tokens)
    assert seen[0].positions == [2, 3]
    assert seen[-1].positions[-1] >= 4
    assert all(each.anchor is not None and len(each.anchor) == len(each.positions) for each in seen)


def test_what_follows_is_seen_by_a_model_that_has_read_whole_rows():
    whole = text_model((1, 4, 0))
    (text,) = whole.generate("the cat", suffix=" mat", max_new_tokens=2)
    assert text.startswith("the cat")
    assert text.endswith(" mat")
    assert whole.score("the cat sat", span="cat") == whole.in_blocks(0).score("the cat sat", span="cat")
    with raises(ConfigError, subject="span"):
        text_model().score("the cat sat", span="cat")
