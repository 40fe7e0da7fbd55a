"""What a foreign checkpoint holds, whatever its file: weights under the official names, and what it says of itself.

| file | weights |
|---|---|
| .ckpt of the official training | `state_dict`, moving averages beside it |
| .pth of SEDD's training | `model`, moving averages beside it |
| .bin | the tensors themselves |
| .safetensors | the tensors themselves |
| folder as published | one of the last two, with a `config.json` |

SEDD has one network and calls its weights what ADLM and MDLM do, without the `backbone.` before it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

from adlm.config import from_json
from adlm.convert.checkpoint import StoredTensor, opened
from adlm.convert.description import SEDD, Description, described, description_of, lookup, settings_of
from adlm.convert.official import METADATA, current
from adlm.convert.tokenizer import Carried, carried
from adlm.errors import ConfigError, ModelError
from adlm.models.io import ModelConfig
from adlm.models.weights import check_header

_LISTED = 20
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_TOKENIZERS = ("tokenizer.json", "vocab.json", "encoder.json", "vocab.txt")

Stored = StoredTensor | Tensor


class Contents(NamedTuple):
    """The contents of a checkpoint: weights by their official names, and the rest.

    `beside` is a folder with the files of a tokenizer.
    """

    weights: dict[str, Stored]
    averaged: list[Stored] | None = None
    description: Description = Description()
    tokenizer: Carried | None = None
    config: ModelConfig | None = None
    beside: Path | None = None


@contextmanager
def read(path: Path, asked: str) -> Iterator[Contents]:
    """The contents of a file or a published folder; tensors can be loaded inside the `with`."""
    if path.is_dir():
        description = description_of(settings_of(path, asked), asked=asked)
        with _file(_weights_in(path, asked), asked) as contents:
            has_tokenizer = any((path / name).is_file() for name in _TOKENIZERS)
            yield contents._replace(description=description, beside=path if has_tokenizer else None)
    else:
        with _file(path, asked) as contents:
            yield contents


def some(keys: list[str]) -> str:
    """The first of many names, fit for a terminal."""
    more = f" and {len(keys) - _LISTED} more" if len(keys) > _LISTED else ""
    return ", ".join(ascii(key[:120])[1:-1] for key in keys[:_LISTED]) + more


def _weights_in(folder: Path, asked: str) -> Path:
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"{asked}: neither {' nor '.join(_WEIGHTS)} in the folder", subject=_WEIGHTS[0])


@contextmanager
def _file(path: Path, asked: str) -> Iterator[Contents]:
    reader = _safetensors if path.suffix == ".safetensors" else _checkpoint
    with reader(path, asked) as contents:
        yield contents


@contextmanager
def _checkpoint(path: Path, asked: str) -> Iterator[Contents]:
    with opened(path) as content:
        state = _state(content)
        if state is None or not all(isinstance(key, str) for key in state):
            raise ModelError(f"{asked}: no state_dict in it", subject="state_dict")
        other = [key for key, value in state.items() if not isinstance(value, StoredTensor)]
        if other:
            raise ModelError(f"{asked}: keys that are not tensors: {some(other)}", subject=other[0])
        hyper_parameters = lookup(content, "hyper_parameters")
        shadow = lookup(content, "ema", "shadow_params")
        if shadow is not None and not (isinstance(shadow, list) and all(isinstance(s, StoredTensor) for s in shadow)):
            found = "EMA weights that are not a list of tensors"
            raise ModelError(f"{asked}: {found}; use --weights raw", subject="ema.shadow_params")
        weights, bare = _current(state, asked)
        description = SEDD if bare else described(lookup(hyper_parameters, "config"), asked=asked)
        yield Contents(weights, shadow, description, carried(hyper_parameters))


def _state(content: Any) -> dict[str, Any] | None:
    """The state_dict among what was saved: under its name, SEDD's, or all there is."""
    if not isinstance(content, dict):
        return None
    for key in ("state_dict", "model"):
        if key in content:
            return content[key] if isinstance(content[key], dict) else None
    return content if any(isinstance(value, StoredTensor) for value in content.values()) else None


@contextmanager
def _safetensors(path: Path, asked: str) -> Iterator[Contents]:
    if not path.is_file():
        raise ModelError(f"{asked}: no such file", subject=str(path))
    check_header(path, asked)
    try:
        with safe_open(path, "pt") as file:
            weights, bare = _current({key: file.get_tensor(key) for key in file.keys()}, asked)  # noqa: SIM118
            ours = (file.metadata() or {}).get(METADATA)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{asked}: it cannot be read: {error}", subject=path.name) from error
    try:
        config = from_json(ModelConfig, json.loads(ours)) if ours else None
    except (ConfigError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ModelError(f"{asked}: its metadata {METADATA} makes no sense: {error}", subject=METADATA) from error
    yield Contents(weights, description=SEDD if bare else Description(), config=config)


def _current(weights: Mapping[str, Stored], asked: str) -> tuple[dict[str, Stored], bool]:
    """Weights under the newest official names, and whether they came under SEDD's."""
    if any(key.endswith("wte.weight") for key in weights):
        raise ModelError(
            f"{asked}: these are the weights of a GPT-2 alone; name the folder with its config.json and its tokenizer",
            subject="wte.weight",
        )
    bare = "vocab_embed.embedding" in weights
    renamed = {f"backbone.{key}" if bare else current(key): tensor for key, tensor in weights.items()}
    if len(renamed) < len(weights):
        raise ModelError(f"{asked}: both replica.* and denoiser.* keys", subject="replica")
    return renamed, bare
