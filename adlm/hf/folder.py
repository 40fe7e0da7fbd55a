"""Text models as models of transformers, and model folders for those who do not have this package."""

import json
from pathlib import Path

from adlm.errors import ConfigError
from adlm.hf import modeling_adlm
from adlm.hf.models import AdlmCausalLM, AdlmMaskedLM, transformers_config
from adlm.models.io import CONFIG, ModelConfig, read_config
from adlm.models.stack import StackConfig
from adlm.models.transformers_files import REMOTE_CODE
from adlm.text_model import TextModel

_CODE = Path(modeling_adlm.__file__)
_OF_FAMILIES = ("norm", "norm_eps", "mlp", "hidden", "kv_heads", "head_width", "biases", "query_key_gains",
                "rotary_base", "rotary_fraction", "parallel", "adapter_rank")  # fmt: skip


def wrapped(model: TextModel) -> AdlmMaskedLM | AdlmCausalLM:
    """The network of a text model as a model of transformers. Both share the weights."""
    config = transformers_config(model.config, model.tokenizer.roles)
    made = AdlmCausalLM(config) if config.causal else AdlmMaskedLM(config)
    made.network = model.network
    return made.eval()


def export(model: TextModel, folder: str | Path) -> None:
    """Write a model folder that transformers also loads without this package, if its reader trusts the code in it.

    That is the folder of `TextModel.save` with the file `modeling_adlm.py` added (`add_remote_code`).
    """
    transformers_config(model.config, model.tokenizer.roles)  # refuses networks that the file does not have
    _check_written(model.config)
    model.save(folder)
    add_remote_code(folder)


def _check_written(config: ModelConfig) -> None:
    """Refuse stacks of other families: the file has those of this package's own models."""
    plain = StackConfig()
    for stack in config.network.stacks:
        for name in _OF_FAMILIES:
            if getattr(stack, name) != getattr(plain, name):
                raise ConfigError(
                    "cannot save a model that transformers loads without this package",
                    f"a stack with {name}={getattr(stack, name)}, which the file of its code does not have",
                    "save it as a plain model folder: transformers loads it after `import adlm.hf`",
                    subject=name,
                )


def add_remote_code(folder: str | Path) -> None:
    """Add `modeling_adlm.py` to a model folder, and to its `config.json` where transformers finds the classes."""
    folder = Path(folder)
    _check_written(read_config(folder, f"cannot add code to the model in {folder}"))
    data = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if data.get("model_type") != modeling_adlm.AdlmConfig.model_type:
        raise ConfigError(
            f"cannot add code to the model in {folder}",
            "a model that version 0.1 saved, or whose network is transformers' own",
            "save it again: adlm.load(folder).save(folder)",
            subject=str(folder),
        )
    stem, causal = _CODE.stem, modeling_adlm.AdlmConfig(**data).causal
    name = "AdlmForCausalLM" if causal else "AdlmForMaskedLM"
    auto = "AutoModelForCausalLM" if causal else "AutoModelForMaskedLM"
    data |= {"architectures": [name], "auto_map": {"AutoConfig": f"{stem}.AdlmConfig", auto: f"{stem}.{name}"}}
    (folder / REMOTE_CODE).write_bytes(_CODE.read_bytes())
    (folder / CONFIG).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
