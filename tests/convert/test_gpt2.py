"""A GPT-2 of transformers becomes a model that gives every text the same chance."""

import json
import shutil
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import adlm
from adlm.cli import main
from adlm.convert.conversion import converted
from adlm.convert.description import Options
from adlm.convert.from_transformers import from_transformers
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import train_bpe
from adlm.errors import DataError, ModelError
from adlm.models.network import Vocabulary
from tests.errors import raises

transformers = pytest.importorskip("transformers")

WORDS = train_bpe(["a small text for a small tokenizer"] * 4, 262)
SIZE, END = WORDS.mask_id, WORDS.roles.eos_id  # without the mask, which a GPT-2 has not
PLACES = 24


def small(**more):
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": PLACES, "initializer_range": 0.3}
    config = transformers.GPT2Config(vocab_size=SIZE, bos_token_id=END, eos_token_id=END, **shape, **more)
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.fixture
def original():
    return small()


@pytest.fixture
def folder(original, tmp_path):
    """As `save_pretrained` leaves it, with GPT-2's two files of a tokenizer."""
    original.save_pretrained(tmp_path / "gpt2")
    WORDS.backend.model.save(str(tmp_path / "gpt2"))
    return tmp_path / "gpt2"


def agree(model, original):
    text = torch.randint(0, SIZE, (3, PLACES), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = original(input_ids=F.pad(text[:, :-1], (1, 0), value=END)).logits
        ours = model.logits(model.features(text).final)
    assert (ours[..., :SIZE] - theirs[..., :SIZE]).abs().max() < 1e-5
    assert bool((ours[..., SIZE] == -torch.inf).all())


def test_a_gpt2_gives_its_logits_after_its_begin_token(folder, original):
    made = from_transformers(folder)
    agree(made.model, original)
    assert made.config.packing == Wrapped(PLACES)
    assert (made.tokenizer.mask_id, made.tokenizer.roles.bos_id) == (SIZE, END)
    assert made.tokenizer.encode("a small text").tolist() == WORDS.encode("a small text").tolist()
    assert made.report[0].startswith("AR: a gpt2 of transformers")


def test_a_gpt2_under_its_first_names_and_with_its_masks_is_the_same(folder, original):
    """As openai-community/gpt2 has it: no `transformer.` before the names, and buffers among the weights."""
    weights = {name.removeprefix("transformer."): value for name, value in original.state_dict().items()}
    weights = {name: value.clone() for name, value in weights.items() if name != "lm_head.weight"}
    weights |= {f"h.{n}.attn.bias": torch.ones(1, 1, PLACES, PLACES) for n in range(2)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    agree(from_transformers(folder).model, original)


def test_settings_without_a_begin_token_leave_it_to_the_tokenizer(folder, original):
    path = folder / "config.json"
    settings = {key: value for key, value in json.loads(path.read_text()).items() if "token_id" not in key}
    path.write_text(json.dumps(settings))
    agree(from_transformers(folder).model, original)


def test_the_command_makes_a_folder_that_loads_writes_and_scores(folder, original, tmp_path, capsys):
    assert main(["convert", str(folder), str(tmp_path / "model")]) == 0
    assert "AR: a gpt2" in capsys.readouterr().out
    model = adlm.load(tmp_path / "model")
    agree(model.network, original)
    (text,) = model.generate(seed=1)
    assert isinstance(text, str)
    data, out = tmp_path / "text.txt", tmp_path / "result.json"
    data.write_text("a small text for a small tokenizer. " * 40)
    words = ["evaluate", "perplexity", str(tmp_path / "model"), str(data)]
    assert main([*words, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["figures"]["nats_per_token"]["kind"] == "exact"
    assert main(["sample", str(tmp_path / "model"), "--seed", "1"]) == 0


def test_embeddings_without_a_token_are_left_out(tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=SIZE + 3, bos_token_id=END, n_embd=16, n_layer=1, n_head=2)
    original = transformers.GPT2LMHeadModel(config).eval()
    original.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(WORDS.backend.to_str())
    made = from_transformers(tmp_path)
    assert made.report[-1] == "left out: 3 embeddings that no token of its tokenizer has"
    assert made.config.packing == Wrapped(1024)
    agree(made.model, original)


def test_the_vocabulary_of_gpt2_gains_a_mask(shared, tmp_path):
    config = transformers.GPT2Config(n_embd=4, n_layer=1, n_head=1)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    for theirs, name in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        shutil.copy(shared / "data/vocab" / theirs, tmp_path / name)
    made = from_transformers(tmp_path)
    assert made.config.vocabulary == Vocabulary(50_258, 50_257)
    vectors = made.model.network.get_input_embeddings().weight
    assert torch.equal(vectors[50_257], vectors[50_256])
    assert made.tokenizer.decode(made.tokenizer.encode("Hello world")) == "Hello world"


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"transformer.h.0.attn.c_attn.weight": None}, "transformer.h.0.attn.c_attn.weight"),
        ({"transformer.wte.weight": None}, "transformer.wte.weight"),
        ({"transformer.h.2.ln_1.weight": torch.zeros(16)}, "transformer.h.2.ln_1.weight"),
        ({"transformer.wte.weight": torch.zeros(9, 16)}, "tokenizer"),
        ({"transformer.ln_f.weight": torch.zeros(15)}, "weights"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change, subject, folder):
    weights = {**load_file(folder / "model.safetensors"), **change}
    weights = {name: value for name, value in weights.items() if value is not None}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with raises(ModelError, subject=subject):
        from_transformers(folder)


def test_weights_that_are_not_finite_are_not_saved(folder, tmp_path):
    weights = load_file(folder / "model.safetensors")
    weights["transformer.ln_f.bias"][0] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert main(["convert", str(folder), str(tmp_path / "model")]) == 2
    assert not (tmp_path / "model" / "model.safetensors").exists()


def test_a_cut_file_is_refused(folder):
    data = (folder / "model.safetensors").read_bytes()
    for size in (0, 7, 100, len(data) // 2, len(data) - 1):
        (folder / "model.safetensors").write_bytes(data[:size])
        with raises(ModelError, subject="model.safetensors"):
            from_transformers(folder)


def test_pickled_weights_of_a_gpt2_are_not_read(folder, original):
    (folder / "model.safetensors").unlink()
    torch.save(OrderedDict(original.state_dict()), folder / "pytorch_model.bin")
    with raises(ModelError, subject="model.safetensors"):
        converted(folder)
    with raises(ModelError, subject="wte.weight"):
        converted(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
        ({"n_head": 3}, "width"),
        ({"n_embd": "wide"}, "n_embd"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(change, subject, folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with raises(ModelError, subject=subject):
        converted(folder)


def test_options_that_mean_nothing_for_a_gpt2_are_refused(folder):
    with raises(ModelError, subject="weights"):
        converted(folder, Options(weights="ema", heads=2))
    with raises(ModelError, subject="length"):
        converted(folder, Options(length=25))
    assert converted(folder, Options(length=8)).config.packing == Wrapped(8)
    (folder / "merges.txt").unlink()
    with raises(DataError, subject=str(folder)):
        converted(folder)
