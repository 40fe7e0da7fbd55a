"""Causal models of the library transformers as models of this package: GPT-2, Llama and their like.

They predict token l + 1 at position l; here position l predicts token l, from rows that begin with the mask token. The
two are the same function of rows that begin with the mask's vector, which for pretrained weights is that of the begin
token (`fill_from`). No code comes with a model, and its kind is one of a list that tests cover.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from adlm.errors import ConfigError, ModelError, UnknownName, optional_module
from adlm.models.cache import Cache
from adlm.models.embedding import Head, check_length
from adlm.models.language_model import LanguageModel
from adlm.models.layers import positions_in, shift_right
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.stack import Attention, StackConfig
from adlm.types import Features

KINDS = ("gpt2", "gpt_neox", "llama", "qwen2", "qwen3")
# Of a file, not of the function that a network computes; and the vocabulary, which is the tokenizer's.
_LEFT_OUT = ("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "vocab_size")
# They name code, or another form of the weights.
_REFUSED = ("attn_implementation", "auto_map", "experts_implementation", "quantization_config")
_ASKED = "cannot build a network of the library transformers"


@dataclass(frozen=True)
class TransformersCausalConfig(NetworkConfig):
    """A causal network of the library transformers, with as many embeddings as the vocabulary has ids.

    Args:
        architecture: its `config.json` as one text of JSON (`architecture_of`); the size of the vocabulary in it, and
            what else says nothing of the network, is ignored.
    """

    architecture: str

    def __post_init__(self) -> None:
        try:
            settings = json.loads(self.architecture)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"architecture must be JSON, as in a config.json: {error}", subject="architecture"
            ) from error
        kind = settings.get("model_type") if isinstance(settings, dict) else None
        if not isinstance(kind, str):
            raise ConfigError(f"architecture must have a model_type: {', '.join(KINDS)}", subject="model_type")
        if kind not in KINDS:
            raise UnknownName("model_type of transformers", kind, KINDS)
        if refused := [name for name in settings if name.startswith("_") or name in _REFUSED]:
            raise ConfigError(
                f"architecture must not have {', '.join(refused)}, which may name code", subject=refused[0]
            )

    @property
    def stacks(self) -> tuple[StackConfig, ...]:
        return ()

    @property
    def layers(self) -> tuple[int, ...]:
        return (self._setting("num_hidden_layers", "n_layer"),)

    @property
    def width(self) -> int:
        return self._setting("hidden_size", "n_embd")

    @property
    def attention(self) -> Attention:
        return "causal"

    @property
    def learned_positions(self) -> int:
        return self._setting("n_positions") if self._given["model_type"] == "gpt2" else 0

    @property
    def _given(self) -> dict[str, Any]:
        given: dict[str, Any] = json.loads(self.architecture)
        return given

    def _setting(self, *names: str) -> int:
        """A number by the name it has in this kind of network; what is not given has the library's default."""
        given = self._given
        if found := [given[name] for name in names if name in given]:
            try:
                return int(found[0])
            except (TypeError, ValueError) as error:
                raise _not_built(error) from error
        return int(getattr(_settings(self, Vocabulary(1, 0)), names[0]))

    def build(self, vocabulary: Vocabulary) -> "TransformersCausal":
        return TransformersCausal(self, vocabulary)


def architecture_of(folder: Path) -> str:
    """The arguments of `TransformersCausalConfig` for a folder that transformers saved."""
    asked = f"cannot read the network of {folder}"
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{asked}: its config.json cannot be read: {error}", subject="config.json") from error
    if not isinstance(settings, dict) or "model_type" not in settings:
        found = "its config.json is not one of the library transformers"
        fix = "name a model of that library; one of this package is loaded by adlm.load"
        raise ModelError(f"{asked}: {found}; {fix}", subject="model_type")
    return json.dumps({key: settings[key] for key in sorted(settings) if key[0] != "_" and key not in _LEFT_OUT})


