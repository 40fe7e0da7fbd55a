import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from adlm.data.packing import Wrapped
from adlm.data.tokenizer import characters
from adlm.errors import AdlmError, ConfigError, ModelError
from adlm.models.io import ModelConfig, load_model, save_model
from adlm.models.language_model import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import Continued, TwoStageConfig

TOKENIZER = characters("ab")
STACK = StackConfig(width=8, heads=2, layers=1)


@pytest.fixture(params=[OneStageConfig(STACK), TwoStageConfig(STACK, 1, Continued(), tied=True)], ids=["one", "two"])
def folder(request, tmp_path):
    config = ModelConfig(request.param, Vocabulary(TOKENIZER.vocab_size, TOKENIZER.mask_id), Wrapped(8))
    model = config.build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    save_model(tmp_path, model, config, TOKENIZER)
    return tmp_path, model, config


def test_a_saved_model_comes_back_to_the_bit(folder):
    path, model, config = folder
    loaded, found, tokenizer = load_model(path)
    assert found == config
    assert tokenizer.fingerprint == TOKENIZER.fingerprint
    tokens = torch.randint(0, 3, (2, 8))
    assert torch.equal(model.eval().features(tokens).final, loaded.features(tokens).final)


def test_what_does_not_fit_is_named(folder):
    path, _, _ = folder
    weights = load_file(path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())

    def broken(change=None, config_text=None):
        save_file(change or weights, path / "model.safetensors")
        (path / "config.json").write_text(config_text or json.dumps(config))

    def refused(kind, match):
        with pytest.raises(kind, match=match):
            load_model(path)

    broken({**weights, "extra": torch.zeros(1)})
    refused(ModelError, r"not known: \['extra'\]")
    broken({name: tensor for name, tensor in weights.items() if name != "head.bias"})
    refused(ModelError, r"keys missing: \['head.bias'\]")
    broken({**weights, "head.bias": torch.zeros(3)})
    refused(ModelError, r"head.bias has shape \[3\]")
    broken(config_text="{")
    refused(ModelError, "not JSON")
    broken(config_text='{"format": 7}')
    refused(ModelError, "not one of this package's")
    broken(config_text=json.dumps({**config, "vocabularly": 3}))
    refused(ConfigError, "did you mean 'vocabulary'")
    broken(config_text=json.dumps({**config, "rows": {"kind": "Wrapped", "length": "long"}}))
    refused(ConfigError, "give a value of type int")
    broken(config_text=json.dumps({**config, "network": {"kind": "os.system"}}))
    refused(AdlmError, "no kind of NetworkConfig")
    broken()
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-10])
    refused(ModelError, "cannot be read")
    (path / "model.safetensors").unlink()
    refused(ModelError, "no model.safetensors")
