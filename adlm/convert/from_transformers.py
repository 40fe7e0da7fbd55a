"""A causal model of the library transformers into a model folder of this package, for settings that no stack here has.

The network stays that library's (`TransformersCausalConfig`); `from_causal` converts all others. The vocabulary gains a
mask, which no text contains and nothing predicts. Rows begin with it, and its embedding is the begin token's, so every
row is read as the original reads it after its begin token.
"""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from adlm.convert.contents import some
from adlm.convert.description import Options, natural, only, settings_of
from adlm.convert.from_official import Converted
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import Tokenizer, load_tokenizer
from adlm.errors import ConfigError, ModelError
from adlm.models.io import ModelConfig
from adlm.models.network import Vocabulary
from adlm.models.transformers_causal import TransformersCausal, TransformersCausalConfig, architecture_of, fill_from
from adlm.models.weights import check_header

LONGEST = 1024  # default row length if the model could read longer rows
# Masks and frequencies that older versions of the library saved among the weights; they are not read.
_BUFFERS = re.compile(r"(.*\.)?(attn|attention)\.(bias|masked_bias)|(.*\.)?rotary_emb\.inv_freq")


def from_transformers(folder: Path, options: Options = Options()) -> Converted:  # noqa: B008
    """Read a folder as transformers saves them, of safetensors only. Needs the extra hf."""
    asked = f"cannot convert {folder}"
    only(options, ("length", "tokenizer"), asked)
    settings, shapes = settings_of(folder, asked), _shapes(folder, asked)
    tokenizer = load_tokenizer(options.tokenizer or folder)
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)
    positions = natural(settings, "n_positions") or natural(settings, "max_position_embeddings") or LONGEST
    length = options.length or min(positions, LONGEST)
    if length > positions:
        found = f"rows of {length:,} tokens for a model of {positions:,}"
        raise ModelError(f"{asked}: {found}", subject="length")
    try:
        network = TransformersCausalConfig(architecture_of(folder))
        config, model = ModelConfig(network, vocabulary, Wrapped(length)), network.build(vocabulary)
    except ConfigError as error:
        found = ": ".join(filter(None, (error.asked, error.found)))
        raise ModelError(asked, found, error.fix, subject=error.subject) from error
    _check_keys(model, shapes, asked)
    unused = _unused(model, shapes, tokenizer, asked)
    fill_from(model, folder, tokenizer.backend.get_vocab(with_added_tokens=True), asked)
    _begin(model, settings, tokenizer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    report = [
        f"AR: a {settings['model_type']} of transformers, vocabulary {vocabulary.size:,}, the mask "
        f"{tokenizer.mask_id}, {parameters:,} parameters",
        f"{config.packing}",
        "the mask's embedding is the begin token's: that is what comes before a row here",
    ]
    if unused:
        report.append(f"left out: {unused:,} embeddings that no token of its tokenizer has")
    return Converted(model.eval(), config, tokenizer, report)


def _shapes(folder: Path, asked: str) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights, by their names in the files."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        check_header(path, asked)
        try:
            with safe_open(path, "pt") as file:
                found |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            what = f"{path.name} cannot be read: {error}"
            raise ModelError(f"{asked}: {what}", subject=path.name) from error
    if not found:
        fix = "get the model as safetensors, or save it again by `save_pretrained`"
        raise ModelError(asked, "no model.safetensors in it", fix, subject="model.safetensors")
    return found


def _check_keys(model: TransformersCausal, shapes: dict[str, tuple[int, ...]], asked: str) -> None:
    """Names that the network has not are refused; those it misses the library tells, which knows what is tied."""
    names = set(model.network.state_dict())
    names |= {name.removeprefix(f"{model.network.base_model_prefix}.") for name in names}
    extra = sorted(name for name in shapes if name not in names and not _BUFFERS.fullmatch(name))
    if extra:
        found = f"keys {len(extra)} not known: {some(extra)}"
        raise ModelError(f"{asked}: {found}; config.json and weights belong to different models", subject=extra[0])


def _unused(model: TransformersCausal, shapes: dict[str, tuple[int, ...]], tokenizer: Tokenizer, asked: str) -> int:
    """How many embeddings have no token. A token without an embedding would have a made-up one, which is refused."""
    first = model.network.get_input_embeddings().weight
    name = next(name for name, parameter in model.network.named_parameters() if parameter is first)
    rows = next((sum(shapes[key][:1]) for key in (name, name.partition(".")[2]) if key in shapes), None)
    if rows is None:
        fix = "config.json and weights belong to different models"
        raise ModelError(f"{asked}: no weights for {name}; {fix}", subject=name)
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    tokens = max(index for index in vocabulary.values() if index != tokenizer.mask_id) + 1
    if tokens > rows:
        found = f"a tokenizer of {tokens:,} tokens for {rows:,} embeddings"
        raise ModelError(f"{asked}: {found}; name the one it was trained with (--tokenizer)", subject="tokenizer")
    return rows - tokens


def _begin(model: TransformersCausal, settings: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Where the settings name no begin token that exists, rows begin with the tokenizer's."""
    given = (settings.get("bos_token_id"), settings.get("eos_token_id"))
    if not any(isinstance(index, int) and index < tokenizer.vocab_size for index in given):
        embedding = model.network.get_input_embeddings().weight
        with torch.no_grad():
            embedding[tokenizer.mask_id] = embedding[tokenizer.roles.bos_id]
