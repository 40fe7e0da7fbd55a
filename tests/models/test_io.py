"""Model folders: what is saved comes back, what is broken is named, what is interrupted is never half of each."""

import json
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adlm.data.packing import Wrapped
from adlm.data.tokenizer import characters
from adlm.errors import ModelError
from adlm.models.hand_over import Continued
from adlm.models.io import FILES, ModelConfig, load_model, save_model
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from tests.errors import raises

TOKENIZER = characters("ab")
STACK = StackConfig(width=8, heads=2, layers=1)
ONE, TWO = OneStageConfig(STACK, positions=8), TwoStageConfig(STACK, 1, Continued(), tied=True)
WEIGHTS, CONFIG, TOKENS, ROLES = "model.safetensors", "config.json", "tokenizer.json", "tokenizer_roles.json"
WRITTEN = sorted([*FILES, "README.md", "tokenizer_config.json", "generation_config.json"])


def config_of(network, tokenizer=TOKENIZER, length=8):
    return ModelConfig(network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), Wrapped(length))


def drawn(config):
    model = config.build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.fixture(params=[ONE, TWO], ids=["one", "two"])
def saved(request, tmp_path):
    config = config_of(request.param)
    model = drawn(config)
    save_model(tmp_path, model, config, TOKENIZER)
    return tmp_path, model, config


@pytest.fixture
def folder(tmp_path):
    config = config_of(ONE)
    save_model(tmp_path, drawn(config), config, TOKENIZER)
    return tmp_path


def refused(folder, subject):
    """Checks what the error is about; returns its message."""
    with raises(ModelError, subject=subject) as info:
        load_model(folder)
    return str(info.value)


def change_config(folder, **changes):
    data = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**data, **changes}))


def change_weights(folder, change):
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    save_file(change(weights), folder / WEIGHTS)


