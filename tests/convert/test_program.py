"""Exported programs: they compute what the package computes, where there is no package."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from adlm.cli import main
from adlm.convert.program import export_program
from adlm.data.packing import Padded
from adlm.data.tokenizer import characters
from adlm.errors import ConfigError, MissingExtra, ModelError
from adlm.models.io import ModelConfig
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.transformers_causal import TransformersCausalConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.text_model import TextModel, load
from tests.conftest import TableModel
from tests.errors import raises

TOKENIZER = characters(" abcdefgh")
CAUSAL = StackConfig(width=8, heads=2, layers=1, attention="causal", convolution=3)
# Modulations that are folded into weights, a time that is told, learned positions, heads that are tied.
NETWORKS: dict[str, NetworkConfig] = {
    "ar": OneStageConfig(CAUSAL),
    "mdlm": OneStageConfig(StackConfig(width=8, heads=2, layers=1, condition=4, timed=True), positions=16),
    "adlm": TwoStageConfig(StackConfig(width=8, heads=2, layers=1, condition=4), 1),
    "a2r": TwoStageConfig(CAUSAL, 1, tied=True),
}
SHAPES = [(1, 3), (1, 16), (3, 7)]
# What anyone would write who has torch and no adlm.
OUTSIDE = """
import sys
sys.modules["adlm"] = None
import torch
from safetensors.torch import load_file, save_file

for name in sys.argv[2:]:
    program = torch.export.load(f"{sys.argv[1]}/{name}/model.pt2").module()
    given, made = load_file(f"{sys.argv[1]}/{name}.given"), {}
    for i in range(len([key for key in given if key.startswith("tokens")])):
        times = [given[f"t{i}"]] if f"t{i}" in given else []
        for k, logits in enumerate(program(given[f"tokens{i}"], *times)):
            made[f"{i} {k}"] = logits.detach()
    save_file(made, f"{sys.argv[1]}/{name}.made")
