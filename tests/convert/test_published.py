"""Folders and files in the layouts of MDLM and SEDD become models that compute what theirs do."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import adlm
from adlm.cli import main
from adlm.convert.description import Options, described
from adlm.convert.from_official import from_official
from adlm.data.packing import Wrapped
from adlm.errors import ModelError
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.objectives.score_entropy import ScoreEntropy
from adlm.randomness import Noise
from tests.conftest import batch_of
from tests.convert.official_files import save_checkpoint, tokenizer_json
from tests.convert.published_networks import (
    BD3LM,
    BLOCK,
    CONDITION,
    HEADS,
    IDS,
    LAYERS,
    LENGTH,
    MDLM,
    SEDD,
    WIDTH,
    block_logits_of,
    logits_of,
    prefixed,
    save_folder,
    weights_of,
)
from tests.errors import raises

MASK = IDS - 1
TIMES = torch.tensor([0.1, 0.5, 0.9])
SIGMA = -torch.log1p(-(1 - 1e-3) * TIMES)
TEXT = torch.randint(0, MASK, (3, LENGTH), generator=torch.Generator().manual_seed(0))
X_T = TEXT.masked_fill(torch.rand(3, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.5, MASK)
STACK = StackConfig(width=WIDTH, heads=HEADS, layers=LAYERS, dropout=0.1, condition=CONDITION)


def raw_logits(model, t=None):
    return model.head.raw(model.features(X_T, t).final)


@pytest.fixture
def mdlm(tmp_path):
    return save_folder(tmp_path / "mdlm", MDLM, prefixed(weights_of()), tokenizer=tokenizer_json())


@pytest.fixture
def sedd(tmp_path):
    return save_folder(tmp_path / "sedd", SEDD, weights_of(), tokenizer=tokenizer_json())


@pytest.mark.parametrize("pickled", [False, True])
def test_a_published_mdlm_gives_its_logits(pickled, tmp_path):
    weights = weights_of()
    made = from_official(
        save_folder(tmp_path / "mdlm", MDLM, prefixed(weights), tokenizer=tokenizer_json(), pickled=pickled)
    )
    assert (raw_logits(made.model) - logits_of(weights, X_T, torch.zeros(3))).abs().max() < 1e-5
    assert made.config == ModelConfig(OneStageConfig(STACK), Vocabulary(IDS, MASK), Wrapped(LENGTH, framed=True))
    assert made.report[0].startswith("MDLM: 2 layers, width 32, vocabulary 39, the mask 38")


def test_a_published_mdlm_that_follows_the_time_still_does(tmp_path):
    weights = weights_of()
    timed = {**MDLM, "time_conditioning": True}
    made = from_official(save_folder(tmp_path / "mdlm", timed, prefixed(weights), tokenizer=tokenizer_json()))
    assert (raw_logits(made.model, TIMES) - logits_of(weights, X_T, SIGMA)).abs().max() < 1e-5


def test_a_published_sedd_gives_its_logits_at_every_noise_level(sedd):
    made = from_official(sedd)
    assert (raw_logits(made.model, TIMES) - logits_of(weights_of(), X_T, SIGMA)).abs().max() < 1e-5
    network = OneStageConfig(StackConfig(**{**vars(STACK), "timed": True}))
    assert made.config == ModelConfig(network, Vocabulary(IDS, MASK), Wrapped(LENGTH))
    assert made.report[0].startswith("SEDD: 2 layers")
    assert any("score-entropy" in line for line in made.report)


def test_the_score_entropy_of_a_converted_sedd_is_that_of_its_own_scores(sedd):
    """sigma' (sum_v s_v - r log s_x0 + r (log r - 1)) with log s_v = logit_v - log(V - 1) - log(e^sigma - 1)."""
    model, objective = from_official(sedd).model, ScoreEntropy()
    batch, levels, noise = batch_of(TEXT), torch.tensor([0.2, 0.5, 0.8]), Noise(0)
    ours = objective.nats(model, batch, levels, noise)
    corrupted = objective.corruption.at(levels, batch, MASK, noise)
    kept = 1 - (1 - 1e-3) * corrupted.t
    sigma = -kept.log()
    scores = logits_of(weights_of(), corrupted.x_t, sigma) - math.log(IDS - 1) - sigma.expm1().log()[:, None, None]
    ratio = 1 / sigma.expm1()[:, None]
    of_token = scores.gather(-1, TEXT[..., None])[..., 0]
    entropy = scores[..., :-1].exp().sum(-1) - ratio * of_token + ratio * (ratio.log() - 1)
    theirs = ((1 - 1e-3) / kept)[:, None] * entropy * corrupted.masked
    assert corrupted.masked.any(-1).all()
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("choice", [None, "ema", "raw"])
def test_a_checkpoint_of_sedd_training_gives_averaged_weights_unless_told(choice, tmp_path):
    weights = weights_of()
    averaged = [value * 0.5 for name, value in weights.items() if "inv_freq" not in name]
    content = {"optimizer": {"state": {}, "param_groups": [{"lr": 3e-4}]}, "model": weights, "step": 7}
    torch.save({**content, "ema": {"decay": 0.9999, "num_updates": 7, "shadow_params": averaged}}, tmp_path / "a.pth")
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    options = Options(weights=choice, length=LENGTH, tokenizer=str(tmp_path / "tokenizer.json"))
    made = from_official(tmp_path / "a.pth", options)
    factor = 1.0 if choice == "raw" else 0.5
    expected = {name: value if "inv_freq" in name else factor * value for name, value in weights.items()}
    assert (raw_logits(made.model, TIMES) - logits_of(expected, X_T, SIGMA)).abs().max() < 1e-5
    assert made.report[0].startswith("SEDD")