class TransformersCausal(LanguageModel):
    """The network of a `TransformersCausalConfig`."""

    config: TransformersCausalConfig
    head: Head

    def __init__(self, config: TransformersCausalConfig, vocabulary: Vocabulary) -> None:
        super().__init__(config, vocabulary)
        self.network: Any = _network(config, vocabulary)
        self.head = _OwnHead(vocabulary, self.network.get_output_embeddings())

    def _features(
        self, tokens: Tensor, t: Tensor | None, segments: Tensor | None, output_mask: Tensor | None
    ) -> Features:
        vectors = self.embed_inputs(shift_right(tokens, self.start_id, segments))
        return self._read(vectors, segments, 0, None, output_mask)

    def embed_inputs(self, inputs: Tensor) -> Tensor:
        return self.network.get_input_embeddings()(inputs)

    def extend_vectors(self, vectors: Tensor, cache: Cache, output_mask: Tensor | None) -> Features:
        return self._read(vectors, cache.segments_after(vectors.shape[1]), cache.length, cache, output_mask)

    def _read(
        self, vectors: Tensor, segments: Tensor | None, start: int, cache: Cache | None, output_mask: Tensor | None
    ) -> Features:
        """Of the positions `start` and after; `segments` has those before them too, and `cache` what they left."""
        base, options = self.network.base_model, {}
        length, end = vectors.shape[1], start + vectors.shape[1]
        if self.learned_positions:
            check_length(end, self.learned_positions)
        if cache is not None or segments is not None:
            seen = torch.ones(length, end, dtype=torch.bool, device=vectors.device).tril(start)[None, None]
            positions = torch.arange(start, end, device=vectors.device)[None]
            if segments is not None:
                seen = seen & (segments[:, start:, None] == segments[:, None, :])[:, None]
                positions = positions_in(segments)[:, start:]
            options = {"attention_mask": seen.expand(len(vectors), -1, -1, -1), "position_ids": positions}
        past = None if cache is None else _Past(cache, base)
        final = base(inputs_embeds=vectors, past_key_values=past, use_cache=False, **options).last_hidden_state
        return Features(final if output_mask is None else final[output_mask])

    def logits(self, final: Tensor) -> Tensor:
        return self.head(final)

    def checkpoint_activations(self, on: bool = True) -> None:
        if on:
            raise ConfigError(
                "activation checkpointing is not available for networks of transformers, which would drop their cache",
                fix="use smaller batches",
                subject="activation_checkpointing",
            )

    def use_int8(self, on: bool = True) -> None:
        if on:
            raise ConfigError("int8 weights are available for the stacks of this package only", subject="int8")

    def compile_blocks(self, *args: Any, **kwargs: Any) -> None:
        self.network.base_model.compile(*args, **kwargs)


