"""An official checkpoint into a model of this package.

ADLM and MDLM weights are taken over as they are. The official AR network reads x_0 ... x_{L-2} and predicts
x_1 ... x_{L-1}, where x_0 is always the begin token; a causal model here puts a mask token before its row and predicts
all of it. The two agree exactly once the mask's embedding is the begin token's and rows are without the begin token:

    official in   BOS  x_1  x_2 ...      here in   mask  x_1  x_2 ...
    predicts      x_1  x_2  x_3 ...      predicts  x_1   x_2  x_3 ...

So that embedding is copied, and rows have one token less. What it overwrites is a vector that the official AR network
never reads: its mask is in no text.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from adlm.configs import from_json
from adlm.convert.checkpoint import StoredTensor, opened
from adlm.convert.checkpoint_tokenizer import UNUSED, Carried, carried, from_checkpoint, named
from adlm.convert.description import Description, described, lookup
from adlm.convert.official import BUFFER, current, key_map
from adlm.data.packing import Packing, Padded, Wrapped
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, ModelError
from adlm.models.io import ModelConfig
from adlm.models.language_model import LanguageModel, NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig

METADATA = "adlm_config"  # under which `to_official` writes down what official files do not say
_LISTED = 20
_BLOCK = re.compile(r"(backbone|denoiser)\.blocks\.([0-9]{1,4})\.")

Stored = StoredTensor | Tensor


@dataclass(frozen=True)
class Options:
    """What a user may say where a file does not, or to choose.

    Args:
        weights: the moving average (ema, where there is one) or the last step's (raw).
        heads: attention heads, where neither configuration nor buffers tell.
        length: tokens a row.
        rows: wrap: packed rows with a begin and an end token (OpenWebText); crop: one document a row (LM1B).
        timed: the network follows the time.
        tokenizer: a name or folder, where the file carries none.
        mask_id: the mask token's id, if not the official one.
    """

    weights: Literal["ema", "raw"] | None = None
    heads: int | None = None
    length: int | None = None
    rows: Literal["wrap", "crop"] | None = None
    timed: bool | None = None
    tokenizer: str | None = None
    mask_id: int | None = None


class Converted(NamedTuple):
    """A model, everything to save it, and what was found, in words."""

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    report: list[str]


class Contents(NamedTuple):
    """What an official file holds: weights by their official names, and the rest."""

    weights: dict[str, Stored]
    averaged: list[Stored] | None = None
    description: Description = Description()
    tokenizer: Carried | None = None
    config: ModelConfig | None = None


def from_official(path: Path, options: Options = Options()) -> Converted:  # noqa: B008
    """Read an official ADLM, MDLM or AR checkpoint (.ckpt), or its state_dict as safetensors."""
    asked = f"asked to convert {path}"
    reader = _safetensors if path.suffix == ".safetensors" else _checkpoint
    try:
        with reader(path, asked) as contents:
            return _converted(contents, options, asked)
    except ConfigError as error:
        # A value that cannot be, as a width that heads do not divide: here it came out of the file, or does not fit it.
        raise ModelError(asked, f"{error.asked.removeprefix('asked ')}: {error.found}", error.fix) from error


@contextmanager
def _checkpoint(path: Path, asked: str) -> Iterator[Contents]:
    with opened(path) as content:
        state = content.get("state_dict") if isinstance(content, dict) else None
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise ModelError(asked, "no state_dict in it", "name a checkpoint that the official training wrote")
        other = [key for key, value in state.items() if not isinstance(value, StoredTensor)]
        if other:
            raise ModelError(asked, f"keys that are not tensors: {_some(other)}", "the file is not an official one")
        hyper_parameters = lookup(content, "hyper_parameters")
        shadow = lookup(content, "ema", "shadow_params")
        if shadow is not None and not (isinstance(shadow, list) and all(isinstance(s, StoredTensor) for s in shadow)):
            raise ModelError(asked, "EMA weights that are not a list of tensors", "use --weights raw")
        config = lookup(hyper_parameters, "config")
        yield Contents(
            _current(state, asked),
            shadow,
            described(config, asked=asked),
            carried(hyper_parameters),
        )


@contextmanager
def _safetensors(path: Path, asked: str) -> Iterator[Contents]:
    if not path.is_file():
        raise ModelError(asked, "no such file", "check the path")
    try:
        with safe_open(path, "pt") as file:
            weights = _current({key: file.get_tensor(key) for key in file.keys()}, asked)  # noqa: SIM118
            ours = (file.metadata() or {}).get(METADATA)
    except (SafetensorError, OSError) as error:
        raise ModelError(asked, f"it cannot be read: {error}", "the file is damaged: get it again") from error
    try:
        config = from_json(ModelConfig, json.loads(ours)) if ours else None
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        found = f"its metadata {METADATA} makes no sense: {error}"
        raise ModelError(asked, found, "the file is damaged: get it again") from error
    yield Contents(weights, config=config)


def _current(weights: Mapping[str, Stored], asked: str) -> dict[str, Stored]:
    """Weights under the newest official names."""
    renamed = {current(key): tensor for key, tensor in weights.items()}
    if len(renamed) < len(weights):
        raise ModelError(asked, "both replica.* and denoiser.* keys", "they are one network's old and new name")
    return renamed


def _converted(contents: Contents, options: Options, asked: str) -> Converted:
    weights = contents.weights
    names, layers = _names(weights, asked)
    kind = "ADLM" if "denoiser" in layers else "MDLM" if "backbone.sigma_map.mlp.0.weight" in names else "AR"
    chosen, report = _chosen(contents, names, options, asked)
    size, width = _sizes(weights["backbone.vocab_embed.embedding"].shape, asked)
    given = options if contents.config is None else _nothing_more(options, asked)
    tokenizer = _tokenizer(contents, size, given, asked)
    if contents.config is None:
        config, notes = _config(contents, layers, kind, tokenizer, given, asked)
        report += notes
    else:
        config = contents.config
        # Before anything is built from it: a file may claim any depth.
        if depths(config.network) != layers or config.vocabulary.size != size:
            raise ModelError(asked, f"metadata {METADATA} of another model", "the file is damaged: get it again")
    model = _filled(config, {ours: chosen[theirs] for theirs, ours in names.items()}, asked)
    if kind == "AR" and contents.config is None:
        embedding = model.get_parameter("embedding.tokens.weight")
        with torch.no_grad():
            embedding[tokenizer.mask_id] = embedding[tokenizer.roles.bos_id]
        report.append("the mask's embedding is now the begin token's: that is what comes before a row here")
    depth = " + ".join(map(str, layers.values()))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    vocabulary = f"vocabulary {size:,}, the mask {tokenizer.mask_id}"
    report.insert(0, f"{kind}: {depth} layers, width {width}, {vocabulary}, {parameters:,} parameters")
    unused = sum(token.startswith(UNUSED) for token in tokenizer.backend.get_vocab(with_added_tokens=True))
    if unused:
        report.append(f"the model has {unused} ids more than its tokenizer; they are marked as unused there")
    return Converted(model.eval(), config, tokenizer, report)


def depths(network: NetworkConfig) -> dict[str, int] | None:
    """The layers of each official network; None if there is nothing official like it."""
    if isinstance(network, TwoStageConfig):
        return {"backbone": network.anchor.layers, "denoiser": network.denoiser_layers}
    return {"backbone": network.stack.layers} if isinstance(network, OneStageConfig) else None


def _sizes(shape: tuple[int, ...], asked: str) -> tuple[int, int]:
    if len(shape) != 2 or 0 in shape:
        raise ModelError(asked, f"an embedding of shape {list(shape)}", "the file is not an official one")
    return shape[0], shape[1]


def _names(weights: Mapping[str, Stored], asked: str) -> tuple[dict[str, str], dict[str, int]]:
    """Official name -> ours, and the layers of each network; every key is accounted for."""
    networks = ["backbone"] + ["denoiser"] * any(key.startswith("denoiser.") for key in weights)
    blocks = {match.groups() for match in map(_BLOCK.match, weights) if match}
    layers = {network: sum(1 for name, _ in blocks if name == network) for network in networks}
    names = key_map(layers, conditioned="backbone.sigma_map.mlp.0.weight" in weights)
    buffers = {f"{network}.{BUFFER}" for network in networks}
    missing, extra = [key for key in names if key not in weights], sorted(weights.keys() - names.keys() - buffers)
    if missing or extra:
        found = "; ".join(
            f"{len(keys)} {what}: {_some(keys)}" for what, keys in (("missing", missing), ("not known", extra)) if keys
        )
        raise ModelError(asked, f"keys {found}", "name an ADLM, MDLM or AR checkpoint of the official code (DiT)")
    return names, layers


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - _LISTED} more" if len(keys) > _LISTED else ""
    return ", ".join(ascii(key[:120])[1:-1] for key in keys[:_LISTED]) + more


def _chosen(
    contents: Contents, names: Mapping[str, str], options: Options, asked: str
) -> tuple[dict[str, Stored], list[str]]:
    """The raw or the averaged weights by official name."""
    weights, averaged = contents.weights, contents.averaged
    raw = {key: weights[key] for key in weights if key in names}
    if averaged is None and options.weights == "ema":
        raise ModelError(asked, "no EMA weights in it", "use --weights raw")
    if averaged is None or options.weights == "raw":
        return raw, ["weights: raw" + (", there are no others" if averaged is None else "")]
    # `parameters()` and `state_dict()` walk a network in the same order; only the latter has buffers. The official
    # list has the backbone first, wherever the state_dict has it.
    order = sorted(raw, key=lambda key: key.startswith("denoiser."))
    if len(averaged) != len(order):
        found = f"{len(averaged)} EMA weights for {len(order)} parameters"
        raise ModelError(asked, found, "use --weights raw")
    for key, tensor in zip(order, averaged, strict=True):
        if tuple(tensor.shape) != tuple(raw[key].shape):
            found = f"an EMA weight of shape {list(tensor.shape)} where {key} has {list(raw[key].shape)}"
            raise ModelError(asked, found, "use --weights raw")
    return dict(zip(order, averaged, strict=True)), ["weights: ema"]


def _nothing_more(options: Options, asked: str) -> Options:
    """A file that was written here says everything but its tokenizer."""
    known = ("weights", "tokenizer")
    idle = [
        field.name for field in fields(options) if field.name not in known and getattr(options, field.name) is not None
    ]
    if idle:
        raise ModelError(asked, f"the file says itself what {', '.join(idle)} would", "leave out these options")
    return options


def _tokenizer(contents: Contents, size: int, options: Options, asked: str) -> Tokenizer:
    mask_id = options.mask_id if contents.config is None else contents.config.vocabulary.mask_id
    if options.tokenizer is not None:
        return named(options.tokenizer, size, mask_id, asked=asked)
    if contents.tokenizer is None:
        raise ModelError(
            asked,
            "no tokenizer in it that can be read as data",
            "give the one it was trained with: --tokenizer NAME_OR_FOLDER (a folder with GPT-2's or BERT's files)",
        )
    return from_checkpoint(contents.tokenizer, size, mask_id, asked=asked)


def _config(
    contents: Contents, layers: Mapping[str, int], kind: str, tokenizer: Tokenizer, options: Options, asked: str
) -> tuple[ModelConfig, list[str]]:
    """The network's shape from the weights' shapes, the rest from the file's configuration or the options."""
    weights, description, notes = contents.weights, contents.description, list[str]()
    causal = kind == "AR"
    if description.causal not in (None, causal):
        found = f"a configuration that says causal={description.causal} with the weights of an {kind} network"
        raise ModelError(asked, found, "configuration and weights belong to different models")
    size, width = weights["backbone.vocab_embed.embedding"].shape
    length = options.length or description.length
    if length is None:
        raise ModelError(asked, "nothing in it says how long a row is", "give --length, as in --length 1024")
    timed = description.timed if options.timed is None else options.timed
    if timed is None and not causal:
        notes.append("nothing says whether it follows the time: taken not to, as published")
    stack = StackConfig(
        width=width,
        heads=_heads(contents, width, layers, options, asked),
        layers=layers["backbone"],
        mlp_ratio=_rows_of(weights, "backbone.blocks.0.mlp.0.weight") // width,
        dropout=description.dropout or 0.0,
        causal=causal,
        condition=0 if causal else _rows_of(weights, "backbone.sigma_map.mlp.0.weight"),
        timed=bool(timed) and not causal,
    )
    network: NetworkConfig = OneStageConfig(stack)
    if "denoiser" in layers:
        network = TwoStageConfig(stack, denoiser_layers=layers["denoiser"])
    wrapped = description.wrapped if options.rows is None else options.rows == "wrap"
    if wrapped is None:
        notes.append("nothing says how rows were made: taken to be packed, with begin and end tokens (--rows wrap)")
    rows = _rows(length, wrapped=wrapped is not False, causal=causal)
    notes.insert(0, f"{stack.heads} heads, {'' if stack.timed else 'not '}time-conditioned, {rows}")
    return ModelConfig(network, Vocabulary(size, tokenizer.mask_id), rows), notes


