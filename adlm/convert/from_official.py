"""An official checkpoint of ADLM, MDLM, BD3-LM, AR or SEDD into a model of this package.

ADLM and MDLM weights are taken over as they are, and so are BD3-LM's, whose network is MDLM's with other attention.
The official AR network reads x_0 ... x_{L-2} and predicts x_1 ... x_{L-1}, where x_0 is always the begin token; a
causal model here puts a mask token before its row and predicts all of it. The two agree exactly once the mask's
embedding is the begin token's and rows are without the begin token:

    official in   BOS  x_1  x_2 ...      here in   mask  x_1  x_2 ...
    predicts      x_1  x_2  x_3 ...      predicts  x_1   x_2  x_3 ...

So that embedding is copied, and rows have one token less. What it overwrites is a vector that the official AR network
never reads: its mask is in no text.

SEDD's network is that of a time-conditioned MDLM; what it gives are log-ratios, in which the objective `ScoreEntropy`
has the same formula: log s_v = logit_v - log(V - 1) - log(e^sigma - 1). Neither constant changes which tokens are
likely, so samplers and the bound of masked diffusion take the logits as they are, and normalize them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from adlm.convert.checkpoint import StoredTensor
from adlm.convert.contents import Contents, Stored, read, some
from adlm.convert.description import Options, only
from adlm.convert.official import BUFFER, METADATA, depths, key_map
from adlm.convert.tokenizer import UNUSED, from_checkpoint, named
from adlm.data.packing import Packing, Padded, Wrapped
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ConfigError, ModelError
from adlm.models.io import ModelConfig
from adlm.models.language_model import LanguageModel
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig

GPT2_AND_MASK = 50_258
_BLOCK = re.compile(r"(backbone|denoiser)\.blocks\.([0-9]{1,4})\.")


class Converted(NamedTuple):
    """A model, everything to save it, and what was found, in words."""

    model: LanguageModel
    config: ModelConfig
    tokenizer: Tokenizer
    report: list[str]


def from_official(path: Path, options: Options = Options()) -> Converted:  # noqa: B008
    """Read a checkpoint of ADLM, MDLM, BD3-LM, AR or SEDD: a training file, a state_dict, or a published folder."""
    asked = f"cannot convert {path}"
    try:
        with read(path, asked) as contents:
            return _converted(contents, options, asked)
    except ConfigError as error:
        # A value that cannot be, as a width that heads do not divide: here it came out of the file, or does not fit it.
        found = ": ".join(filter(None, (error.asked, error.found)))
        raise ModelError(asked, found, error.fix, subject=error.subject) from error


def _converted(contents: Contents, options: Options, asked: str) -> Converted:
    weights = contents.weights
    names, layers = _names(weights, asked)
    kind = _kind(contents, layers, names, asked)
    chosen, report = _chosen(contents, names, options, asked)
    size, width = _sizes(weights["backbone.vocab_embed.embedding"].shape, asked)
    given = options if contents.config is None else only(options, ("weights", "tokenizer"), asked)
    tokenizer = _tokenizer(contents, size, given, asked)
    if contents.config is None:
        config, notes = _config(contents, layers, kind, tokenizer, given, asked)
        report += notes
    else:
        config = contents.config
        # Before anything is built from it: a file may claim any depth.
        if depths(config.network) != layers or config.vocabulary.size != size:
            raise ModelError(f"{asked}: metadata {METADATA} of another model", subject="network")
    model = _filled(config, {ours: chosen[theirs] for theirs, ours in names.items()}, asked)
    if kind == "AR" and contents.config is None:
        embedding = model.get_parameter("embedding.tokens.weight")
        with torch.no_grad():
            embedding[tokenizer.mask_id] = embedding[tokenizer.roles.bos_id]
        report.append("the mask's embedding is now the begin token's: that is what comes before a row here")
    if kind == "SEDD":
        report.append(
            "its outputs are log-ratios up to log(V - 1) + log(e^sigma - 1), as in --estimator score-entropy; "
            "samplers and other estimators normalize them"
        )
    depth = " + ".join(map(str, layers.values()))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    vocabulary = f"vocabulary {size:,}, the mask {tokenizer.mask_id}"
    report.insert(0, f"{kind}: {depth} layers, width {width}, {vocabulary}, {parameters:,} parameters")
    unused = sum(token.startswith(UNUSED) for token in tokenizer.backend.get_vocab(with_added_tokens=True))
    if unused:
        report.append(f"the model has {unused} ids more than its tokenizer; they are marked as unused there")
    return Converted(model.eval(), config, tokenizer, report)


def _kind(contents: Contents, layers: Mapping[str, int], names: Mapping[str, str], asked: str) -> str:
    kind = "ADLM" if "denoiser" in layers else "MDLM" if "backbone.sigma_map.mlp.0.weight" in names else "AR"
    if not contents.description.scores:
        return "BD3-LM" if contents.description.block_size is not None and kind == "MDLM" else kind
    if kind != "MDLM":
        raise ModelError(f"{asked}: there is no {kind} network with SEDD's outputs", subject=kind)
    return "SEDD"


def _sizes(shape: tuple[int, ...], asked: str) -> tuple[int, int]:
    if len(shape) != 2 or 0 in shape:
        raise ModelError(f"{asked}: it has an embedding of shape {list(shape)}", subject="embedding")
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
            f"{len(keys)} {what}: {some(keys)}" for what, keys in (("missing", missing), ("not known", extra)) if keys
        )
        subject = sorted(missing or extra)[0]
        raise ModelError(
            asked, f"keys {found}", "name a checkpoint of ADLM, MDLM, BD3-LM, AR or SEDD (DiT)", subject=subject
        )
    return names, layers


def _chosen(
    contents: Contents, names: Mapping[str, str], options: Options, asked: str
) -> tuple[dict[str, Stored], list[str]]:
    """The raw or the averaged weights by official name."""
    weights, averaged = contents.weights, contents.averaged
    raw = {key: weights[key] for key in weights if key in names}
    if averaged is None and options.weights == "ema":
        raise ModelError(f"{asked}: no EMA weights in it; use --weights raw", subject="weights")
    if averaged is None or options.weights == "raw":
        return raw, ["weights: raw" + (", there are no others" if averaged is None else "")]
    # `parameters()` and `state_dict()` walk a network in the same order; only the latter has buffers. The official
    # list has the backbone first, wherever the state_dict has it.
    order = sorted(raw, key=lambda key: key.startswith("denoiser."))
    if len(averaged) != len(order):
        found = f"{len(averaged)} EMA weights for {len(order)} parameters"
        raise ModelError(f"{asked}: {found}; use --weights raw", subject="ema")
    for key, tensor in zip(order, averaged, strict=True):
        if tuple(tensor.shape) != tuple(raw[key].shape):
            found = f"an EMA weight of shape {list(tensor.shape)} where {key} has {list(raw[key].shape)}"
            raise ModelError(f"{asked}: {found}; use --weights raw", subject=key)
    return dict(zip(order, averaged, strict=True)), ["weights: ema"]


def _tokenizer(contents: Contents, size: int, options: Options, asked: str) -> Tokenizer:
    mask_id = options.mask_id if contents.config is None else contents.config.vocabulary.mask_id
    name = options.tokenizer or contents.beside
    if name is not None:
        return named(str(name), size, mask_id, asked=asked)
    if contents.tokenizer is None:
        fix = "give the one it was trained with: --tokenizer NAME_OR_FOLDER (a folder with GPT-2's or BERT's files)"
        if size == GPT2_AND_MASK:
            fix += "; of so many ids that is GPT-2's and a mask: --tokenizer gpt2"
        raise ModelError(asked, "no tokenizer in it that can be read as data", fix, subject="tokenizer")
    return from_checkpoint(contents.tokenizer, size, mask_id, asked=asked)


def _config(
    contents: Contents, layers: Mapping[str, int], kind: str, tokenizer: Tokenizer, options: Options, asked: str
) -> tuple[ModelConfig, list[str]]:
    """The network's shape from the weights' shapes, the rest from the file's configuration or the options."""
    weights, description, notes = contents.weights, contents.description, list[str]()
    causal = kind == "AR"
    if description.causal not in (None, causal):
        found = f"a configuration that says causal={description.causal} with the weights of an {kind} network"
        raise ModelError(f"{asked}: {found}", subject="causal")
    size, width = weights["backbone.vocab_embed.embedding"].shape
    condition = 0 if causal else _rows_of(weights, "backbone.sigma_map.mlp.0.weight")
    for name, value in (("size", size), ("width", width), ("condition", condition), ("layers", layers["backbone"])):
        said = getattr(description, name)
        if said not in (None, value):
            found = f"a configuration that says {name} {said:,} with weights of {name} {value:,}"
            raise ModelError(f"{asked}: {found}", subject=name)
    length = options.length or description.length
    if length is None:
        fix = "give --length, as in --length 1024"
        raise ModelError(f"{asked}: nothing in it says how long a row is; {fix}", subject="length")
    timed = description.timed if options.timed is None else options.timed
    if description.scores and not timed:
        fix = "leave out the option; of an MDLM's backbone, put `backbone.` before the names of its weights"
        raise ModelError(asked, "a SEDD that is not time-conditioned", fix, subject="timed")
    if timed is None and not causal:
        notes.append("nothing says whether it is conditioned on time: assumed not to be, as published")
    stack = StackConfig(
        width=width,
        heads=_heads(contents, width, layers, options, asked),
        layers=layers["backbone"],
        mlp_ratio=_rows_of(weights, "backbone.blocks.0.mlp.0.weight") // width,
        dropout=description.dropout or 0.0,
        attention="causal" if causal else "block" if description.block_size else "full",
        condition=condition,
        timed=bool(timed) and not causal,
    )
    network: NetworkConfig = OneStageConfig(stack, block_size=description.block_size or 0)
    if "denoiser" in layers and description.block_size:
        raise ModelError(f"{asked}: there is no model with two networks and blocks", subject="block_size")
    if "denoiser" in layers:
        network = TwoStageConfig(stack, denoiser_layers=layers["denoiser"])
    wrapped = description.wrapped if options.rows is None else options.rows == "wrap"
    if wrapped is None:
        notes.append("nothing says how rows were made: taken to be packed, with begin and end tokens (--rows wrap)")
    rows = _rows(length, wrapped=wrapped is not False, causal=causal, framed=description.framed)
    blocks = f"blocks of {description.block_size}, " if description.block_size else ""
    notes.insert(0, f"{stack.heads} heads, {blocks}{'' if stack.timed else 'not '}time-conditioned, {rows}")
    return ModelConfig(network, Vocabulary(size, tokenizer.mask_id), rows), notes