class _OwnHead(Head):
    """The network's own last map, whose bias, where it has none, is zero and stays so."""

    def __init__(self, vocabulary: Vocabulary, last: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.mask_id, self.weight = vocabulary.mask_id, last.weight
        bias: nn.Parameter | None = getattr(last, "bias", None)
        if bias is None:
            self.register_buffer("bias", torch.zeros(vocabulary.size), persistent=False)
        else:
            self.bias = bias


class _Past:
    """A cache of ours as the attention of transformers uses one."""

    def __init__(self, cache: Cache, base: nn.Module) -> None:
        self._cache = cache
        self._blocks = next(child for child in base.children() if isinstance(child, nn.ModuleList))

    def update(self, k: Tensor, v: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._cache.of(self._blocks[layer]).append(k, v)

    def get_seq_length(self, layer: int = 0) -> int:
        return self._cache.length


@torch.no_grad()
def fill_from(model: TransformersCausal, folder: Path, vocabulary: dict[str, int], asked: str) -> None:
    """Give `model` the weights in a folder as transformers saves them, of safetensors only.

    Tokens that the folder's model does not know get the mean of the embeddings that it has. The mask, with which rows
    begin here, gets that of the begin token, or of the end token where there is no other: the model's own start.

    Args:
        vocabulary: the ids of the run's tokens.
    """
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{asked}: it has no safetensors file, and pickles are never read", subject="safetensors")
    _check_same(model, folder, asked)
    try:
        other, report = _transformers().AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ModelError(f"{asked}: its weights cannot be read: {error}", subject="weights") from error
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"{asked}: no weights for {', '.join(missing[:5])}", subject=missing[0])
    first, last = other.get_input_embeddings().weight, model.network.get_output_embeddings().weight
    known = min(len(first), model.vocabulary.size, _known_tokens(folder, vocabulary, asked) or len(first))
    by_token = {model.network.get_input_embeddings().weight, last}
    theirs = dict(other.named_parameters())
    for name, ours in model.network.named_parameters():
        if ours in by_token:
            ours[:known] = theirs[name][:known]
            ours[known:] = theirs[name][:known].mean(0)
        else:
            ours.copy_(theirs[name])
    ends = (other.config.bos_token_id, other.config.eos_token_id)
    begin = next((token for token in ends if isinstance(token, int) and token < len(first)), None)
    if begin is not None:
        model.network.get_input_embeddings().weight[model.vocabulary.mask_id] = first[begin]


def _check_same(model: TransformersCausal, folder: Path, asked: str) -> None:
    """Both compute the same of their weights; dropout has none, and token ids are the tokenizer's affair."""
    ours, theirs = (
        _settings(config, model.vocabulary).to_dict()
        for config in (model.config, TransformersCausalConfig(architecture_of(folder)))
    )
    names = [
        name
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name) and not name.endswith(("dropout", "pdrop", "initializer_range"))
    ]
    if names:
        found = ", ".join(f"{name} is {theirs.get(name)} in it and {ours.get(name)} in the run" for name in names)
        fix = "take the network's architecture from the same folder (architecture_of)"
        raise ModelError(f"{asked}: {found}; {fix}", subject=names[0])


def _known_tokens(folder: Path, vocabulary: dict[str, int], asked: str) -> int | None:
    """How many ids the folder's own tokenizer has, each of which is to mean the same in the run."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    theirs = Backend.from_file(str(path)).get_vocab(with_added_tokens=True)
    other = [token for token, index in theirs.items() if vocabulary.get(token) != index]
    if other:
        found = f"{len(other):,} of its {len(theirs):,} tokens, {other[0]!r} among them, have other ids in the run"
        raise ModelError(f"{asked}: {found}; set data.tokenizer={folder}", subject="data.tokenizer")
    return max(theirs.values()) + 1


def _network(config: TransformersCausalConfig, vocabulary: Vocabulary) -> Any:
    settings = _settings(config, vocabulary)
    try:
        # Exactly this attention: others take masks of other forms.
        return _transformers().AutoModelForCausalLM.from_config(
            settings, trust_remote_code=False, attn_implementation="sdpa", dtype=torch.float32
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _not_built(error) from error


def _settings(config: TransformersCausalConfig, vocabulary: Vocabulary) -> Any:
    """The library's own description of a network for this vocabulary, in which no id has a part of its own."""
    given = {name: value for name, value in json.loads(config.architecture).items() if name not in _LEFT_OUT}
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    kinds = _transformers().AutoConfig
    try:
        settings = kinds.for_model(**{**given, **ids, "vocab_size": vocabulary.size})
    except Exception as error:  # the library's checks of values have errors of many kinds
        raise _not_built(error) from error
    if any(kind != "full_attention" for kind in getattr(settings, "layer_types", None) or ()):
        found = "some of its layers see a window only"
        raise ConfigError(f"{_ASKED}: {found}", subject="layer_types")
    return settings


def _not_built(error: Exception) -> ConfigError:
    line = next(iter(str(error).splitlines()), "")
    found = f"it cannot be built: {type(error).__name__} {line}"
    return ConfigError(f"{_ASKED}: {found}", subject="architecture")


def _transformers() -> ModuleType:
    return optional_module("transformers", extra="hf", purpose="a network of the library transformers")
