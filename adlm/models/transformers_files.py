"""What a model folder holds for the library transformers, written without it.

`config.json` gets the fields that transformers looks for (`model_type`, token ids), beside our own. `tokenizer.json`
gets the mask as a special token and the tokens that rows begin with; `tokenizer_config.json` names the special tokens.
`tokenizer_roles.json` keeps what `tokenizer.json` was before, so that our own reader restores it exactly.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from adlm.data.packing import Packing
from adlm.data.tokenizer import MASK, Roles, Tokenizer

MODEL_TYPE = "adlm"
TOKENIZER_CONFIG, GENERATION_CONFIG = "tokenizer_config.json", "generation_config.json"
REMOTE_CODE = "modeling_adlm.py"
# Of `config.json`, for transformers alone.
_FIELDS = ("model_type", "architectures", "auto_map", "vocab_size", "tie_word_embeddings")
_IDS = ("mask_token_id", "eos_token_id", "pad_token_id", "bos_token_id")


def config_fields(roles: Roles, *, causal: bool, tied: bool, start: int | None = None) -> dict[str, Any]:
    """The fields of `config.json` that transformers reads."""
    return {
        "model_type": MODEL_TYPE,
        "architectures": ["AdlmForCausalLM" if causal else "AdlmForMaskedLM"],
        "vocab_size": roles.vocab_size,
        **token_ids(roles, causal=causal, start=start),
        "tie_word_embeddings": tied,
    }


def token_ids(roles: Roles, *, causal: bool, start: int | None = None) -> dict[str, int]:
    """The special tokens by their names in transformers. Left-to-right rows begin with `start`, or the mask."""
    return {
        "mask_token_id": roles.mask_id,
        "eos_token_id": roles.eos_id,
        "pad_token_id": roles.pad_id,
        "bos_token_id": _first(roles, start) if causal else roles.bos_id,
    }


def _first(roles: Roles, start: int | None) -> int:
    return roles.mask_id if start is None else start


def own_fields(data: dict[str, Any]) -> dict[str, Any]:
    """`config.json` without what belongs to transformers, whoever wrote it: `TextModel.save` or `save_pretrained`."""
    if data.get("model_type") != MODEL_TYPE:
        return data
    own = {name: value for name, value in data.items() if name not in (*_FIELDS, *_IDS)}
    if "transformers_version" in data:  # its own additions cannot be listed: they change with its version
        kept = ("format", "network", "vocabulary", "packing", "rows", "run", "sampling")
        own = {name: value for name, value in own.items() if name in kept}
    if "vocabulary" not in own:  # as version 0.1 exported it
        own["vocabulary"] = {"size": data.get("vocab_size"), "mask_id": data.get("mask_token_id")}
    return {"format": 1, "kind": "ModelConfig", **own}


def for_transformers(
    tokenizer: Tokenizer, packing: Packing, *, causal: bool, start: int | None = None
) -> tuple[Backend, dict[str, Any]]:
    """A copy of a tokenizer that reads `[MASK]` as the mask and begins rows as in training, and its settings.

    Where words and the spaces before them are one token, the space before a mask is part of it. The end token is not
    added, since a prompt has not ended.

    Args:
        causal: for a left-to-right model: texts begin with `start`, by default the mask token.
    """
    roles, backend = tokenizer.roles, Backend.from_str(tokenizer.backend.to_str())
    vocabulary = backend.get_vocab(with_added_tokens=True)
    names = {index: token for token, index in vocabulary.items()}
    mask = names.setdefault(roles.mask_id, MASK)
    spaced = any(len(token) > 1 and token[0] in " Ġ" for token in vocabulary)
    backend.add_special_tokens([AddedToken(mask, special=True, lstrip=spaced and not causal, normalized=False)])
    first = _first(roles, start)
    begin = [*([first] if causal else []), *packing.frame(roles)[0]]
    backend.post_processor = processors.TemplateProcessing(
        single=[*(names[index] for index in begin), "$A"],
        pair=[*(names[index] for index in begin), "$A", "$B"],
        special_tokens=[(names[index], index) for index in dict.fromkeys(begin)],
    )
    return backend, {
        "mask_token": mask,
        "pad_token": names[roles.pad_id],
        "eos_token": names[roles.eos_id],
        "bos_token": names[first if causal else roles.bos_id],
        "unk_token": next((token for token in ("<unk>", "[UNK]") if token in vocabulary), None),
        "model_max_length": packing.length,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "left" if causal else "right",
        "clean_up_tokenization_spaces": False,
    }


def write_files(
    folder: Path, tokenizer: Tokenizer, packing: Packing, *, causal: bool, start: int | None = None
) -> None:
    """Write the tokenizer's files so that both libraries read them, and the defaults of transformers' `generate`."""
    backend, settings = for_transformers(tokenizer, packing, causal=causal, start=start)
    tokenizer.save(folder, shown=backend)
    _write(folder / TOKENIZER_CONFIG, {"tokenizer_class": "PreTrainedTokenizerFast", **settings})
    ids = token_ids(tokenizer.roles, causal=causal, start=start)
    del ids["mask_token_id"]
    # The token that rows of left-to-right models begin with is one more.
    _write(folder / GENERATION_CONFIG, {"do_sample": True, "max_length": packing.length + causal, **ids})


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
