"""A tokenizer with fewer tokens, which reads texts of the kept ones as before.

A byte-pair encoding joins neighbors step by step, so a kept piece needs all pieces on the way to it. Then every text
whose tokens are kept is encoded as before: the joins that were made are all there, and still come first. Other texts
get shorter pieces, and at last bytes, if the tokenizer has them.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from adlm.data.tokenizer import Roles, Tokenizer
from adlm.errors import ConfigError

_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}


def kept_tokens(tokenizer: Tokenizer, wanted: Iterable[int]) -> NDArray[np.int64]:
    """The ids to keep for `wanted`, in order: these, special tokens, bytes, and pieces on the way."""
    description = _description(tokenizer)
    model = description["model"]
    vocabulary: dict[str, int] = model["vocab"]
    roles = asdict(tokenizer.roles)
    keep = {roles[name] for name in ("mask_id", "eos_id", "bos_id", "pad_id")}
    keep |= {added["id"] for added in description["added_tokens"]}
    names = {index: name for name, index in vocabulary.items()}
    pieces = {names[int(index)] for index in wanted if int(index) in names}
    if model["type"] == "BPE":
        alphabet = pre_tokenizers.ByteLevel.alphabet() if _has(description["pre_tokenizer"], "ByteLevel") else ()
        pieces |= _on_the_way(pieces, model["merges"]) | _BYTES | set(alphabet)
    if model.get("unk_token"):
        pieces.add(model["unk_token"])
    keep |= {vocabulary[piece] for piece in pieces if piece in vocabulary}
    return np.array(sorted(keep), np.int64)


def pruned_tokenizer(tokenizer: Tokenizer, kept: NDArray[np.int64]) -> Tokenizer:
    """The tokenizer of these ids (of `kept_tokens`), which are numbered from 0 in this order."""
    description = _description(tokenizer)
    model, number = description["model"], {int(old): new for new, old in enumerate(kept)}
    model["vocab"] = {name: number[index] for name, index in model["vocab"].items() if index in number}
    if model["type"] == "BPE":
        known = model["vocab"]
        model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= known.keys()]
    for added in description["added_tokens"]:
        added["id"] = number[added["id"]]
    description["post_processor"] = None  # it names ids, and rows are framed by their packing
    roles = {name: number[index] for name, index in asdict(tokenizer.roles).items() if name != "vocab_size"}
    backend = Backend.from_str(json.dumps(description))
    return Tokenizer(backend, Roles(vocab_size=len(kept), **roles), tokenizer.chat_template)


def _description(tokenizer: Tokenizer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tokenizer.backend.to_str())
    kind = found["model"]["type"]
    if kind not in ("BPE", "WordLevel"):
        raise ConfigError(
            f"a {kind} tokenizer cannot be pruned, because it chooses pieces by more than their neighbors",
            fix="use a byte-pair encoding, or keep the vocabulary",
            subject=kind,
        )
    return found


def _on_the_way(pieces: Iterable[str], merges: Iterable[list[str]]) -> set[str]:
    """All pieces that joining makes on the way from characters to these, characters among them."""
    ranks = {(left, right): rank for rank, (left, right) in reversed([*enumerate(merges)])}
    found: set[str] = set()
    for piece in pieces:
        symbols = list(piece)
        found.update(symbols)
        while len(symbols) > 1:
            rank, i = min((ranks.get(pair, math.inf), i) for i, pair in enumerate(pairwise(symbols)))
            if rank == math.inf:
                break
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
            found.add(symbols[i])
    return found


def _has(part: Any, kind: str) -> bool:
    return f'"{kind}"' in json.dumps(part)