def test_a_sedd_that_mdlm_code_trained_is_a_sedd(tmp_path):
    config = {"model.n_heads": HEADS, "model.length": LENGTH, "time_conditioning": True, "parameterization": "sedd"}
    path = save_checkpoint(tmp_path / "a.ckpt", prefixed(weights_of()), settings=config, tokenizer=tokenizer_json())
    made = from_official(path)
    assert (raw_logits(made.model, TIMES) - logits_of(weights_of(), X_T, SIGMA)).abs().max() < 1e-5
    assert made.report[0].startswith("SEDD")
    assert made.config.packing == Wrapped(LENGTH, framed=True)


def test_weights_without_settings_need_options(tmp_path):
    save_file(weights_of(), tmp_path / "sedd.safetensors")
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    given = {"tokenizer": str(tmp_path / "tokenizer.json")}
    with raises(ModelError, subject="length"):
        from_official(tmp_path / "sedd.safetensors", Options(**given))
    with raises(ModelError, subject="timed"):
        from_official(tmp_path / "sedd.safetensors", Options(**given, length=LENGTH, timed=False))
    made = from_official(tmp_path / "sedd.safetensors", Options(**given, length=LENGTH))
    assert made.config.network.stack.timed


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"hidden_dim": 64}, "width"),
        ({"vocab_size": 50_258}, "size"),
        ({"n_blocks": 12}, "layers"),
        ({"cond_dim": 129}, "condition"),
        ({"n_heads": 8}, "heads"),
        ({"model_length": None}, "length"),
        ({"model_type": "bert"}, "model_type"),
        ({"model_type": ["mdlm"]}, "model_type"),
    ],
)
def test_settings_of_another_mdlm_are_refused(change, subject, tmp_path):
    folder = save_folder(tmp_path / "a", {**MDLM, **change}, prefixed(weights_of()), tokenizer=tokenizer_json())
    with raises(ModelError, subject=subject):
        from_official(folder)


@pytest.mark.parametrize(
    ("section", "change", "subject"),
    [
        ("graph", {"type": "uniform"}, "graph.type"),
        ("noise", {"type": "geometric"}, "noise.type"),
        ("model", {"scale_by_sigma": False}, "model.scale_by_sigma"),
        ("model", {"hidden_size": 768}, "width"),
    ],
)
def test_a_sedd_whose_outputs_mean_something_else_is_refused(section, change, subject, tmp_path):
    other = {**SEDD, section: {**SEDD[section], **change}}
    folder = save_folder(tmp_path / "a", other, weights_of(), tokenizer=tokenizer_json())
    with raises(ModelError, subject=subject):
        from_official(folder)


@pytest.mark.parametrize("layout", ["mdlm", "sedd"])
def test_missing_and_foreign_keys_of_a_published_folder_are_listed(layout, tmp_path):
    weights = weights_of()
    del weights["blocks.1.norm2.weight"]
    weights["blocks.1.norm3.weight"] = torch.zeros(1)
    names, config = (prefixed, MDLM) if layout == "mdlm" else (dict, SEDD)
    folder = save_folder(tmp_path / "a", config, names(weights), tokenizer=tokenizer_json())
    with raises(ModelError, subject="backbone.blocks.1.norm2.weight") as error:
        from_official(folder)
    assert "backbone.blocks.1.norm3.weight" in error.value.found


def test_a_published_folder_without_a_tokenizer_says_whose_to_give(tmp_path):
    folder = save_folder(tmp_path / "a", MDLM, prefixed(weights_of()))
    with raises(ModelError, subject="tokenizer"):
        from_official(folder)
    large = {**prefixed(weights_of()), "backbone.vocab_embed.embedding": torch.zeros(50_258, 2)}
    save_folder(folder, MDLM, large)
    with raises(ModelError, subject="tokenizer"):
        from_official(folder)


