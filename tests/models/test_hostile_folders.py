"""Model folders that ask for too much are refused when they are loaded."""

import json
import struct

import pytest

from adlm.convert.contents import read
from adlm.convert.from_causal import weights_in
from adlm.convert.tokenizer import Carried, from_checkpoint
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import characters
from adlm.errors import DataError, ModelError
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


def with_a_huge_header(path):
    """A valid file with one tensor, whose header is mostly space."""
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(16 << 20)
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))


def test_a_huge_header_of_weights_is_refused_unread(folder):
    with_a_huge_header(folder / "model.safetensors")
    with raises(ModelError, subject="model.safetensors"):
        load_model(folder)


def test_a_huge_header_is_refused_by_the_converters_too(tmp_path):
    path = tmp_path / "model.safetensors"
    with_a_huge_header(path)
    with raises(ModelError, subject=path.name):
        weights_in(tmp_path, "")
    with raises(ModelError, subject=path.name), read(path, ""):
        pass


def test_a_tokenizer_bomb_in_a_checkpoint_is_refused():
    description = json.loads(characters().backend.to_str())
    bomb = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    description["normalizer"] = {"type": "Sequence", "normalizers": [bomb] * 9}
    with raises(DataError, subject="normalizer"):
        from_checkpoint(Carried(json.dumps(description), {}), 40, None, asked="")
