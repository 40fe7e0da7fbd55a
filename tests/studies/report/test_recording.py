import pytest
import torch

from adlm.data.packing import Padded
from adlm.data.tokenizer import train_bpe, train_words
from adlm.errors import ConfigError
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.text_model import TextModel
from adlm_studies.report.page import player_data
from adlm_studies.report.recording import record_generation
from tests.errors import raises

WORDS = train_words(["the cat sat on the mat.\n the dog sat on the log."])
BYTES = train_bpe(["the cat sat. 猫犬"] * 3, 280)


def built(tokenizer=WORDS, *, stages=1, causal=False, timed=False, length=16) -> TextModel:
    torch.manual_seed(0)
    stack = StackConfig(
        width=16, heads=2, layers=1, attention="causal" if causal else "full", timed=timed, condition=8 if timed else 0
    )
    network = OneStageConfig(stack) if stages == 1 else TwoStageConfig(stack, denoiser_layers=1)
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)
    model = network.build(vocabulary).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # so that every token matters to every other
    return TextModel(
        model, ModelConfig(network, vocabulary, Padded(length, begin=False, predict_padding=True)), tokenizer
    )


def canvas(player, last=None) -> list:
    """The tokens after a frame, as the page puts them together."""
    tokens = [None] * player.length
    for i, text in player.given:
        tokens[i] = text
    for frame in player.frames[: None if last is None else last + 1]:
        for i, text in frame.tokens:
            tokens[i] = text
    return tokens


def shown(player) -> str:
    return "".join(text or "" for text in canvas(player)).replace(" ", "").replace("<unk>", "").split("·")[0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_recording_ends_with_the_text_that_generate_writes(stages, causal):
    model = built(stages=stages, causal=causal)
    options = {} if causal else {"steps": 8}
    for seed in range(3):
        player = record_generation(model, title="t", prompt="the cat", seed=seed, **options)
        (text,) = model.generate("the cat", seed=seed, **options)
        assert shown(player) == text.replace(" ", "").replace("\n", "⏎")
        assert [text for _, text in player.given] == canvas(player, -1)[: len(player.given)]


def test_a_recording_begins_with_the_empty_canvas_and_what_is_expected_of_it():
    player = record_generation(built(stages=2), title="t", prompt="the cat", steps=8)
    first = player.frames[0]
    assert first.tokens == ()
    assert [i for i, _, _ in first.predictions] == [i for i, text in enumerate(canvas(player, 0)) if text is None]
    assert len(player.given) == 2


def test_predictions_stand_at_masked_positions_sorted_and_with_both_stages():
    player = record_generation(built(stages=2), title="t", predictions=4, steps=8)
    for number, frame in enumerate(player.frames):
        tokens = canvas(player, number)
        for i, anchor, final in frame.predictions:
            assert tokens[i] is None
            for ranking in (anchor, final):
                values = [p for _, p in ranking]
                assert len(values) == 4
                assert values == sorted(values, reverse=True)
                assert sum(values) <= 1.01
                assert all(p == round(p, 3) for p in values)


def test_predictions_are_those_of_the_network_without_the_mask():
    model = built(stages=2)
    player = record_generation(model, title="t", predictions=2, steps=8)
    masked = torch.full((1, player.length), WORDS.mask_id)
    with torch.no_grad():
        anchor_logits = model.network.anchor_logits(model.network.features(masked).anchor[0])
        final = model.network.logits(model.network.features(masked).final[0]).softmax(-1)
    anchor_logits[:, WORDS.mask_id] = -torch.inf
    anchor = anchor_logits.softmax(-1)
    for i, of_anchor, of_final in player.frames[0].predictions:
        assert [p for _, p in of_anchor] == pytest.approx(anchor[i].topk(2).values.tolist(), abs=6e-4)
        assert [p for _, p in of_final] == pytest.approx(final[i].topk(2).values.tolist(), abs=6e-4)


def test_one_stage_has_no_anchor_predictions_and_left_to_right_expects_only_the_next():
    one = record_generation(built(), title="t", steps=8)
    assert all(not anchor and final for frame in one.frames for _, anchor, final in frame.predictions)
    causal = record_generation(built(causal=True), title="t")
    for number, frame in enumerate(causal.frames):
        blank = [i for i, text in enumerate(canvas(causal, number)) if text is None]
        assert [i for i, _, _ in frame.predictions] in ([], blank[:1])


@pytest.mark.parametrize("frames", [2, 3, 5, 64])
def test_steps_are_merged_into_few_frames_with_the_same_end(frames):
    model = built(causal=True, length=32)
    whole, player = (
        record_generation(model, title="t", seed=1),
        record_generation(model, title="t", seed=1, frames=frames),
    )
    assert len(player.frames) <= frames
    assert canvas(player) == canvas(whole)


def test_a_prediction_that_barely_changes_is_not_told_again():
    model = built(stages=2)
    for parameter in model.network.parameters():
        torch.nn.init.zeros_(parameter)  # expects the same always
    player = record_generation(model, title="t", seed=1, steps=8)
    assert len(player.frames[0].predictions) == player.length
    assert not any(frame.predictions for frame in player.frames[1:])


def test_remasked_positions_are_masked_again():
    player = record_generation(built(), title="t", sampler="remdm-cap", eta=0.5, steps=12)
    assert any(text is None for frame in player.frames for _, text in frame.tokens)
    assert None not in canvas(player)


@pytest.mark.parametrize("options", [{"max_new_tokens": 3}, {"sampler": "confidence", "steps": 4}, {"stop": False}])
def test_options_are_those_of_generate(options):
    model = built()
    player = record_generation(model, title="t", prompt="the cat", **options)
    if "max_new_tokens" in options:
        assert player.length == 5
    assert None not in canvas(player)


def test_rows_beyond_the_models_length_and_timed_networks_are_recorded():
    long = record_generation(built(length=8, stages=2), title="t", max_new_tokens=24, block_size=4, steps=4)
    assert long.length > 8
    assert None not in canvas(long)
    assert any(frame.predictions for frame in long.frames[-3:])
    assert record_generation(built(timed=True), title="t", steps=4).frames[0].predictions


def test_parts_of_characters_and_marks_are_json():
    player = record_generation(built(BYTES), title="t", seed=3, steps=8)
    assert player_data(player)["length"] == player.length
    assert all(0 <= i < player.length for i in player.anchors)


def test_too_few_frames_are_refused():
    with raises(ConfigError, subject="frames"):
        record_generation(built(), title="t", frames=1)
