"""Causal networks of the library transformers: what they compute is theirs, how they are used is ours."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from adlm.config import from_json, to_json
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import characters
from adlm.errors import ConfigError, MissingExtra, ModelError, UnknownName
from adlm.models.fed import fed_features, read_fed
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.layers import shift_right
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.transformers_causal import TransformersCausalConfig, architecture_of
from adlm.objectives.objective import CrossEntropy
from adlm.randomness import Noise
from adlm.train.init import Init, Pretrained
from tests.conftest import batch_of
from tests.errors import raises

transformers = pytest.importorskip("transformers")

TOKENIZER = characters("abcdefghijklmnop")
SIZE, MASK = TOKENIZER.vocab_size, TOKENIZER.mask_id
VOCABULARY = Vocabulary(SIZE, MASK)
LENGTH = 10
ROTARY = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
GROUPED = {**ROTARY, "num_key_value_heads": 1, "head_dim": 8}
ARCHITECTURES = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24, "initializer_range": 0.3},
    "gpt_neox": ROTARY,
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "tie_word_embeddings": True},
}
CONFIGS = {
    kind: TransformersCausalConfig(json.dumps({"model_type": kind, **rest})) for kind, rest in ARCHITECTURES.items()
}
TOKENS = torch.randint(0, SIZE - 1, (3, LENGTH), generator=torch.Generator().manual_seed(1))
PADDED = torch.tensor([[0] * 10, [-1] * 2 + [0] * 8, [-1] * 3 + [0] * 5 + [-1] * 2])


def built(config):
    torch.manual_seed(0)
    return config.build(VOCABULARY).eval()


MODELS = {kind: built(config) for kind, config in CONFIGS.items()}


def close(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_logits_are_those_of_transformers_on_rows_that_begin_with_the_mask(kind):
    model = MODELS[kind]
    with torch.no_grad():
        theirs = model.network(input_ids=shift_right(TOKENS, MASK)).logits
        ours = model.logits(model.features(TOKENS).final.flatten(0, 1)).view_as(theirs)
    assert bool((ours[..., MASK] == -torch.inf).all())
    others = [index for index in range(SIZE) if index != MASK]
    assert close(ours[..., others], theirs[..., others])


def reference(model, tokens, first, count):
    """Whole rows of vectors, computed again by transformers for every thought."""
    vectors = model.network.get_input_embeddings()(shift_right(tokens, MASK))
    for column in range(first + 1, first + count + 1):
        said = model.network.base_model(inputs_embeds=vectors, use_cache=False).last_hidden_state[:, column - 1]
        vectors = torch.cat([vectors[:, :column], said[:, None], vectors[:, column + 1 :]], 1)
    return model.network.base_model(inputs_embeds=vectors, use_cache=False).last_hidden_state


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_thoughts_have_the_values_and_gradients_of_computing_all_again(kind, count):
    model = MODELS[kind]
    found, expected = fed_features(model, TOKENS, 4, count).final, reference(model, TOKENS, 4, count)
    assert close(found, expected)
    weights = torch.linspace(-1, 1, found.numel()).view_as(found)
    parameters = list(model.network.base_model.parameters())
    pairs = zip(*(torch.autograd.grad((x * weights).sum(), parameters) for x in (found, expected)), strict=True)
    for one, two in pairs:
        assert torch.allclose(one, two, rtol=1e-3, atol=1e-4 * float(two.abs().max()) + 1e-6)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("kind", MODELS)
def test_padding_and_wanted_positions_change_nothing(kind, count):
    model, text = MODELS[kind], PADDED >= 0
    output_mask = text & (torch.rand(3, LENGTH, generator=torch.Generator().manual_seed(2)) < 0.5)
    with torch.no_grad():
        whole = fed_features(model, TOKENS, 4, count, segments=PADDED).final
        assert close(
            fed_features(model, TOKENS, 4, count, segments=PADDED, output_mask=output_mask).final, whole[output_mask]
        )
        for row in range(3):
            start, end = text[row].nonzero()[[0, -1], 0].tolist()
            alone = fed_features(model, TOKENS[row : row + 1, start : end + 1], 4 - start, count).final[0]
            assert close(whole[row, start : end + 1], alone)


@pytest.mark.parametrize("kind", MODELS)
def test_rows_read_in_parts_have_the_features_of_whole_rows(kind):
    model = MODELS[kind]
    segments = torch.tensor([[0] * 6, [-1] * 2 + [0] * 4, [-1] * 3 + [0] * 3])
    cache = model.cache(3, LENGTH, segments=segments)
    whole_segments = torch.cat([segments, segments[:, -1:].expand(-1, 4)], 1)
    with torch.no_grad():
        whole = fed_features(model, TOKENS, 4, 1, segments=whole_segments).final
    assert close(read_fed(model, TOKENS[:, :6], 4, 1, cache).final, whole[:, 5:7])
    assert close(model.extend(TOKENS[:, 6:8], cache, every=True).final, whole[:, 7:9])
    cache.keep(torch.tensor([True, False, True]))
    assert close(model.extend(TOKENS[[0, 2], 8:9], cache).final, whole[[0, 2], 9])
    plain = model.cache(3, LENGTH)
    parts = [model.extend(part, plain, every=True).final for part in (TOKENS[:, :4], TOKENS[:, 4:9])]
    with torch.no_grad():
        assert close(torch.cat(parts, 1), model.features(TOKENS).final)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_training_lowers_the_loss_and_reaches_every_weight(kind):
    model = built(CONFIGS[kind]).train()
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for _ in range(4):
        terms = CrossEntropy()(model, batch_of(TOKENS), progress=0.0, noise=Noise(0))
        optimizer.zero_grad()
        (terms.loss_sum / terms.tokens).backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(float(terms.nll_sum))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_saved_model_comes_back_the_same(tmp_path, kind):
    config = ModelConfig(CONFIGS[kind], VOCABULARY, Wrapped(LENGTH))
    save_model(tmp_path, MODELS[kind], config, TOKENIZER)
    model, found, _ = load_model(tmp_path)
    assert found == config
    with torch.no_grad():
        assert torch.equal(model.features(TOKENS).final, MODELS[kind].features(TOKENS).final)


def saved_by_transformers(folder, kind, tokenizer=None, **changes):
    """A model with fewer tokens than the run has, as transformers saves it."""
    torch.manual_seed(3)
    ends = {"bos_token_id": 2, "eos_token_id": 5}
    settings = {**ARCHITECTURES[kind], "vocab_size": SIZE - 3, **ends, **changes}
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **settings))
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.backend.save(str(folder / "tokenizer.json"))
    return model.eval()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_pretrained_start_predicts_what_the_other_model_predicts_after_its_begin_token(tmp_path, kind):
    other = saved_by_transformers(tmp_path, kind)
    model = TransformersCausalConfig(architecture_of(tmp_path)).build(VOCABULARY).eval()
    Pretrained(str(tmp_path)).apply(model, TOKENIZER)
    tokens, known = TOKENS % (SIZE - 3), SIZE - 3
    with torch.no_grad():
        theirs = other(input_ids=shift_right(tokens, 2)).logits.flatten(0, 1)
        ours = model.logits(model.features(tokens).final.flatten(0, 1))
    assert close(ours[:, :known], theirs)
    rows, mean = model.network.get_input_embeddings().weight, other.get_input_embeddings().weight.mean(0)
    assert all(torch.allclose(rows[i], mean) for i in range(known, SIZE) if i != MASK)
    assert torch.equal(rows[MASK], other.get_input_embeddings().weight[2])
    head = model.network.get_output_embeddings().weight
    assert torch.allclose(head[known], other.get_output_embeddings().weight.mean(0))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_pretrained_start_refuses_what_does_not_fit(tmp_path):
    saved_by_transformers(tmp_path, "llama", tokenizer=characters("bacdefghijklmnop"))
    model = TransformersCausalConfig(architecture_of(tmp_path)).build(VOCABULARY)
    start = Pretrained(str(tmp_path))
    with raises(ModelError, subject="data.tokenizer"):
        start.apply(model, TOKENIZER)
    (tmp_path / "tokenizer.json").unlink()
    wrong = json.dumps({**json.loads(architecture_of(tmp_path)), "rms_norm_eps": 0.1})
    with raises(ModelError, subject="rms_norm_eps"):
        start.apply(TransformersCausalConfig(wrong).build(VOCABULARY), TOKENIZER)
    with raises(ModelError, subject="init"):
        start.apply(OneStageConfig().build(VOCABULARY), TOKENIZER)
    with raises(ModelError, subject="nowhere at all"):
        replace(start, model="nowhere at all").apply(model, TOKENIZER)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with raises(ModelError, subject="weights"):
        start.apply(model, TOKENIZER)
    weights.rename(tmp_path / "pytorch_model.bin")
    with raises(ModelError, subject="safetensors"):
        start.apply(model, TOKENIZER)


def test_network_and_start_go_through_json():
    for value, kind in ((CONFIGS["llama"], NetworkConfig), (Pretrained("a/b"), Init)):
        assert from_json(kind, to_json(value)) == value


@pytest.mark.parametrize(
    ("settings", "error", "subject"),
    [
        ("[1", ConfigError, "architecture"),
        ("[1]", ConfigError, "model_type"),
        ('{"model_type": "lama"}', UnknownName, "lama"),
        ('{"model_type": "gpt2", "auto_map": {}}', ConfigError, "auto_map"),
        ('{"model_type": "gpt2", "_attn_implementation": "a/b"}', ConfigError, "_attn_implementation"),
    ],
)
def test_an_architecture_that_is_none_of_ours_is_refused(settings, error, subject):
    with raises(error, subject=subject):
        TransformersCausalConfig(settings)


def test_what_cannot_be_built_or_read_is_refused(tmp_path):
    with raises(ConfigError, subject="architecture"):
        TransformersCausalConfig('{"model_type": "llama", "hidden_size": "wide"}').build(VOCABULARY)
    with raises(ConfigError, subject="architecture"):
        TransformersCausalConfig('{"model_type": "gpt2", "activation_function": "none"}').build(VOCABULARY)
    windows = {**GROUPED, "model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]}
    with raises(ConfigError, subject="layer_types"):
        TransformersCausalConfig(json.dumps({**windows, "use_sliding_window": True})).build(VOCABULARY)
    with raises(ConfigError, subject="positions"):
        MODELS["gpt2"].features(torch.zeros(1, 25, dtype=torch.long))
    with raises(ModelError, subject="config.json"):
        architecture_of(tmp_path)
    model = MODELS["gpt2"]
    for subject, change in (("activation_checkpointing", model.checkpoint_activations), ("int8", model.use_int8)):
        change(False)
        with raises(ConfigError, subject=subject):
            change()


def test_the_extra_is_named_where_the_library_is_missing(tmp_path, monkeypatch):
    save_model(tmp_path, MODELS["gpt2"], ModelConfig(CONFIGS["gpt2"], VOCABULARY, Wrapped(LENGTH)), TOKENIZER)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with raises(MissingExtra, subject="hf"):
        load_model(tmp_path)


def test_other_models_do_not_wait_for_the_library():
    code = "import sys, adlm.models.io, adlm.train.init; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
