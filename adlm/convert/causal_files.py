"""The files of a causal model of the library transformers: weights, length and tokenizer, however they are used."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from adlm.convert.description import natural
from adlm.data.tokenizer import Tokenizer
from adlm.errors import ModelError
from adlm.models.weights import check_header

LONGEST = 1024  # default row length if the model could read longer rows
DIFFERENT = "config.json and weights belong to different models"
# Masks and frequencies that older versions of the library saved among the weights; they are not read.
BUFFERS = re.compile(r"(.*\.)?(attn|attention)\.(bias|masked_bias)|(.*\.)?rotary_emb\.inv_freq")


def weight_files(folder: Path, asked: str) -> list[Path]:
    """The safetensors files of a folder, in order."""
    if not (found := sorted(folder.glob("model*.safetensors"))):
        fix = "get the model as safetensors, or save it again by `save_pretrained`: pickles are never read"
        raise ModelError(asked, "no model.safetensors in it", fix, subject="model.safetensors")
    return found


@contextmanager
def opened(path: Path, asked: str) -> Iterator[Any]:
    """A safetensors file, opened."""
    check_header(path, asked)
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{asked}: {path.name} cannot be read: {error}", subject=path.name) from error


def row_length(settings: Mapping[str, Any], length: int | None, asked: str) -> int:
    """The length of rows: as asked for, or as many tokens as the model reads, at most `LONGEST`."""
    positions = natural(settings, "n_positions") or natural(settings, "max_position_embeddings") or LONGEST
    if length is not None and length > positions:
        raise ModelError(f"{asked}: rows of {length:,} tokens for a model of {positions:,}", subject="length")
    return length or min(positions, LONGEST)


def count_unused(rows: int, tokenizer: Tokenizer, asked: str) -> int:
    """How many embeddings have no token. A token without an embedding would have a made-up one, which is refused."""
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=True)
    tokens = max(index for index in vocabulary.values() if index != tokenizer.mask_id) + 1
    if tokens > rows:
        found = f"a tokenizer of {tokens:,} tokens for {rows:,} embeddings"
        raise ModelError(f"{asked}: {found}; name the one it was trained with (--tokenizer)", subject="tokenizer")
    return rows - tokens


def left_out(unused: int) -> list[str]:
    """The line of a report about embeddings without a token."""
    return [f"left out: {unused:,} embeddings that no token of its tokenizer has"] if unused else []