"""


def model_of(network: NetworkConfig) -> TextModel:
    rows = Padded(16, predict_padding=True)
    config = ModelConfig(network, Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id), rows)
    built, noise = config.build().eval(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in built.parameters():  # heads and modulations begin at zero
            weight += 0.3 * torch.randn(weight.shape, generator=noise)
    return TextModel(built, config, TOKENIZER)


def inputs_of(model: TextModel, rows: int, length: int, seed: int = 0) -> dict[str, torch.Tensor]:
    noise = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, TOKENIZER.vocab_size, (rows, length), generator=noise)
    return {"tokens": tokens, **({"t": torch.rand(rows, generator=noise)} if model.network.time_conditioned else {})}


def expected(model: TextModel, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    with model.network.inference_weights():
        features = model.network.features(**inputs)
        logits = model.network.logits(features.final)
        return [logits] if features.anchor is None else [model.network.anchor_logits(features.anchor), logits]


def assert_same(found: list[torch.Tensor], output_mask: list[torch.Tensor]) -> None:
    assert len(found) == len(output_mask)
    for ours, theirs in zip(found, output_mask, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def models() -> dict[str, TextModel]:
    return {name: model_of(network) for name, network in NETWORKS.items()}


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, model in models.items():
        export_program(model, folder / name)
    return folder


@pytest.fixture(scope="module")
def loaded(folder) -> torch.export.ExportedProgram:
    return torch.export.load(folder / "adlm" / "model.pt2")


def test_programs_give_the_package_s_logits_where_the_package_cannot_be_imported(models, folder):
    for name, model in models.items():
        given = [inputs_of(model, *shape) for shape in SHAPES]
        save_file({f"{key}{i}": value for i, each in enumerate(given) for key, value in each.items()},
                  folder / f"{name}.given")  # fmt: skip
    command = [sys.executable, "-W", "error", "-c", OUTSIDE, str(folder), *models]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, model in models.items():
        made = load_file(folder / f"{name}.made")
        for i, shape in enumerate(SHAPES):
            output_mask = expected(model, inputs_of(model, *shape))
            assert_same([made[f"{i} {k}"] for k in range(len(output_mask))], output_mask)
        assert bool((made["0 0" if model.network.anchor_head is None else "0 1"][..., TOKENIZER.mask_id] < -1e30).all())


def test_rows_of_any_number_and_length_go_through_one_program(models, loaded):
    program = loaded.module()

    @settings(max_examples=25, deadline=None)
    @given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 1000))
    def agrees(rows, length, seed):
        inputs = inputs_of(models["adlm"], rows, length, seed)
        with torch.no_grad():
            assert_same(list(program(*inputs.values())), expected(models["adlm"], inputs))

    agrees()


def test_the_file_holds_no_weight_that_only_others_are_derived_from(loaded):
    names = [*loaded.state_dict, *loaded.constants]
    assert any("embedding" in name for name in names)
    assert not any("modulation" in name or "hand_over.project" in name for name in names)


def test_a_model_that_reads_blocks_is_exported_as_it_reads_from_left_to_right(tmp_path):
    box = load("box")
    export_program(box, tmp_path / "box")
    assert json.loads((tmp_path / "box" / "program.json").read_text())["left_to_right"]
    tokens = torch.from_numpy(box.tokenizer.encode("The dog was happy and ran home.")).long()[None]
    logits = torch.export.load(tmp_path / "box" / "model.pt2").module()(tokens)[-1]
    left_to_right = box.network.in_blocks(1)
    with torch.no_grad():
        expected = left_to_right.logits(left_to_right.features(tokens).final)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_blocks_that_were_not_trained_from_left_to_right_cannot_be_exported(tmp_path):
    network = OneStageConfig(StackConfig(width=4, heads=1, layers=1, attention="block"), block_size=4)
    with raises(ConfigError, subject="block_size"):
        export_program(model_of(network), tmp_path / "out")


def test_a_description_and_a_tokenizer_lie_beside_the_program(folder):
    assert sorted(path.name for path in (folder / "mdlm").iterdir()) == ["model.pt2", "program.json", "tokenizer.json"]
    about = json.loads((folder / "mdlm" / "program.json").read_text())
    roles = TOKENIZER.roles
    assert (about["mask_id"], about["eos_id"], about["row_length"]) == (roles.mask_id, roles.eos_id, 16)
    assert (about["inputs"], about["outputs"]) == (["tokens", "t"], ["logits"])
    assert about["after_text"] == [roles.eos_id]
    assert about["rows_are_full"]
    assert not about["left_to_right"]
    about = json.loads((folder / "a2r" / "program.json").read_text())
    assert (about["outputs"], about["left_to_right"]) == (["anchor_logits", "logits"], True)


def test_the_command_writes_a_program_and_nothing_over_other_things(tmp_path, capsys):
    model_of(OneStageConfig(StackConfig(width=4, heads=1, layers=1))).save(tmp_path / "model")
    out = tmp_path / "new" / "program"
    words = ["export", str(tmp_path / "model"), str(out)]
    assert main(words) == 0
    assert f"wrote {out / 'model.pt2'}" in capsys.readouterr().out
    assert main(words) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "model"), "--force"]) == 2
    assert "holds no program" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["program"]


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    model, file = model_of(NETWORKS["ar"]), tmp_path / "file"
    file.write_text("mine")
    with raises(ModelError, subject=str(file)):
        export_program(model, file, force=True)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with raises(MissingExtra, subject="onnx"):
        export_program(model, tmp_path / "out", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_networks_that_are_not_the_package_s_own_are_left_to_others(tmp_path):
    model = model_of(NETWORKS["ar"])
    config = replace(model.config, network=TransformersCausalConfig('{"model_type": "gpt2"}'))
    other = TextModel(TableModel(config.vocabulary, None), config, TOKENIZER)
    with raises(ConfigError, subject="network"):
        export_program(other, tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["mdlm", "a2r"])
def test_onnx_gives_the_same_logits(name, models, tmp_path):
    for module in ("onnx", "onnxscript"):
        pytest.importorskip(module)
    runtime = pytest.importorskip("onnxruntime")
    model = models[name]
    export_program(model, tmp_path / "out", "onnx")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.onnx", "program.json", "tokenizer.json"}
    session = runtime.InferenceSession(tmp_path / "out/model.onnx")
    about = json.loads((tmp_path / "out/program.json").read_text())
    assert [each.name for each in session.get_inputs()] == about["inputs"]
    assert [each.name for each in session.get_outputs()] == about["outputs"]
    assert session.get_inputs()[0].shape == ["rows", "length"]
    for shape in SHAPES:
        inputs = inputs_of(model, *shape)
        found = session.run(None, {key: value.numpy() for key, value in inputs.items()})
        assert_same([torch.from_numpy(each) for each in found], expected(model, inputs))


def test_the_loop_in_the_documentation_writes_a_text(models, tmp_path, monkeypatch, capsys):
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    page = (Path(__file__).parents[2] / "docs" / "convert.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (code,) = (block for block in blocks if "onnxruntime" in block)
    export_program(models["adlm"], tmp_path / "mdlm-onnx", "onnx")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code.replace("Once upon a time", "abc"), names)
    assert TOKENIZER.mask_id not in names["row"]
    assert capsys.readouterr().out.startswith("abc")
