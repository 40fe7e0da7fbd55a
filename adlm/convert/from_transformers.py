"""A causal model of the library transformers into a model folder of this package, for settings that no stack here has.

The network stays that library's (`TransformersCausalConfig`); `from_causal` converts all others. The vocabulary gains a
mask, which no text contains and nothing predicts. Rows begin with it, and its embedding is the begin token's, so every
row is read as the original reads it after its begin token.
"""

from pathlib import Path
from typing import Any

import torch

from adlm.convert.causal_files import BUFFERS, DIFFERENT, count_unused, left_out, opened, row_length, weight_files
from adlm.convert.contents import some
from adlm.convert.description import Options, only, settings_of
from adlm.convert.from_official import Converted
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import Tokenizer, load_tokenizer
from adlm.errors import ConfigError, ModelError
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.transformers_causal import TransformersCausal, TransformersCausalConfig, architecture_of, fill_from


def from_transformers(folder: Path, options: Options = Options()) -> Converted:  # noqa: B008
    """Read a folder as transformers saves them, of safetensors only. Needs the extra hf."""
    asked = f"cannot convert {folder}"
    only(options, ("length", "tokenizer"), asked)
    settings, shapes = settings_of(folder, asked), _shapes(folder, asked)
    tokenizer = load_tokenizer(options.tokenizer or folder)
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)
    length = row_length(settings, options.length, asked)
    try:
        network = TransformersCausalConfig(architecture_of(folder))
        config, model = ModelConfig(network, vocabulary, Wrapped(length)), network.build(vocabulary)
    except ConfigError as error:
        found = ": ".join(filter(None, (error.asked, error.found)))
        raise ModelError(asked, found, error.fix, subject=error.subject) from error
    _check_keys(model, shapes, asked)
    unused = count_unused(_embeddings(model, shapes, asked), tokenizer, asked)
    fill_from(model, folder, tokenizer.backend.get_vocab(with_added_tokens=True), asked)
    _begin(model, settings, tokenizer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    report = [
        f"AR: a {settings['model_type']} of transformers, vocabulary {vocabulary.size:,}, the mask "
        f"{tokenizer.mask_id}, {parameters:,} parameters",
        f"{config.packing}",
        "the mask's embedding is the begin token's: that is what comes before a row here",
        *left_out(unused),
    ]
    return Converted(model.eval(), config, tokenizer, report)


def _shapes(folder: Path, asked: str) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights, by their names in the files."""
    found: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder, asked):
        with opened(path, asked) as file:
            found |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    return found


def _check_keys(model: TransformersCausal, shapes: dict[str, tuple[int, ...]], asked: str) -> None:
    """Names that the network has not are refused; those it misses the library tells, which knows what is tied."""
    names = set(model.network.state_dict())
    names |= {name.removeprefix(f"{model.network.base_model_prefix}.") for name in names}
    extra = sorted(name for name in shapes if name not in names and not BUFFERS.fullmatch(name))
    if extra:
        raise ModelError(f"{asked}: keys {len(extra)} not known: {some(extra)}; {DIFFERENT}", subject=extra[0])


def _embeddings(model: TransformersCausal, shapes: dict[str, tuple[int, ...]], asked: str) -> int:
    """The number of embeddings in the files."""
    first = model.network.get_input_embeddings().weight
    name = next(name for name, parameter in model.network.named_parameters() if parameter is first)
    rows = next((sum(shapes[key][:1]) for key in (name, name.partition(".")[2]) if key in shapes), None)
    if rows is None:
        raise ModelError(f"{asked}: no weights for {name}; {DIFFERENT}", subject=name)
    return rows


def _begin(model: TransformersCausal, settings: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Where the settings name no begin token that exists, rows begin with the tokenizer's."""
    given = (settings.get("bos_token_id"), settings.get("eos_token_id"))
    if not any(isinstance(index, int) and index < tokenizer.vocab_size for index in given):
        embedding = model.network.get_input_embeddings().weight
        with torch.no_grad():
            embedding[tokenizer.mask_id] = embedding[tokenizer.roles.bos_id]
