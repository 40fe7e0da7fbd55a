"""Model folders that ask for too much are refused when they are loaded."""

import json
import struct

import pytest

from adlm.data.packing import Wrapped
from adlm.data.tokenizer import characters
from adlm.errors import ModelError
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from tests.errors import raises


@pytest.fixture
def folder(tmp_path):
    tokenizer = characters()
    network = OneStageConfig(StackConfig(width=16, heads=2, layers=1))
    config = ModelConfig(network, Vocabulary(tokenizer.vocab_size, tokenizer.mask_id), Wrapped(16))
    save_model(tmp_path / "model", config.build(), config, tokenizer)
    load_model(tmp_path / "model")
    return tmp_path / "model"


def test_rows_of_a_billion_tokens_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    config["packing"]["length"] = 10**9
    (folder / "config.json").write_text(json.dumps(config))
    with raises(ModelError, subject="packing.length"):
        load_model(folder)


def test_a_huge_header_of_weights_is_refused_unread(folder):
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 100 << 20) + b"{")
        file.truncate(101 << 20)
    with raises(ModelError, subject="model.safetensors"):
        load_model(folder)
