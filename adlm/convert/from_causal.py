"""A left-to-right model as the library transformers saves it, into a network of this package's own.

Read as data from `config.json`, safetensors and the tokenizer's files, without that library. See `native` for the mask
and for how rows begin, and `families` for what is known.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from torch import Tensor

from adlm.convert.causal_files import BUFFERS, DIFFERENT, count_unused, left_out, opened, row_length, weight_files
from adlm.convert.contents import some
from adlm.convert.description import Options, only, settings_of
from adlm.convert.families import FAMILIES, ModelFamily, nearest_family, no_counterpart
from adlm.convert.from_official import Converted
from adlm.convert.native import native_config, native_model
from adlm.data.packing import Wrapped
from adlm.data.tokenizer import Tokenizer, load_tokenizer, with_roles
from adlm.errors import ConfigError, ModelError
from adlm.models.gguf_files import SEPARATOR, read_gguf

_REFUSED = ("auto_map", "quantization_config")  # they name code, or another form of the weights
_HEADS = ("lm_head.", "embed_out.")


def from_causal(folder: Path, options: Options = Options()) -> Converted:  # noqa: B008
    """Read a folder of GPT-2, GPT-NeoX, Llama, Qwen2 or Qwen3."""
    asked = f"cannot convert {folder}"
    only(options, ("length", "tokenizer"), asked)
    settings = settings_of(folder, asked)
    for name in _REFUSED:
        if settings.get(name):
            raise ModelError(
                f"{asked}: its config.json has {name}, which is not supported; get the plain model", subject=name
            )
    stored, tokenizer = weights_in(folder, asked), load_tokenizer(options.tokenizer or folder)
    return assembled(settings, stored, tokenizer, options.length, asked=asked)


def from_gguf(path: Path, options: Options = Options()) -> Converted:  # noqa: B008
    """Read a GGUF file. Needs the libraries transformers and gguf (the extra eval)."""
    asked = f"cannot convert {path}"
    only(options, ("length",), asked)
    network, tokenizer = read_gguf(path, asked=asked, purpose="a model in a GGUF file")
    settings = network.config.to_dict()
    if settings["model_type"] not in FAMILIES or (lacking := no_counterpart(settings)) is not None:
        found = f"a {settings['model_type']}" + (f" with {lacking}" if settings["model_type"] in FAMILIES else "")
        near = nearest_family(settings["model_type"])
        raise ModelError(f"{asked}: {found}; the nearest that is known is a plain {near}", subject="model_type")
    settings["bos_token_id"] = tokenizer.get_vocab().get(SEPARATOR, settings.get("bos_token_id"))
    stored = {name: partial(Tensor.detach, weight) for name, weight in network.state_dict().items()}
    ours = with_roles(Backend.from_str(tokenizer.backend_tokenizer.to_str()), tokenizer.chat_template)
    return assembled(settings, stored, ours, options.length, asked=asked)


def weights_in(folder: Path, asked: str) -> dict[str, Callable[[], Tensor]]:
    """Readers for the weights in the safetensors files of a folder, by name."""
    found: dict[str, Callable[[], Tensor]] = {}
    for path in weight_files(folder, asked):
        with opened(path, asked) as file:
            found |= {key: partial(_read, path, key, asked) for key in file.keys()}  # noqa: SIM118
    return found


def _read(path: Path, key: str, asked: str) -> Tensor:
    with opened(path, asked) as file:
        tensor: Tensor = file.get_tensor(key)
    return tensor


class _NamedWeights:
    """Weights by the family's names without their prefix; remembers which were read."""

    def __init__(self, stored: Mapping[str, Callable[[], Tensor]], family: ModelFamily, asked: str) -> None:
        self.prefix, self.asked = family.prefix, asked
        self.stored = {
            key.removeprefix(self.prefix): (key, read) for key, read in stored.items() if not BUFFERS.fullmatch(key)
        }
        self.read: set[str] = set()

    def __call__(self, name: str) -> Tensor:
        if name not in self.stored:
            full = name if name.startswith(_HEADS) else self.prefix + name
            raise ModelError(f"{self.asked}: no weights for {full}; {DIFFERENT}", subject=full)
        self.read.add(name)
        return self.stored[name][1]()

    def check_all_read(self, *, tied: bool) -> None:
        """Refuse weights that the network has no place for; a tied head may be stored too."""
        known = self.read | {name for name in self.stored if tied and name.startswith(_HEADS)}
        left = sorted(key for name, (key, _) in self.stored.items() if name not in known)
        if left:
            found = f"keys {len(left)} not known: {some(left)}"
            raise ModelError(f"{self.asked}: {found}; {DIFFERENT}", subject=left[0])


def assembled(
    settings: Mapping[str, Any],
    stored: Mapping[str, Callable[[], Tensor]],
    tokenizer: Tokenizer,
    length: int | None = None,
    *,
    asked: str,
) -> Converted:
    """The model of these settings, weights and tokenizer.

    Args:
        length: of rows; see `row_length`.
    """
    kind = settings["model_type"]
    family = FAMILIES[kind]
    packing = Wrapped(row_length(settings, length, asked))
    start = _begin(settings, tokenizer)
    try:
        network = replace(family.network(settings), start=start)
    except ConfigError as error:
        raise ModelError(f"{asked}: config.json describes no network: {error.asked}", subject=error.subject) from error
    config = native_config(network, tokenizer, packing, asked=asked)
    weights = _NamedWeights(stored, family, asked)
    unused = count_unused(len(weights(family.embedding)), tokenizer, asked)
    model = native_model(config, family.weights(network, weights), asked=asked)
    weights.check_all_read(tied=network.tied)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    begin = tokenizer.backend.id_to_token(start)
    report = [
        f"AR: a {kind}, {network.stack.layers} layers of width {network.width}, vocabulary "
        f"{tokenizer.vocab_size:,}, the mask {tokenizer.mask_id}, {parameters:,} parameters",
        f"{config.packing}; rows are read after the token {begin!r}",
        *left_out(unused),
    ]
    return Converted(model, config, tokenizer, report)


def _begin(settings: Mapping[str, Any], tokenizer: Tokenizer) -> int:
    """The token that rows begin after: the begin token of the settings, else the end token, else the tokenizer's."""
    given = (settings.get("bos_token_id"), settings.get("eos_token_id"))
    known = [index for index in given if type(index) is int and 0 <= index < tokenizer.vocab_size]
    return known[0] if known else tokenizer.roles.bos_id
