"""Positions that read the model's own features: the values and gradients of whole rows computed for each thought."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.data.loader import read_rows
from adlm.data.synthetic import RandomRows, Synthetic
from adlm.errors import ConfigError, OutOfRange
from adlm.models.fed import fed_features, read_fed
from adlm.models.hand_over import AnchorState, Hidden
from adlm.models.layers import shift_right, starts_of
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.types import Features
from tests.errors import raises

VOCABULARY = Vocabulary(13, 12)
LENGTH = 12


def stack(**options):
    return StackConfig(width=8, heads=2, layers=2, attention="causal", **options)


CONFIGS = {
    "ar": OneStageConfig(stack()),
    "ar, convolution": OneStageConfig(stack(convolution=3, query_key_norm=True), tied=True),
    "ar, input_reinjection": OneStageConfig(stack(input_reinjection=1, convolution=2)),
    "ar, learned positions": OneStageConfig(stack(), positions=LENGTH + 8),
    "a2r": TwoStageConfig(stack(convolution=3, input_reinjection=1), 1),
    "a2r, folded": TwoStageConfig(stack(condition=4), 2, Hidden(), tied=True, positions=LENGTH + 8),
}


def built(config):
    """In double precision, with every parameter away from zero, where it starts for many."""
    model = config.build(VOCABULARY).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4)
    return model.eval()


MODELS = {name: built(config) for name, config in CONFIGS.items()}
TOKENS = torch.randint(0, 12, (3, LENGTH), generator=torch.Generator().manual_seed(1))
# Texts of which none, two and three positions on the left are padding, and none, none and two on the right.
PADDED = torch.tensor([[0] * 12, [-1] * 2 + [0] * 10, [-1] * 3 + [0] * 7 + [-1] * 2])


def reference(model, tokens, first, count, segments=None):
    """Whole rows of vectors, computed again for every thought with the vector that it reads replaced."""

    def read(vectors):
        embedded = model.embedding.add_positions(vectors, segments)
        if isinstance(model.config, OneStageConfig):
            return Features(model.stack(embedded, None, segments)[1])
        stage = AnchorState(embedded, *model.anchor(embedded, None, segments))
        return Features(model.denoiser(model.hand_over(stage, model.anchor_head), None, segments)[1], stage.anchor)

    vectors = model.embedding.tokens(shift_right(tokens, VOCABULARY.mask_id, segments))
    for column in range(first + 1, min(first + count + 1, tokens.shape[1])):
        said = read(vectors).final[:, column - 1]
        if segments is not None:
            said = torch.where(starts_of(segments)[:, column, None], vectors[:, column], said)
        vectors = torch.cat([vectors[:, :column], said[:, None], vectors[:, column + 1 :]], 1)
    return read(vectors)


def gradients(model, features, text):
    """Of a sum over the text in which every number counts differently."""
    weights = torch.linspace(-1, 1, features.final[text].numel(), dtype=torch.float64)
    loss = (features.final[text].flatten() * weights).sum()
    if features.anchor is not None:
        loss = loss + (features.anchor[text].flatten() * weights.flip(0)).sum()
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def same(one, two):
    return (one is None and two is None) or torch.allclose(one, two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("segments", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_those_of_computing_all_again_for_each_thought(name, count, segments):
    model = MODELS[name]
    text = torch.ones_like(TOKENS, dtype=torch.bool) if segments is None else segments >= 0
    found = fed_features(model, TOKENS, 5, count, segments=segments)
    expected = reference(model, TOKENS, 5, count, segments)
    assert same(found.final[text], expected.final[text])
    assert found.anchor is None or same(found.anchor[text], expected.anchor[text])
    pairs = zip(gradients(model, found, text), gradients(model, expected, text), strict=True)
    assert all(same(one, two) for one, two in pairs)
    plain = model.features(TOKENS, segments=segments).final
    assert same(found.final[text][:3], plain[text][:3])
    assert not same(found.final[:, 6], plain[:, 6])  # thoughts are not read as tokens


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    first=st.integers(0, LENGTH - 1),
    thoughts=st.integers(0, 4),
    lefts=st.tuples(*[st.integers(0, 4)] * 3),
    rights=st.tuples(*[st.integers(0, 4)] * 3),
    chosen=st.lists(st.booleans(), min_size=3 * LENGTH, max_size=3 * LENGTH),
)
def test_padding_wanted_positions_and_company_change_nothing(name, first, thoughts, lefts, rights, chosen):
    model, columns = MODELS[name], torch.arange(LENGTH)
    count = min(thoughts, LENGTH - first)
    # Padding as far as it leaves the thoughts alone.
    starts = [min(left, first) for left in lefts]
    ends = [max(LENGTH - right, first + count, first + 1) for right in rights]
    text = torch.stack([(columns >= start) & (columns < end) for start, end in zip(starts, ends, strict=True)])
    segments = text.long() - 1
    output_mask = torch.tensor(chosen).view(3, LENGTH)
    with torch.no_grad():
        whole = fed_features(model, TOKENS, first, count, segments=segments).final
        some = fed_features(model, TOKENS, first, count, segments=segments, output_mask=output_mask & text).final
        assert same(some, whole[output_mask & text])
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            alone = fed_features(model, TOKENS[row : row + 1, start:end], first - start, count).final[0]
            assert same(whole[row, start:end], alone)


@pytest.mark.parametrize("name", ["ar", "a2r"])
def test_no_thoughts_are_plain_features_to_the_bit(name):
    model = MODELS[name]
    for segments in (None, PADDED):
        found = fed_features(model, TOKENS, 4, 0, segments=segments).final
        assert torch.equal(found, model.features(TOKENS, segments=segments).final)


def test_a_segment_that_begins_after_a_thought_does_not_read_it():
    segments = torch.tensor([[0] * 6 + [1] * 6])
    model = MODELS["ar, convolution"]
    found = fed_features(model, TOKENS[:1], 5, 1, segments=segments).final
    assert same(found, model.features(TOKENS[:1], segments=segments).final)


@pytest.mark.parametrize("first", [0, 5, LENGTH - 3])
def test_every_position_is_computed_once_and_thoughts_one_by_one(first):
    model, passes = MODELS["a2r"], []
    hooks = [
        block.register_forward_pre_hook(lambda _, x: passes.append(x[0].shape[1])) for block in model.denoiser.blocks
    ]
    fed_features(model, TOKENS, first, 3)
    assert passes == [n for n in (first + 1, 1, 1, LENGTH - first - 3) if n]
    for hook in hooks:
        hook.remove()


def test_weights_that_are_derived_from_others_are_derived_once(monkeypatch):
    hand_over, made = MODELS["a2r"].hand_over, []
    derive = hand_over._joint
    monkeypatch.setattr(hand_over, "_joint", lambda head: made.append(head) or derive(head))
    assert fed_features(MODELS["a2r"], TOKENS, 3, 3).final.requires_grad
    assert len(made) == 1
    fed_features(MODELS["a2r"], TOKENS, 3, 3)  # after which weights may change
    assert len(made) == 2


def test_gradients_are_the_same_where_activations_are_not_to_be_stored():
    model, text = MODELS["a2r"], torch.ones_like(TOKENS, dtype=torch.bool)
    expected = gradients(model, fed_features(model, TOKENS, 5, 2), text)
    model.train()
    model.checkpoint_activations()
    found = gradients(model, fed_features(model, TOKENS, 5, 2), text)
    model.checkpoint_activations(False)
    model.eval()
    assert all(same(one, two) for one, two in zip(found, expected, strict=True))


def left_padded(prompts):
    longest = max(map(len, prompts))
    rows = [[7] * (longest - len(prompt)) + prompt for prompt in prompts]
    segments = [[-1] * (longest - len(prompt)) + [0] * len(prompt) for prompt in prompts]
    return torch.tensor(rows), torch.tensor(segments)


def greedy(model, prompts, thoughts, new=6):
    """Texts that go on from prompts which end in so many thoughts and one more token, and the states at thoughts."""
    tokens, segments = left_padded(prompts)
    cache = model.cache(len(prompts), tokens.shape[1] + new, segments=segments if len(prompts) > 1 else None)
    if thoughts is None:
        final = states = model.extend(tokens, cache).final
    else:
        states = read_fed(model, tokens, tokens.shape[1] - 1 - thoughts, thoughts, cache).final
        final = states[:, -1]
    written = []
    for _ in range(new):
        written.append(model.logits(final).argmax(-1))
        if len(written) < new:
            final = model.extend(written[-1][:, None], cache).final
    return torch.stack(written, 1), states


PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11], [3, 1, 4, 1, 5, 9], [2, 7, 1, 8]]


@pytest.mark.parametrize("thoughts", [None, 0, 1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_texts_written_together_are_those_written_alone(name, thoughts):
    model = MODELS[name]
    with model.inference_weights():
        together, states = greedy(model, PROMPTS, thoughts)
        for row, prompt in enumerate(PROMPTS):
            alone, state = greedy(model, [prompt], thoughts)
            assert torch.equal(together[row], alone[0])
            assert same(states[row], state[0])


@pytest.mark.parametrize("name", ["ar, convolution", "a2r"])
def test_states_read_for_writing_are_those_of_training(name):
    model, more = MODELS[name], torch.tensor([[1], [2], [3], [4]])
    tokens, segments = left_padded(PROMPTS)
    rows, positions = (torch.cat([x, y.expand(-1, 3)], 1) for x, y in ((tokens, more), (segments, segments[:, -1:])))
    with torch.no_grad():
        whole = fed_features(model, rows, 3, 2, segments=positions).final
    cache = model.cache(4, 12, segments=segments)
    assert same(read_fed(model, tokens, 3, 2, cache).final, whole[:, [4, 5, 7]])
    assert same(model.extend(more, cache).final, whole[:, 8])
    cache.keep(torch.tensor([False, True, False, True]))
    assert same(model.extend(more[[1, 3]], cache).final, whole[[1, 3], 9])


def test_where_nothing_follows_the_thoughts_the_last_is_the_end():
    model = MODELS["ar"]
    states = read_fed(model, TOKENS, LENGTH - 2, 2, model.cache(3, LENGTH + 1)).final
    assert states.shape == (3, 3, 8)
    assert torch.equal(states[:, 1], states[:, 2])


def test_what_makes_no_sense_is_refused():
    model = MODELS["ar"]
    with raises(OutOfRange, subject="thoughts"):
        fed_features(model, TOKENS, 10, 3)
    with raises(ConfigError, subject="attention"):
        fed_features(OneStageConfig(StackConfig(width=8, heads=2, layers=1)).build(VOCABULARY), TOKENS, 1, 1)
    with raises(ConfigError, subject="segments"):
        model.cache(3, LENGTH, segments=PADDED)
    cache = model.cache(3, LENGTH)
    model.extend(TOKENS[:, :2], cache)
    with raises(ConfigError, subject="cache"):
        read_fed(model, TOKENS[:, 2:], 1, 1, cache)


class Told(RandomRows):
    """Rows of which some positions have a second thing to predict."""

    def targets(self, rows):
        return np.where(np.arange(self.length) == 2, rows[:, None], -1)


def test_targets_travel_with_their_rows():
    data, rows = Synthetic(13, 4, 16), np.array([5, 2, 9])
    batch = read_rows(Told(data, "train", 16), rows).to("cpu")
    expected = torch.tensor([[-1, -1, row, -1] for row in rows.tolist()])
    assert torch.equal(batch.targets, expected)
    assert torch.equal(torch.cat([part.targets for part in batch.split(2)]), expected)
    assert read_rows(RandomRows(data, "train", 16), rows).targets is None
