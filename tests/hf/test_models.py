"""Networks of this package as models of transformers."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")

import adlm.hf  # noqa: E402
from adlm.errors import ConfigError, ModelError, UnknownName  # noqa: E402
from adlm.hf import modeling_adlm, wrapped  # noqa: E402
from adlm.models.io import ModelConfig  # noqa: E402
from adlm.models.transformers_causal import TransformersCausalConfig  # noqa: E402
from adlm.text_model import TextModel  # noqa: E402
from tests.errors import raises  # noqa: E402
from tests.hf.made import CAUSAL, LENGTH, MASKED, NETWORKS, WORDS, rows_of, text_model_of  # noqa: E402

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
    assert isinstance(again, adlm.hf.AdlmCausalLM if name in CAUSAL else adlm.hf.AdlmMaskedLM)
    ours, theirs = dict(model.network.named_parameters()), dict(again.network.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    tokens = rows_of(name)
    # The same numbers at other addresses may be added up in another order.
    torch.testing.assert_close(again(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)
    assert again.generation_config.max_length == model.generation_config.max_length


@pytest.mark.parametrize("name", NETWORKS)
def test_transformers_loads_what_a_text_model_saves(name, tmp_path):
    model = text_model_of(name)
    model.save(tmp_path)
    loaded = AUTO[name].from_pretrained(tmp_path)
    ours, theirs = dict(model.network.named_parameters()), dict(loaded.network.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert loaded.model_config == model.config
    assert loaded.generation_config.max_length == LENGTH + (name in CAUSAL)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = adlm.hf.fast_tokenizer(model.tokenizer, model.config.packing, causal=name in CAUSAL)
    text = "the [MASK] cat"
    assert tokenizer(text).input_ids == expected(text).input_ids
    assert tokenizer.padding_side == expected.padding_side
    assert tokenizer.mask_token_id == model.tokenizer.mask_id
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == "the cat"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_text_model_loads_what_transformers_saves(name, tmp_path):
    model = text_model_of(name)
    model.save(tmp_path / "ours")
    AUTO[name].from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    for file in ("tokenizer.json", "tokenizer_roles.json"):
        shutil.copy(tmp_path / "ours" / file, tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        again = adlm.load(tmp_path / folder)
        assert again.config == model.config
        assert again.tokenizer.fingerprint == model.tokenizer.fingerprint
        assert again.generate("the cat", seed=3) == model.generate("the cat", seed=3)


def test_a_folder_that_version_0_1_exported_is_read_by_both(tmp_path):
    model = text_model_of("adlm")
    model.save(tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    for name in ("format", "kind", "vocabulary"):
        del data[name]
    data["rows"] = data.pop("packing")
    data["network"]["anchor"]["reread"] = data["network"]["anchor"].pop("input_reinjection")
    (tmp_path / "config.json").write_text(json.dumps({**data, "transformers_version": "5.0.0", "dtype": "float32"}))
    weights = load_file(tmp_path / "model.safetensors")
    save_file({f"network.{key}": value for key, value in weights.items()}, tmp_path / "model.safetensors")
    assert adlm.load(tmp_path).config == model.config
    tokens = rows_of("adlm")
    expected = wrapped(model)(tokens).logits
    for kind in (transformers.AutoModelForMaskedLM, modeling_adlm.AdlmForMaskedLM):
        torch.testing.assert_close(kind.from_pretrained(tmp_path)(tokens).logits, expected, rtol=0, atol=1e-5)


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
    with raises(ConfigError, subject="input_ids"):
        causal(torch.zeros(1, 3, dtype=torch.long))
    with raises(ConfigError, subject="attention_mask"):
        masked(rows_of("adlm"), attention_mask=torch.tensor([[1, 0, 1, 1, 1, 1, 1]] * 3))
    with raises(UnknownName, name="inputs_embeds"):
        masked(rows_of("adlm"), inputs_embeds=torch.zeros(1))
    masked.save_pretrained(tmp_path)
    with raises(ConfigError, subject="AutoModelForMaskedLM"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with raises(ModelError):
        adlm.hf.add_remote_code(tmp_path / "nothing")


def test_a_network_of_transformers_own_is_saved_without_a_model_type(tmp_path):
    model = text_model_of("ar")
    architecture = {"model_type": "gpt2", "n_embd": 8, "n_head": 1, "n_layer": 1, "n_positions": 16}
    network = TransformersCausalConfig(json.dumps(architecture | {"vocab_size": model.config.vocabulary.size}))
    config = ModelConfig(network, model.config.vocabulary, model.config.packing)
    theirs = TextModel(config.build(), config, model.tokenizer)
    theirs.save(tmp_path)
    assert "model_type" not in json.loads((tmp_path / "config.json").read_text())
    assert adlm.load(tmp_path).config == config
    for refused in (lambda: wrapped(theirs), lambda: adlm.hf.export(theirs, tmp_path)):
        with raises(ConfigError, subject="TransformersCausalConfig"):
            refused()
    with raises(ConfigError, subject=str(tmp_path)):
        adlm.hf.add_remote_code(tmp_path)


def test_a_folder_that_lacks_weights_is_refused(tmp_path):
    text_model_of("adlm").save(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["hand_over.gate.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with raises(ModelError, subject="weight"):
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