def same(model, other):
    pairs = zip(model.named_parameters(), other.named_parameters(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_a_saved_model_comes_back_to_the_bit(saved):
    path, model, config = saved
    loaded, found, tokenizer = load_model(path)
    assert found == config
    assert tokenizer.fingerprint == TOKENIZER.fingerprint
    assert same(model, loaded)
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    tokens = torch.randint(0, 3, (2, 8))
    assert torch.equal(model.eval().features(tokens).final, loaded.features(tokens).final)


def test_a_folder_holds_these_files_and_tied_weights_once(saved):
    path, model, _ = saved
    assert sorted(file.name for file in path.iterdir()) == WRITTEN
    assert set(load_file(path / WEIGHTS)) == {name for name, _ in model.named_parameters()}
    loaded, *_ = load_model(path)
    if isinstance(model.config, TwoStageConfig):
        assert loaded.head.weight is loaded.anchor_head.weight is loaded.embedding.tokens.weight


def test_loading_leaves_the_random_state_alone(saved):
    path, *_ = saved
    before = torch.get_rng_state()
    load_model(path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_float_types_become_float32(folder, dtype):
    model, *_ = load_model(folder)
    change_weights(folder, lambda weights: {name: tensor.to(dtype) for name, tensor in weights.items()})
    for before, after in zip(model.parameters(), load_model(folder)[0].parameters(), strict=True):
        assert after.dtype == torch.float32
        assert torch.equal(after, before.to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn])
def test_weights_that_are_no_plain_floats_are_named(folder, dtype):
    change_weights(folder, lambda weights: {**weights, "head.bias": weights["head.bias"].to(dtype)})
    refused(folder, "head.bias")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_named(folder, value):
    change_weights(folder, lambda weights: {**weights, "head.bias": torch.full_like(weights["head.bias"], value)})
    refused(folder, "head.bias")
    change_weights(folder, lambda weights: {**weights, "head.bias": torch.full_like(weights["head.bias"], 3e38)})
    load_model(folder)  # finite, though its sum is not


def test_names_and_shapes_that_do_not_fit_are_named(saved):
    path, *_ = saved
    whole = (path / WEIGHTS).read_bytes()

    def broken(change, subject):
        change_weights(path, change)
        refused(path, subject)
        (path / WEIGHTS).write_bytes(whole)

    broken(lambda w: {**w, "extra": torch.zeros(1)}, "extra")
    broken(lambda w: {name: w[name] for name in w if name != "head.bias"}, "head.bias")
    broken(lambda w: {**w, "head.bias": torch.zeros(3)}, "head.bias")
    first = min(load_file(path / WEIGHTS))
    broken(lambda w: {"module." + name: w[name] for name in w}, first)


def test_files_that_are_something_else_are_named(folder):
    weights = folder / WEIGHTS
    whole = weights.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    for content, word in [
        (whole[:-10], f"{len(whole) - 10} of {len(whole)} bytes"),
        (whole[: header // 2], "header"),
        (whole[:5], "cut short"),
        (b"", "cut short"),
        (whole + b"\0" * 8, "not a safetensors file"),
        (whole[:8] + b"{" * header + whole[8 + header :], "not a safetensors file"),
        (pickle.dumps({"weight": [0.0]}), "pickle"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"all sorts of bytes", "not a safetensors file"),
    ]:
        weights.write_bytes(content)
        assert word in refused(folder, WEIGHTS)
    torch.save({"weight": torch.zeros(1)}, weights)
    assert "pickle" in refused(folder, WEIGHTS)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    refused(folder, name)
    (folder / name).mkdir()
    refused(folder, name)


def test_a_folder_that_is_none_is_named(folder):
    refused(folder / "nowhere", str(folder / "nowhere"))
    refused(folder / WEIGHTS, str(folder / WEIGHTS))


def test_configs_of_others_are_named(folder):
    whole = (folder / CONFIG).read_text()
    data = json.loads(whole)
    for text, subject in [
        ("{", CONFIG),
        ("[" * 100_000, CONFIG),
        ("\xff", CONFIG),
        ("[]", CONFIG),
        ("{}", CONFIG),
        ('{"model_type": "gpt2", "n_layer": 12}', "model_type gpt2"),
        (json.dumps({**data, "format": 7}), "format"),
        (json.dumps({**data, "format": 0}), "format"),
        (json.dumps({**data, "vocabularly": 3}), "vocabularly"),
        (json.dumps({**data, "packing": {"kind": "Wrapped", "length": 2}}), "length"),
        (json.dumps({**data, "network": {"kind": "os.system"}}), "os.system"),
    ]:
        (folder / CONFIG).write_text(text, encoding="latin-1")
        refused(folder, subject)
    for change, subject in [
        ({"packing": {"kind": "Wrapped", "length": "long"}}, "config.json.packing.length"),
        ({"network": {"kind": ["os.system"]}}, "['os.system']"),
    ]:
        (folder / CONFIG).write_text(json.dumps({**data, **change}))
        refused(folder, subject)


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"width": 2**20}, "embedding.positions"),
        ({"width": 2**28}, "embedding.positions"),
        ({"width": 2**61}, "config"),
        ({"width": 2**80}, "config"),
        ({"mlp_ratio": 10**9}, "stack.blocks.0.up.weight"),
        ({"layers": 10**12}, "tensors"),
        ({"layers": 2}, "stack.blocks.1.down.bias"),
        ({"width": 12}, "embedding.positions"),
    ],
)
def test_a_config_larger_than_its_weights_is_refused_without_building_it(folder, changes, subject):
    network = json.loads((folder / CONFIG).read_text())["network"]
    change_config(folder, network={**network, "stack": {**network["stack"], **changes}})
    refused(folder, subject)


def test_a_config_that_no_network_can_have_is_refused(folder):
    network = json.loads((folder / CONFIG).read_text())["network"]
    change_config(folder, network={**network, "stack": {**network["stack"], "heads": 0}})
    refused(folder, "heads")


def test_positions_beyond_the_weights_are_refused_without_making_them(folder):
    network = json.loads((folder / CONFIG).read_text())["network"]
    change_config(folder, network={**network, "positions": 10**13})
    refused(folder, "embedding.positions")