def _rows_of(weights: Mapping[str, Stored], key: str) -> int:
    shape = weights[key].shape if key in weights else ()
    return shape[0] if shape else 0


def _rows(length: int, *, wrapped: bool, causal: bool) -> Packing:
    """The official rows; those of AR without the begin token, which here comes before the row.

    Two things the official data has and a packing has not: packed rows of AR end with an end token (here with text),
    and networks for one document a row read its padding, uncounted (here nothing sees padding).
    """
    if wrapped:
        return Wrapped(length - 1) if causal else Wrapped(length, framed=True)
    return Padded(length - 1, begin=False, crop=True) if causal else Padded(length, crop=True)


def _heads(contents: Contents, width: int, layers: Mapping[str, int], options: Options, asked: str) -> int:
    """From the options, the configuration and the rotary buffers, which have to agree."""
    found = {"--heads": options.heads, "configuration": contents.description.heads}
    for network in layers:
        key = f"{network}.{BUFFER}"
        if key in contents.weights:
            frequencies = _loaded(contents.weights[key]).float().flatten()
            pairs = frequencies.numel()
            exact = torch.logspace(0, -4 * (pairs - 1) / max(pairs, 1), pairs) if pairs else frequencies
            if not pairs or width % (2 * pairs) or not torch.allclose(frequencies, exact, rtol=1e-2, atol=0):
                raise ModelError(asked, f"{key} is not the rotary one of base 10,000", "there is no model for it here")
            found[key] = width // (2 * pairs)
    values = {value for value in found.values() if value is not None}
    if not values:
        raise ModelError(asked, "nothing in it says how many heads attention has", "give --heads, as in --heads 12")
    if len(values) > 1:
        said = ", ".join(f"{where}: {value}" for where, value in found.items() if value is not None)
        raise ModelError(asked, f"different numbers of heads ({said})", "they have to agree")
    return values.pop()


def _loaded(stored: Stored) -> Tensor:
    return stored.load() if isinstance(stored, StoredTensor) else stored


def _filled(config: ModelConfig, weights: Mapping[str, Stored], asked: str) -> LanguageModel:
    """The network with the weights; shapes are compared before anything of their size is made."""
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in config.build().named_parameters()}
    if shapes.keys() != weights.keys():
        differing = sorted(shapes.keys() ^ weights.keys())
        raise ModelError(asked, f"weights that do not belong together: {_some(differing)}", "get the file again")
    for name, shape in shapes.items():
        stored = weights[name]
        if tuple(stored.shape) != tuple(shape) or not stored.dtype.is_floating_point:
            found = f"{name} would be {list(stored.shape)} of {stored.dtype} instead of {list(shape)}"
            raise ModelError(asked, found, "the weights do not belong together")
    loaded = {name: _loaded(stored) for name, stored in weights.items()}
    model = config.build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(loaded[name])
            if not parameter.isfinite().all():
                raise ModelError(
                    asked, f"{name} holds numbers that are not finite", "the run had diverged: take another"
                )
    return model
