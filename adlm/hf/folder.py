"""Text models into folders for transformers, and back."""

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from adlm.data.tokenizer import load_tokenizer
from adlm.errors import ModelError
from adlm.hf.config import AdlmConfig
from adlm.hf.models import AdlmForCausalLM, AdlmForMaskedLM
from adlm.hf.tokenizer import fast_tokenizer
from adlm.models.io import CONFIG, TOKENIZER
from adlm.text_model import TextModel

_TOKENIZER_CONFIG = "tokenizer_config.json"


def wrapped(model: TextModel) -> AdlmForMaskedLM | AdlmForCausalLM:
    """The network of a text model as a model of transformers. Both have the same weights."""
    config = AdlmConfig.of(model.config, model.tokenizer.roles)
    made = AdlmForCausalLM(config) if config.causal else AdlmForMaskedLM(config)
    made.network = model.network
    return made.eval()


def export(model: TextModel, folder: str | Path) -> None:
    """Write a folder that transformers loads with this package, and without it where its reader trusts the code in it.

    Other files in the folder stay. The weights come last, so that a folder with weights is whole.
    """
    folder = Path(folder)
    made = wrapped(model)
    tokenizer = fast_tokenizer(model.tokenizer, model.config.packing, causal=made.causal)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".saving-", dir=folder) as name:
        new = Path(name)
        made.save_pretrained(new)
        tokenizer.save_pretrained(new)
        _name_class(new / _TOKENIZER_CONFIG)
        (new / TOKENIZER[1]).write_text(json.dumps(asdict(model.tokenizer.roles), indent=2) + "\n")
        for old in folder.glob("model*.safetensors"):
            old.unlink()
        for file in sorted(new.iterdir(), key=lambda file: file.suffix == ".safetensors"):
            file.replace(folder / file.name)


def _name_class(path: Path) -> None:
    """By the name that all versions of the library know."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def text_model(folder: str | Path) -> TextModel:
    """The text model in a folder for transformers, as `export` and `save_pretrained` write them."""
    folder, asked = Path(folder), f"asked for the text model in {folder}"
    if not (folder / CONFIG).is_file():
        raise ModelError(asked, f"no {CONFIG}", "name a folder that `adlm.hf.export` wrote")
    kind = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("model_type")
    if kind != AdlmConfig.model_type:
        fix = "name a folder that `adlm.hf.export` wrote; one of `TextModel.save` is read by adlm.load"
        raise ModelError(asked, f"its model type is {kind!r}", fix)
    config = AdlmConfig.from_pretrained(folder)
    made = (AdlmForCausalLM if config.causal else AdlmForMaskedLM).from_pretrained(folder)
    return TextModel(made.network, made.model_config, load_tokenizer(folder))