def test_a_tokenizer_of_another_model_is_named(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    characters("abcdef").save(other)
    whole = {name: (folder / name).read_text() for name in (TOKENS, ROLES)}
    shutil.copy(other / TOKENS, folder)
    refused(folder, TOKENS)
    shutil.copy(other / ROLES, folder)
    refused(folder, ROLES)
    (folder / TOKENS).write_text("{}")
    refused(folder, TOKENS)
    (folder / TOKENS).write_text(whole[TOKENS])
    for roles, subject in [
        ({**json.loads(whole[ROLES]), "eos_id": 77}, "eos_id"),
        ({**json.loads(whole[ROLES]), "pad_id": "1"}, "pad_id"),
        ({**json.loads(whole[ROLES]), "surprise": 1}, TOKENS),
        ({**json.loads(whole[ROLES]), "own": {}}, TOKENS),
    ]:
        (folder / ROLES).write_text(json.dumps(roles))
        refused(folder, subject)


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    config = config_of(ONE)
    model = drawn(config)
    save_model(tmp_path, model, config, TOKENIZER)

    def rejected(subject, model=model, config=config, tokenizer=TOKENIZER, folder=tmp_path):
        with raises(ModelError, subject=subject):
            save_model(folder, model, config, tokenizer)

    rejected(ROLES, tokenizer=characters("abcdef"))
    rejected("config", config=config_of(replace(ONE, stack=replace(STACK, layers=2))))
    for taken in (tmp_path / WEIGHTS, tmp_path / WEIGHTS / "below"):
        rejected(str(taken), folder=taken)
    broken = drawn(config)
    with torch.no_grad():
        broken.head.bias[0] = torch.nan
    rejected("head.bias", model=broken)
    wrapped = torch.nn.Module()
    wrapped.module = model
    rejected("network", model=wrapped)
    # The model that was there still is, and nothing else.
    assert same(load_model(tmp_path)[0], model)
    assert sorted(file.name for file in tmp_path.iterdir()) == WRITTEN


class Killed(BaseException):
    """The process ends here."""


class Killer:
    """Ends a process, as far as it can be seen from outside, at its n-th dealing with files of a folder."""

    EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree")

    def __init__(self):
        self.left, self.folder = None, ""
        sys.addaudithook(self)

    def __call__(self, event, args):
        if self.left is None or event not in self.EVENTS or not str(args[0]).startswith(self.folder):
            return
        if self.left == 0:  # stays 0: the dead clean nothing up
            raise Killed
        self.left -= 1

    def save(self, after, folder, *what):
        """Whether the save went through."""
        self.left, self.folder = after, str(folder)
        try:
            save_model(folder, *what)
        except Killed:
            return False
        finally:
            self.left = None
        return True


def test_a_save_killed_anywhere_leaves_one_whole_model_or_none(tmp_path):
    """The two differ in everything and have the same shapes: a mixture would load."""
    old_tokenizer, new_tokenizer = characters("ab"), characters("xy")
    old_config, new_config = config_of(ONE, old_tokenizer, 8), config_of(ONE, new_tokenizer, 16)
    old, new = drawn(old_config), drawn(new_config)
    start = tmp_path / "start"
    save_model(start, old, old_config, old_tokenizer)
    killer, outcomes = Killer(), []
    for steps in range(200):
        folder = tmp_path / str(steps)
        shutil.copytree(start, folder)
        finished = killer.save(steps, folder, new, new_config, new_tokenizer)
        try:
            model, config, tokenizer = load_model(folder)
        except ModelError as error:
            outcomes.append("none" if error.subject == ".saving-" else str(error))
        else:
            outcomes.append("new" if config == new_config else "old")
            expected = new if config == new_config else old
            assert same(model, expected)
            assert tokenizer.fingerprint == (new_tokenizer if expected is new else old_tokenizer).fingerprint
        save_model(folder, new, new_config, new_tokenizer)
        assert same(load_model(folder)[0], new)
        assert not list(folder.glob(".saving*"))
        shutil.rmtree(folder)
        if finished:
            break
    assert finished
    assert list(dict.fromkeys(outcomes)) == ["old", "none", "new"]


def test_whoever_may_read_the_config_may_read_the_weights(folder):
    assert len({(folder / name).stat().st_mode for name in FILES}) == 1


def test_files_of_others_in_the_folder_stay(folder):
    (folder / "notes.txt").write_text("mine")
    (folder / "runs").mkdir()
    model, config, tokenizer = load_model(folder)
    save_model(folder, model, config, tokenizer)
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "runs").is_dir()


def test_a_folder_can_be_named_in_any_way(folder, monkeypatch):
    monkeypatch.chdir(folder)
    load_model(Path())
