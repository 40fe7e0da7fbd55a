"""Left-to-right models of other families give the logits of transformers, however they are read."""

import json

import pytest
import torch

import adlm
from adlm.cli import main
from adlm.convert import from_ar
from adlm.convert.conversion import converted
from adlm.convert.program import export_program
from adlm.data.tokenizer import train_bpe
from adlm.errors import ConfigError, ModelError
from adlm.models.costs import count_parameters
from adlm.models.one_stage import OneStageConfig
from adlm.models.transformers_causal import TransformersCausalConfig
from adlm.train.lora import Lora
from tests.errors import raises
from tests.evaluate.test_judge import write_gguf

transformers = pytest.importorskip("transformers")

TOKENIZER = train_bpe(["a small text for a small tokenizer"] * 4, 262)
SIZE, BEGIN = TOKENIZER.mask_id, TOKENIZER.roles.eos_id
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}
GROUPED = {**SHAPE, "num_key_value_heads": 2}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "initializer_range": 0.3}
MODELS = {
    "gpt2": ("gpt2", GPT2),
    "gpt2, exact gelu": ("gpt2", {**GPT2, "activation_function": "gelu", "n_inner": 20, "tie_word_embeddings": False}),
    "gpt_neox": ("gpt_neox", {**SHAPE, "hidden_size": 32, "num_attention_heads": 2}),
    "gpt_neox, one after the other": (
        "gpt_neox",
        {**SHAPE, "use_parallel_residual": False, "hidden_size": 32, "rope_parameters": {
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    ),
    "llama": ("llama", GROUPED),
    "llama, tied": ("llama", {**SHAPE, "tie_word_embeddings": True, "rms_norm_eps": 1e-4, "head_dim": 6}),
    "qwen2": ("qwen2", {**GROUPED, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3": ("qwen3", {**GROUPED, "head_dim": 8, "tie_word_embeddings": True}),
}  # fmt: skip


def save(folder, kind, settings):
    """A model of random weights, gains and biases among them."""
    torch.manual_seed(0)
    ids = {"vocab_size": SIZE + 2, "bos_token_id": BEGIN, "eos_token_id": BEGIN}
    config = transformers.AutoConfig.for_model(kind, **settings, **ids)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.7, 0.3)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(TOKENIZER.backend.to_str())
    return model


def known(logits):
    return logits[..., :SIZE]


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name, tmp_path):
    original = save(tmp_path, *MODELS[name])
    model = from_ar(tmp_path)
    network = model.network
    assert isinstance(model.config.network, OneStageConfig)
    tokens = torch.randint(0, SIZE, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        read = torch.cat([torch.full((2, 1), BEGIN), tokens[:, :-1]], 1)
        expected = known(original(input_ids=read).logits)

        def agree(final, places=slice(None)):
            found = network.logits(final).view(2, -1, SIZE + 1)
            torch.testing.assert_close(known(found), expected[:, places], rtol=1e-4, atol=1e-4)
            assert bool((found[..., SIZE] == -torch.inf).all())

        agree(network.features(tokens).final)
        last = torch.zeros_like(tokens, dtype=torch.bool)
        last[:, -1] = True
        agree(network.features(tokens, output_mask=last).final, slice(8, 9))
        cache = network.cache(2, 9)
        agree(network.extend(tokens[:, :4], cache, every=True).final, slice(0, 5))
        agree(network.extend(tokens[:, 4:8], cache, every=True).final, slice(5, 9))
        masked = torch.full_like(tokens, SIZE)
        in_blocks = network.in_blocks(4)
        agree(in_blocks.features(masked, clean=tokens, blocks=torch.arange(9)[None]).final)
        one = network.config.variant(attention="block", block_size=1).build(network.vocabulary).eval()
        one.load_state_dict(network.state_dict())
        finished = one.finished_blocks(2, 9)
        for start in range(9):
            row = tokens.masked_fill(torch.arange(9) >= start, SIZE)
            agree(one.read_block(row, [start] * 2, finished).final, slice(start, start + 1))


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "qwen2", "qwen3"])
def test_the_command_makes_a_folder_that_loads_writes_and_scores(name, tmp_path, capsys):
    save(tmp_path / "theirs", *MODELS[name])
    assert main(["convert", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert f"AR: a {name}" in capsys.readouterr().out
    model, original = adlm.load(tmp_path / "ours"), from_ar(tmp_path / "theirs")
    assert model.generate("a small", seed=1, n=2) == original.generate("a small", seed=1, n=2)
    assert model.score("a small text").nats.mean == original.score("a small text").nats.mean


def test_embeddings_without_a_token_are_left_out_and_the_mask_is_the_mean(tmp_path):
    original = save(tmp_path, *MODELS["llama"])
    made = converted(tmp_path)
    assert made.report[-1] == "left out: 2 embeddings that no token of its tokenizer has"
    theirs = original.get_input_embeddings().weight[: SIZE + 1]
    torch.testing.assert_close(made.model.embedding.tokens.weight[SIZE], theirs.mean(0))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("llama", {"attention_bias": True}, "attention_bias=True"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope_type=linear"),
        ("gpt2", {"activation_function": "relu"}, "activation_function=relu"),
    ],
)
def test_settings_without_a_counterpart_keep_the_network_of_transformers(name, change, said, tmp_path):
    kind, settings = MODELS[name]
    save(tmp_path, kind, {**settings, **change})
    made = converted(tmp_path)
    assert isinstance(made.config.network, TransformersCausalConfig)
    assert made.report[-1].endswith(said)


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
        ({"num_attention_heads": 3}, "kv_heads"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"hidden_size": 18}, "embedding.tokens.weight"),
        ({"num_hidden_layers": 1}, "model.layers.1.input_layernorm.weight"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight"),
        ({"model_type": "mistral"}, "model_type"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(change, subject, tmp_path):
    save(tmp_path, *MODELS["llama"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with raises(ModelError, subject=subject):
        converted(tmp_path)


@pytest.mark.parametrize(
    ("kind", "nearest"), [("mistral", "llama"), ("qwen3_moe", "qwen3"), ("gptj", "gpt_neox"), ("gpt2_xyz", "gpt2")]
)
def test_an_architecture_that_is_not_known_has_a_nearest_one(kind, nearest, tmp_path):
    save(tmp_path, *MODELS["llama"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": kind}))
    with raises(ModelError, subject="model_type") as caught:
        converted(tmp_path)
    assert caught.value.found.endswith(nearest)


def test_a_name_of_the_hub_is_fetched_as_data(tmp_path, monkeypatch):
    original = save(tmp_path, *MODELS["llama"])
    asked_for = []

    def not_ours(name, **_):
        raise ModelError("asked", "a config of the library transformers", "", subject="model_type 'llama'")

    def fetched(name, **_):
        asked_for.append(name)
        return tmp_path

    monkeypatch.setattr("adlm.convert.conversion.find_model", not_ours)
    monkeypatch.setattr("adlm.convert.conversion.find_transformers_model", fetched)
    model = from_ar("some/llama")
    assert asked_for == ["some/llama"]
    assert model.config.network.stack.layers == original.config.num_hidden_layers


def test_a_model_of_ours_is_loaded():
    assert from_ar("box").config == adlm.load("box").config


def test_a_gguf_file_gives_the_logits_of_the_model_it_holds(tmp_path):
    gguf = pytest.importorskip("gguf")
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=32, **size)
    original = transformers.LlamaForCausalLM(config).eval()
    write_gguf(gguf, tmp_path / "model.gguf", original)
    model = from_ar(tmp_path / "model.gguf")
    ids = model.tokenizer.encode("ab 12")
    with torch.no_grad():
        expected = original(torch.tensor([[0, *ids[:-1]]])).logits
        found = model.network(torch.tensor(ids)[None])[..., :64]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert model.tokenizer.decode(ids) == "ab 12"


@pytest.fixture
def grouped(tmp_path):
    """A model with most of what other families have: grouped and normalised heads, a gated MLP, rows after a start."""
    save(tmp_path / "theirs", *MODELS["qwen3"])
    return from_ar(tmp_path / "theirs")


def test_transformers_loads_a_converted_model(grouped, tmp_path):
    hf = pytest.importorskip("adlm.hf")
    grouped.save(tmp_path / "saved")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    ids = tokenizer("a small text", return_tensors="pt").input_ids
    assert ids[0, 0] == BEGIN
    with torch.no_grad():
        found = theirs(input_ids=ids).logits[0, :-1]
        expected = grouped.network(ids[:, 1:])[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    short = {"max_new_tokens": 4, "do_sample": False}
    assert theirs.generate(ids, **short).shape == (1, ids.shape[1] + 4)
    with raises(ConfigError, subject="norm"):
        hf.export(grouped, tmp_path / "code")


def test_eight_bits_are_close_and_adapters_start_as_nothing(grouped):
    tokens = torch.randint(0, SIZE, (2, 9), generator=torch.Generator().manual_seed(0))
    network = grouped.network
    with network.inference_weights():
        exact = network.features(tokens).final
    network.use_int8()
    with network.inference_weights():
        short = network.features(tokens).final
    network.use_int8(on=False)
    assert 0 < (short - exact).abs().max() < 0.2 * exact.abs().max()
    pytest.importorskip("peft")
    adapters = Lora(rank=2)
    adapters.apply(network)
    torch.testing.assert_close(network.features(tokens).final, exact)
    network.features(tokens).final.sum().backward()
    assert sum(parameter.grad is not None for parameter in network.parameters()) == 2 * 2 * 2
    adapters.merge(network)
    torch.testing.assert_close(network.features(tokens).final, exact)


def test_a_converted_model_is_exported_as_a_program(grouped, tmp_path):
    export_program(grouped, tmp_path / "program")
    program = torch.export.load(tmp_path / "program" / "model.pt2").module()
    tokens = torch.randint(0, SIZE, (3, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(program(tokens)[0], grouped.network(tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_every_weight(name, tmp_path):
    save(tmp_path, *MODELS[name])
    network = from_ar(tmp_path).network.in_blocks(4)
    tokens = torch.randint(0, SIZE, (2, 9), generator=torch.Generator().manual_seed(0))
    noisy = tokens.masked_fill(torch.rand(2, 9, generator=torch.Generator().manual_seed(1)) < 0.5, SIZE)
    final = network.features(noisy, clean=tokens, output_mask=noisy == SIZE).final
    network.logits(final)[:, :SIZE].log_softmax(-1)[:, 0].sum().backward()
    assert not [name for name, weight in network.named_parameters() if weight.grad is None]


def test_parameters_and_work_are_counted(grouped):
    network, vocabulary = grouped.config.network, grouped.config.vocabulary
    stack = network.stack
    assert count_parameters(network, vocabulary).total == sum(p.numel() for p in grouped.network.parameters())
    before, after = stack.block_work(1, 0)
    block = grouped.network.stack.blocks[0]
    assert before == block.qkv.weight.numel()
    assert after == block.out.weight.numel() + block.up.weight.numel() + block.down.weight.numel()
