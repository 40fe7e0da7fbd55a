"""A model as a folder: `model.safetensors`, `config.json`, the tokenizer's files. Data only; nothing in it can run."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from adlm.configs import from_json, to_json
from adlm.data.packing import Packing
from adlm.data.tokenizer import Tokenizer, load_tokenizer
from adlm.errors import ModelError
from adlm.models.language_model import LanguageModel, NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.two_stage import TwoStageConfig

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 1
# What a config can name. A class is known once its module is imported, so they are imported here.
NETWORKS: tuple[type[NetworkConfig], ...] = (OneStageConfig, TwoStageConfig)


@dataclass(frozen=True)
class ModelConfig:
    """Everything that is needed to build the network again, and the rows it was trained on."""

    network: NetworkConfig
    vocabulary: Vocabulary
    rows: Packing

    def build(self) -> LanguageModel:
        return self.network.build(self.vocabulary)


def save_model(folder: Path, model: LanguageModel, config: ModelConfig, tokenizer: Tokenizer) -> None:
    """Write a model folder; the weights last, since a folder with weights counts as whole."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    (folder / CONFIG).write_text(json.dumps({"format": FORMAT, **to_json(config)}, indent=2) + "\n")
    # Tied parameters are written once, under their first name.
    weights = {name: parameter.detach().cpu().contiguous() for name, parameter in model.named_parameters()}
    temporary = folder / (WEIGHTS + ".tmp")
    save_file(weights, temporary)
    temporary.replace(folder / WEIGHTS)


def load_model(folder: Path) -> tuple[LanguageModel, ModelConfig, Tokenizer]:
    """Read a model folder, strictly: every key and every shape."""
    asked = f"asked to load a model from {folder}"
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(asked, f"no {name}", "name a folder that `adlm demo` or `adlm train` wrote")
    try:
        data = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(asked, f"{CONFIG} is not JSON: {error}", "the file is damaged: get it again") from error
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise ModelError(asked, f"{CONFIG} is not one of this package's, format {FORMAT}", "convert the model first")
    config = from_json(ModelConfig, data)
    model = config.build()
    try:
        weights = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ModelError(asked, f"{WEIGHTS} cannot be read: {error}", "the file is damaged: get it again") from error
    parameters = dict(model.named_parameters())
    missing, extra = sorted(parameters.keys() - weights.keys()), sorted(weights.keys() - parameters.keys())
    if missing or extra:
        raise ModelError(asked, f"keys missing: {missing[:5]}, not known: {extra[:5]}", "config and weights differ")
    for name, parameter in parameters.items():
        if weights[name].shape != parameter.shape:
            found = f"{name} has shape {list(weights[name].shape)} instead of {list(parameter.shape)}"
            raise ModelError(asked, found, "config and weights belong to different models")
        with torch.no_grad():
            parameter.copy_(weights[name])
    return model.eval(), config, load_tokenizer(folder)
