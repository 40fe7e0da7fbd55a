"""Draft and verify: the law of the left-to-right reading, in fewer passes where the drafts are good."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from adlm.errors import ConfigError, OutOfRange
from adlm.models.hand_over import Continued, Hidden
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.randomness import Noise
from adlm.samplers.canvas import Canvas
from adlm.samplers.draft_and_verify import DraftAndVerify
from adlm.samplers.filters import RepetitionPenalty, Sites, Temperature, TopK
from tests.errors import raises
from tests.samplers.processes import assert_drawn_from

VOCABULARY = Vocabulary(4, 3)
MASK = 3
STACK = StackConfig(width=16, heads=2, layers=2, attention="block")
NETWORKS = {
    "plain": OneStageConfig(STACK, block_size=4, shift=True),
    "convolution": OneStageConfig(replace(STACK, convolution=3), block_size=4, shift=True, start=1),
    "anchored": TwoStageConfig(STACK, 1, Continued(), block_size=4, shift=True),
    "towers": TwoStageConfig(replace(STACK, attention="causal"), 1, Hidden(), block_size=4, denoiser_attention="block"),
}


def built(name):
    torch.manual_seed(1)
    model = NETWORKS[name].build(VOCABULARY).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def canvas(count, length, prompt=(), first=0):
    tokens = torch.full((count, length), MASK)
    tokens[:, : len(prompt)] = torch.tensor(prompt, dtype=torch.long)
    return Canvas(tokens, tokens != MASK, torch.arange(first, first + count))


def exact_law(model, length, filters=()):
    """[3^L]: of the left-to-right reading, each position filtered as it is drawn."""
    texts = torch.tensor(list(product(range(3), repeat=length)))
    with torch.no_grad():
        logits = model.in_blocks(1)(texts)
    law = torch.ones(len(texts), dtype=torch.float64)
    for position in range(length):
        seen = texts.clone()
        seen[:, position:] = MASK
        sites = Sites(seen, torch.arange(len(texts)), torch.full((len(texts),), position))
        each = logits[:, position]
        for filter_ in filters:
            each = filter_(each, sites)
        law *= each.double().softmax(-1).gather(-1, texts[:, position : position + 1])[:, 0]
    return law


def numbered(tokens):
    return (tokens * 3 ** torch.arange(tokens.shape[1] - 1, -1, -1)).sum(-1)


@pytest.mark.parametrize("name", NETWORKS)
def test_texts_follow_the_law_of_the_left_to_right_reading(name):
    model = built(name)
    sample = DraftAndVerify().sample(model, canvas(6000, 6), noise=Noise(0))
    assert_drawn_from(exact_law(model, 6), numbered(sample.tokens))


@pytest.mark.parametrize(
    "filters", [(Temperature(0.6),), (TopK(2),), (RepetitionPenalty(1.8), Temperature(1.3))], ids=["t", "k", "r"]
)
def test_filters_act_as_from_left_to_right(filters):
    model = built("plain")
    sample = DraftAndVerify(filters).sample(model, canvas(6000, 5), noise=Noise(0))
    assert_drawn_from(exact_law(model, 5, filters), numbered(sample.tokens))


@pytest.mark.parametrize("name", NETWORKS)
def test_given_tokens_among_the_blanks_do_not_change_the_law_of_what_is_left_of_them(name):
    """A rejected token may stand right before a given one, which nothing computed for the rejected one may outlive."""
    model, given, length = built(name), 2, 5
    blanks = canvas(6000, length)
    blanks.tokens[:, given], blanks.frozen[:, given] = 1, True
    sample = DraftAndVerify().sample(model, blanks, noise=Noise(0)).tokens
    texts = torch.tensor(list(product(range(3), repeat=length)))
    with torch.no_grad():
        each = model.in_blocks(1)(texts).double().softmax(-1).gather(-1, texts[..., None])[..., 0]
    each[:, given] = (texts[:, given] == 1).double()
    assert_drawn_from(each.prod(-1), numbered(sample))


def test_laws_in_slices_give_the_same_texts(monkeypatch):
    """What is kept of one slice is what is computed again of several, from the tokens as they were."""
    model, sampler = built("plain"), DraftAndVerify((RepetitionPenalty(1.8),))
    whole = sampler.sample(model, canvas(40, 9), noise=Noise(0)).tokens
    monkeypatch.setattr("adlm.samplers.state.SLICE", 3 * VOCABULARY.size)
    assert torch.equal(sampler.sample(model, canvas(40, 9), noise=Noise(0)).tokens, whole)


def test_the_test_has_power():
    """Without verification the drafts follow another law."""
    model = built("plain")

    class Draft(DraftAndVerify):
        def _verify(self, state, final, where, draft, attempts):
            return where, torch.zeros_like(where)

    sample = Draft().sample(model, canvas(6000, 4), noise=Noise(0))
    with pytest.raises(AssertionError):
        assert_drawn_from(exact_law(model, 4), numbered(sample.tokens))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_row_does_not_depend_on_its_batch(name):
    model = built(name)
    together = DraftAndVerify().sample(model, canvas(5, 11, (1, 2)), noise=Noise(0)).tokens
    assert bool((together[:, :2] == torch.tensor([1, 2])).all())
    assert not bool((together == MASK).any())
    for i in range(5):
        alone = DraftAndVerify().sample(model, canvas(1, 11, (1, 2), first=i), noise=Noise(0)).tokens
        assert torch.equal(alone[0], together[i])


def test_good_drafts_are_kept_and_passes_counted():
    """A network whose readings agree writes a block in two passes; the worst takes two for each token."""
    model = built("plain")
    with torch.no_grad():
        model.head.weight.zero_()
    agreeing = DraftAndVerify().sample(model, canvas(3, 16), noise=Noise(0))
    assert agreeing.network_calls == 3 * 2 * 4
    sample = DraftAndVerify().sample(built("plain"), canvas(3, 16), noise=Noise(0))
    assert 3 * 2 * 4 < sample.network_calls <= 3 * 2 * 16
    assert DraftAndVerify(block_size=8).sample(model, canvas(3, 16), noise=Noise(0)).network_calls == 3 * 2 * 2
    anchored = DraftAndVerify().sample(built("anchored"), canvas(2, 8), noise=Noise(0))
    assert anchored.anchor_calls == anchored.network_calls


def test_a_row_ends_at_the_stop_token_with_the_same_law():
    model, stop, length = built("plain"), 0, 5
    sample = DraftAndVerify().sample(model, canvas(6000, length), noise=Noise(0), stop=stop).tokens
    ended = (sample == stop).long().cumsum(-1) > 0
    assert bool((sample[ended] == stop).all())
    law = torch.zeros(length + 1, dtype=torch.float64)
    texts = torch.tensor(list(product(range(3), repeat=length)))
    before_stop = ((texts == stop).long().cumsum(-1) == 0).sum(-1)
    law.index_add_(0, before_stop, exact_law(model, length))
    assert_drawn_from(law, (sample != stop).sum(-1))


def test_models_that_cannot_are_refused():
    unshifted = OneStageConfig(STACK, block_size=4).build(VOCABULARY)
    full = OneStageConfig(replace(STACK, attention="full")).build(VOCABULARY)
    for model in (unshifted, full):
        with raises(ConfigError, subject="DraftAndVerify"):
            DraftAndVerify().sample(model, canvas(1, 8), noise=Noise(0))
    with raises(OutOfRange, subject="block_size"):
        DraftAndVerify(block_size=1)
