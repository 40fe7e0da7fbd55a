"""Networks of this package as models of transformers."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

import adlm.hf  # noqa: E402
from adlm.errors import ConfigError, ModelError, UnknownName  # noqa: E402
from adlm.hf.folder import wrapped  # noqa: E402
from adlm.models.io import ModelConfig  # noqa: E402
from adlm.models.transformers_causal import TransformersCausalConfig  # noqa: E402
from tests.hf.made import CAUSAL, MASKED, NETWORKS, WORDS, rows_of, text_model_of  # noqa: E402

AUTO = {
    **dict.fromkeys(CAUSAL, transformers.AutoModelForCausalLM),
    **dict.fromkeys(MASKED, transformers.AutoModelForMaskedLM),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_saved_and_loaded_is_equal_to_the_bit(name, tmp_path):
    model = wrapped(text_model_of(name))
    model.save_pretrained(tmp_path)
    again = AUTO[name].from_pretrained(tmp_path)
    assert isinstance(transformers.AutoConfig.from_pretrained(tmp_path), adlm.hf.AdlmConfig)
    ours, theirs = dict(model.network.named_parameters()), dict(again.network.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    tokens = rows_of(name)
    # The same numbers at other addresses may be added up in another order.
    torch.testing.assert_close(again(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)
    assert again.generation_config.max_length == model.generation_config.max_length


@pytest.mark.parametrize("name", NETWORKS)
def test_a_text_model_comes_back_whole(name, tmp_path):
    model = text_model_of(name)
    adlm.hf.export(model, tmp_path / "new")
    again = adlm.hf.text_model(tmp_path / "new")
    assert again.config == model.config
    assert again.tokenizer.roles == model.tokenizer.roles
    assert again.generate("the cat", seed=3) == model.generate("the cat", seed=3)


@pytest.mark.parametrize("name", MASKED)
def test_logits_of_masked_models_are_the_networks(name):
    model, tokens = wrapped(text_model_of(name)), rows_of(name)
    t = (tokens == WORDS.mask_id).float().mean(-1)
    network = model.network
    expected = network.logits(network.features(tokens, t if network.time_conditioned else None).final)
    assert torch.equal(model(tokens).logits, expected)


@pytest.mark.parametrize("name", CAUSAL)
def test_logits_of_left_to_right_models_are_of_the_token_after(name):
    model, rows = wrapped(text_model_of(name)), rows_of(name)
    network, texts = model.network, rows[:, 1:]
    expected = network.logits(network.features(texts).final)
    torch.testing.assert_close(model(rows).logits[:, :-1], expected)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["ar", "a2r", "mdlm", "adlm", "sedd"])
def test_padding_changes_nothing(name, side):
    model, tokens = wrapped(text_model_of(name)), rows_of(name)
    lengths = [7, 4, 5]
    padded, mask = torch.zeros_like(tokens), torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        where = slice(7 - length, 7) if side == "left" else slice(0, length)
        padded[row, where], mask[row, where] = tokens[row, :length], 1
    logits = model(padded, attention_mask=mask).logits
    for row, length in enumerate(lengths):
        alone = model(tokens[row : row + 1, :length]).logits[0]
        torch.testing.assert_close(logits[row][mask[row].bool()], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_reading_on_with_a_cache_gives_the_same_logits(name):
    model, rows = wrapped(text_model_of(name)), rows_of(name)
    mask = torch.ones_like(rows)
    mask[0, :2] = 0
    rows[0, 2] = WORDS.mask_id
    whole = model(rows, attention_mask=mask).logits
    first = model(rows[:, :4], attention_mask=mask[:, :4], use_cache=True)
    past, parts = first.past_key_values, [first.logits]
    for start, end in ((4, 5), (5, 7)):
        parts.append(model(rows[:, start:end], attention_mask=mask[:, :end], past_key_values=past).logits)
    seen = mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[seen], whole[seen], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": False, "num_beams": 3}])
def test_transformers_generate_is_the_same_with_a_cache_and_without(options):
    model = wrapped(text_model_of("a2r"))
    rows = rows_of("a2r", length=4)
    results = [model.generate(rows, use_cache=cached, **options) for cached in (True, False)]
    assert torch.equal(*results)
    assert results[0].shape[1] <= 13


def test_losses_are_mean_cross_entropies_of_what_is_scored():
    masked, causal = wrapped(text_model_of("adlm")), wrapped(text_model_of("ar"))
    tokens = rows_of("adlm")
    labels = torch.where(tokens == WORDS.mask_id, 3, -100)
    output = masked(tokens, labels=labels)
    expected = -output.logits.log_softmax(-1)[..., 3][labels == 3].mean()
    torch.testing.assert_close(output.loss, expected)
    output.loss.backward()
    assert masked.network.embedding.tokens.weight.grad.abs().sum() > 0
    rows = rows_of("ar")
    output = causal(rows, labels=rows)
    expected = -output.logits[:, :-1].log_softmax(-1).gather(-1, rows[:, 1:, None]).mean()
    torch.testing.assert_close(output.loss, expected)


def test_what_makes_no_sense_is_refused(tmp_path):
    causal, masked = wrapped(text_model_of("ar")), wrapped(text_model_of("adlm"))
    with pytest.raises(ConfigError, match="do not begin with the token"):
        causal(torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ConfigError, match="it has gaps"):
        masked(rows_of("adlm"), attention_mask=torch.tensor([[1, 0, 1, 1, 1, 1, 1]] * 3))
    with pytest.raises(UnknownName, match="inputs_embeds"):
        masked(rows_of("adlm"), inputs_embeds=torch.zeros(1))
    masked.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="use AutoModelForMaskedLM"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"no config\.json"):
        adlm.hf.text_model(tmp_path / "nothing")
    model = text_model_of("ar")
    network = TransformersCausalConfig('{"model_type": "gpt2"}')
    with pytest.raises(ConfigError, match="one of that library already"):
        adlm.hf.AdlmConfig.of(
            ModelConfig(network, model.config.vocabulary, model.config.packing), model.tokenizer.roles
        )


def test_a_folder_that_lacks_weights_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    wrapped(text_model_of("adlm")).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["network.hand_over.gate.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="no weights for weight of a Linear"):
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