def test_the_published_vocabulary_is_that_of_gpt2_and_a_mask(shared, tmp_path):
    weights = weights_of(50_258)
    folder = save_folder(tmp_path / "a", {**MDLM, "vocab_size": 50_258}, prefixed(weights))
    made = from_official(folder, Options(tokenizer=str(shared / "data/vocab")))
    assert (made.tokenizer.mask_id, made.tokenizer.roles.eos_id) == (50_257, 50_256)
    # Among millions of logits the rounding of float32 alone comes to 1e-5.
    weights = {name: value.double() for name, value in weights.items()}
    expected = logits_of(weights, X_T, torch.zeros(3, dtype=torch.float64))
    assert (raw_logits(made.model.double()) - expected).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("name", "content", "subject"),
    [
        ("config.json", None, "config.json"),
        ("config.json", "{", "config.json"),
        ("config.json", "[]", "config.json"),
        ("config.json", "{}", "model_type"),
        ("config.json", '{"format": 1, "network": {}}', "format"),
        ("model.safetensors", None, "model.safetensors"),
    ],
)
def test_folders_that_are_not_whole_are_answered(name, content, subject, mdlm):
    (mdlm / name).unlink()
    if content is not None:
        (mdlm / name).write_text(content)
    with raises(ModelError, subject=subject):
        from_official(mdlm)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fraction=st.floats(0, 0.999), pickled=st.booleans())
def test_cut_weights_are_refused(fraction, pickled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    save_folder(folder, SEDD, weights_of(), tokenizer=tokenizer_json(), pickled=pickled)
    file = folder / ("pytorch_model.bin" if pickled else "model.safetensors")
    data = file.read_bytes()
    file.write_bytes(data[: int(fraction * len(data))])
    with raises(ModelError, subject=file.name):
        from_official(folder)


def test_the_command_turns_published_folders_into_models_that_write(mdlm, sedd, tmp_path, capsys):
    for source, kind in ((mdlm, "MDLM"), (sedd, "SEDD")):
        out = tmp_path / "models" / kind
        assert main(["convert", str(source), str(out)]) == 0
        assert f"{kind}: 2 layers" in capsys.readouterr().out
        (text,) = adlm.load(out).generate(seed=1)
        assert isinstance(text, str)
    assert main(["convert", str(mdlm), str(mdlm), "--force"]) == 2
    assert "into its own folder" in capsys.readouterr().err
    assert json.loads((mdlm / "config.json").read_text()) == MDLM


def test_a_published_bd3lm_gives_its_logits(tmp_path):
    weights = weights_of()
    folder = save_folder(tmp_path / "bd3lm", BD3LM, prefixed(weights), tokenizer=tokenizer_json())
    made = from_official(folder)
    network = made.config.network
    assert network == OneStageConfig(replace(STACK, attention="block"), block_size=BLOCK)
    assert made.report[0].startswith("BD3-LM")
    for size in (BLOCK, 4):
        expected = block_logits_of(weights, X_T, TEXT, size)
        model = made.model.in_blocks(size)
        found = model.head.raw(model.features(X_T, clean=TEXT).final)
        assert (found - expected).abs().max() < 1e-5
    out = tmp_path / "converted"
    assert main(["convert", str(folder), str(out)]) == 0
    assert adlm.load(out).network.block_size == BLOCK
    again = tmp_path / "official.safetensors"
    assert main(["convert", str(out), str(again), "--to", "official"]) == 0
    assert from_official(again, Options(tokenizer=str(out))).config.network == network


def test_a_checkpoint_of_bd3lm_s_training_says_its_block_size(tmp_path):
    config = {
        "block_size": 4,
        "algo": {"name": "bd3lm", "parameterization": "subs", "time_conditioning": False, "cross_attn": True},
        "model": {"n_heads": HEADS, "length": LENGTH, "dropout": 0.1},
        "data": {"wrap": True},
    }
    found = described(config, asked="asked")
    assert (found.block_size, found.timed, found.heads, found.length, found.wrapped) == (4, False, HEADS, LENGTH, True)
    whole = {**config, "algo": {**config["algo"], "name": "mdlm", "cross_attn": False}}
    assert described(whole, asked="asked").block_size is None
    timed = {**config, "algo": {**config["algo"], "time_conditioning": True}}
    with raises(ModelError, subject="time_conditioning"):
        described(timed, asked="asked")


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"block_size": None}, "block_size"),
        ({"block_size": 0}, "block_size"),
        ({"causal": True}, "causal"),
        ({"adaln": False}, "causal"),
        ({"time_conditioning": True}, "time_conditioning"),
    ],
)
def test_other_networks_of_bd3lm_s_code_are_refused(changes, subject, tmp_path):
    folder = save_folder(tmp_path / "bd3lm", {**BD3LM, **changes}, prefixed(weights_of()), tokenizer=tokenizer_json())
    with raises(ModelError, subject=subject):
        from_official(folder)


def test_bd3lm_s_code_without_blocks_is_mdlm(tmp_path):
    settings = {**BD3LM, "cross_attn": False, "block_size": LENGTH}
    folder = save_folder(tmp_path / "bd3lm", settings, prefixed(weights_of()), tokenizer=tokenizer_json())
    assert from_official(folder).config.network == OneStageConfig(STACK)