def _rows_of(weights: Mapping[str, Stored], key: str) -> int:
    shape = weights[key].shape if key in weights else ()
    return shape[0] if shape else 0


def _rows(length: int, *, wrapped: bool, causal: bool, framed: bool) -> Packing:
    """The official rows; those of AR without the begin token, which here comes before the row.

    Two things the official data has and a packing has not: packed rows of AR end with an end token (here with text),
    and networks for one document per row read its padding, uncounted (here nothing sees padding).
    """
    if wrapped:
        return Wrapped(length - 1) if causal else Wrapped(length, framed=framed)
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
                found_buffer = f"{key} is not the rotary one of base 10,000"
                raise ModelError(f"{asked}: {found_buffer}", subject=key)
            found[key] = width // (2 * pairs)
    values = {value for value in found.values() if value is not None}
    if not values:
        fix = "give --heads, as in --heads 12"
        raise ModelError(f"{asked}: nothing in it says how many heads attention has; {fix}", subject="heads")
    if len(values) > 1:
        said = ", ".join(f"{where}: {value}" for where, value in found.items() if value is not None)
        raise ModelError(f"{asked}: the numbers of heads differ ({said})", subject="heads")
    return values.pop()


def _loaded(stored: Stored) -> Tensor:
    return stored.load() if isinstance(stored, StoredTensor) else stored


def _filled(config: ModelConfig, weights: Mapping[str, Stored], asked: str) -> LanguageModel:
    """The network with the weights; shapes are compared before anything of their size is made."""
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in config.build().named_parameters()}
    if shapes.keys() != weights.keys():
        differing = sorted(shapes.keys() ^ weights.keys())
        raise ModelError(f"{asked}: weights that do not belong together: {some(differing)}", subject=differing[0])
    for name, shape in shapes.items():
        stored = weights[name]
        if tuple(stored.shape) != tuple(shape) or not stored.dtype.is_floating_point:
            found = f"{name} would be {list(stored.shape)} of {stored.dtype} instead of {list(shape)}"
            raise ModelError(f"{asked}: {found}", subject=name)
    loaded = {name: _loaded(stored) for name, stored in weights.items()}
    model = config.build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(loaded[name])
            if not parameter.isfinite().all():
                raise ModelError(f"{asked}: {name} holds numbers that are not finite", subject=name)
    return model
