"""A model of llama2.c (`model.bin` and `tokenizer.bin`) into one of this package.

`model.bin` of version 0: seven int32, then float32 tensors one after another, those of all layers together. It is a
Llama: RMS norms, a gated MLP, rotary positions whose pairs are neighbors. The head is the embedding if the vocabulary
size is positive. Rows begin after the begin token, which also ends each document.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from adlm.convert.description import Options, only
from adlm.convert.from_official import Converted
from adlm.convert.native import HEAD, TOKENS, half_split, native_config, native_model
from adlm.convert.scored_pieces import BEGIN, read_scored_pieces
from adlm.data.packing import Padded
from adlm.errors import ModelError
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig

WEIGHTS, PIECES = "model.bin", "tokenizer.bin"
_HEADER = struct.Struct("<7i")


class _Shape(NamedTuple):
    """The header: all sizes as the original names them."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    length: int

    @property
    def tied(self) -> bool:
        return self.vocabulary > 0

    @property
    def tokens(self) -> int:
        return abs(self.vocabulary)

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes in the order of the file."""
        n, dim, head = self.layers, self.dim, self.dim // self.heads
        keys = self.kv_heads * head
        yield "embedding", (self.tokens, dim)
        yield "norm_1", (n, dim)
        yield "q", (n, dim, dim)
        yield "k", (n, keys, dim)
        yield "v", (n, keys, dim)
        yield "out", (n, dim, dim)
        yield "norm_2", (n, dim)
        yield "gate", (n, self.hidden, dim)
        yield "down", (n, dim, self.hidden)
        yield "value", (n, self.hidden, dim)
        yield "norm", (dim,)
        yield "cos", (self.length, head // 2)
        yield "sin", (self.length, head // 2)
        if not self.tied:
            yield "head", (self.tokens, dim)

    @property
    def bytes(self) -> int:
        return _HEADER.size + 4 * sum(math.prod(shape) for _, shape in self.tensors())


def is_llama2c(path: Path) -> bool:
    """Whether this is a file of llama2.c, or a folder with one."""
    file = path / WEIGHTS if path.is_dir() else path
    return file.is_file() and file.suffix == ".bin" and _shape(file) is not None


def from_llama2c(path: Path, options: Options = Options()) -> Converted:  # noqa: B008
    """Read a `model.bin`, or a folder with one; `tokenizer.bin` is beside it, or `options.tokenizer`."""
    asked = f"cannot convert {path}"
    only(options, ("length", "tokenizer"), asked)
    file = path / WEIGHTS if path.is_dir() else path
    shape = _shape(file)
    if shape is None:
        raise ModelError(f"{asked}: {file.name} is not a model of llama2.c (version 0)", subject=file.name)
    pieces = Path(options.tokenizer or file.parent / PIECES)
    if not pieces.is_file():
        fix = f"put {PIECES} beside it, or give --tokenizer FILE"
        raise ModelError(f"{asked}: no {pieces}; {fix}", subject=PIECES)
    tokenizer = read_scored_pieces(pieces, shape.tokens, asked=asked)
    stack = StackConfig(
        width=shape.dim,
        heads=shape.heads,
        layers=shape.layers,
        attention="causal",
        norm="rms",
        mlp="swiglu",
        hidden=shape.hidden,
        kv_heads=shape.kv_heads if shape.kv_heads != shape.heads else 0,
        biases="none",
    )
    network = OneStageConfig(stack, tied=shape.tied, shift=True, start=BEGIN)
    config = native_config(network, tokenizer, Padded(options.length or shape.length, begin=False), asked=asked)
    model = native_model(config, _weights(file, shape), asked=asked)
    report = [
        f"AR: a Llama of llama2.c, {shape.layers} layers of width {shape.dim}, vocabulary {shape.tokens:,} and a mask, "
        f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters",
        f"{config.packing}; rows are read after the token <s>, which also ends them",
    ]
    return Converted(model, config, tokenizer, report)


def _shape(file: Path) -> _Shape | None:
    """The header of a file that is as long as its header says; None if it is not."""
    with file.open("rb") as opened:
        head = opened.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return None
    shape = _Shape(*_HEADER.unpack(head))
    sizes = (*shape[:5], shape.tokens, shape.length)
    if not all(0 < size < 2**24 for size in sizes) or shape.heads % shape.kv_heads or shape.dim % (2 * shape.heads):
        return None
    return shape if shape.bytes == file.stat().st_size else None


def _weights(file: Path, shape: _Shape) -> Iterator[tuple[str, Tensor]]:
    """All weights under their names here."""
    numbers, found, at = np.memmap(file, "<f4", "r", _HEADER.size), dict[str, Tensor](), 0
    for name, size in shape.tensors():
        count = math.prod(size)
        found[name] = torch.from_numpy(np.array(numbers[at : at + count]).reshape(size))
        at += count
    head = shape.dim // shape.heads
    yield TOKENS, found["embedding"]
    for n in range(shape.layers):
        block = f"stack.blocks.{n}."
        q, k = (half_split(found[name][n], head) for name in ("q", "k"))
        yield f"{block}norm_1.weight", found["norm_1"][n]
        yield f"{block}qkv.weight", torch.cat([q, k, found["v"][n]])
        yield f"{block}out.weight", found["out"][n]
        yield f"{block}norm_2.weight", found["norm_2"][n]
        yield f"{block}up.weight", torch.cat([found["gate"][n], found["value"][n]])
        yield f"{block}down.weight", found["down"][n]
    yield "stack.norm.weight", found["norm"]
    if not shape.tied:
        yield HEAD, found["head"]
