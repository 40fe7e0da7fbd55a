"""A model as a folder: `model.safetensors`, `config.json`, the tokenizer's files and a card. Nothing in it can run.

The same folder is read by `adlm.load` and, after `import adlm.hf`, by the `Auto` classes of transformers
(`transformers_files.py`); networks that are transformers' own already are read by `adlm.load` alone.

A folder counts as a model while it has weights. Saving over one takes the old weights away before anything else
changes and puts the new ones in last, so whenever it is interrupted, config and weights of two models never meet.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adlm.config import from_json, to_json
from adlm.data.chat_template import CHAT_TEMPLATE
from adlm.data.packing import Packing
from adlm.data.tokenizer import Roles, Tokenizer, load_tokenizer
from adlm.errors import AdlmError, ModelError
from adlm.models.card import CARD, Facts, card_text, may_replace
from adlm.models.language_model import LanguageModel
from adlm.models.network import NetworkConfig, Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.transformers_causal import TransformersCausalConfig
from adlm.models.transformers_files import config_fields, own_fields, write_files
from adlm.models.two_stage import TwoStageConfig
from adlm.models.weights import read_weights, write_weights

WEIGHTS, CONFIG = "model.safetensors", "config.json"
TOKENIZER = ("tokenizer.json", "tokenizer_roles.json")
# Everything that loading reads, and so everything that is fetched from the Hub; the last ones if they are there.
FILES = (CONFIG, *TOKENIZER, WEIGHTS)
OPTIONAL_FILES = (CHAT_TEMPLATE,)
FORMAT = 1
# Rows of models that always see full rows are made in this length for every request.
LONGEST_ROW = 1 << 20
# What a config can name. A class is known once its module is imported, so they are imported here.
NETWORKS: tuple[type[NetworkConfig], ...] = (OneStageConfig, TwoStageConfig, TransformersCausalConfig)
_UNFINISHED = ".saving-"


@dataclass(frozen=True)
class ModelConfig:
    """Everything that is needed to build the network again, and how its training rows were packed.

    Args:
        run: the training run, if any, as plain JSON. Loading a model never interprets it.
        sampling: the default sampler, by name, and its options.
    """

    network: NetworkConfig
    vocabulary: Vocabulary
    packing: Packing
    run: dict[str, Any] | None = field(default=None, hash=False)
    sampling: dict[str, Any] = field(default_factory=dict, hash=False)

    def build(self) -> LanguageModel:
        """The network, with random weights."""
        return self.network.build(self.vocabulary)


def save_model(
    folder: Path, model: LanguageModel, config: ModelConfig, tokenizer: Tokenizer, *, facts: Facts | None = None
) -> None:
    """Write a model folder, or replace the model in one. Other files in it stay, and so does a card that was edited.

    Args:
        facts: what the card states beyond the network: license, training data, figures.
    """
    asked = f"cannot save a model to {folder}"
    _check_network(model, config, asked)
    _check_tokenizer(tokenizer, config, asked)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ModelError(f"{asked}: a file is in the way", subject=str(folder)) from error
    for unfinished in folder.glob(_UNFINISHED + "*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    with TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as name:
        new = Path(name)
        if isinstance(config.network, TransformersCausalConfig):
            tokenizer.save(new)
        else:
            write_files(new, tokenizer, config.packing, causal=model.causal, start=config.network.start)
        (new / CONFIG).write_text(json.dumps(config_json(config, tokenizer.roles), indent=2) + "\n")
        if may_replace(folder / CARD):
            text = card_text(model, config.network, config.vocabulary, config.packing, facts)
            (new / CARD).write_text(text, encoding="utf-8")
        write_weights(new / WEIGHTS, model, asked)
        # safetensors makes its file private; give the weights the permissions of the config.
        (new / WEIGHTS).chmod((new / CONFIG).stat().st_mode)
        # All is written. From the next line to the last one the folder is no model; only names change in between.
        (folder / WEIGHTS).unlink(missing_ok=True)
        for name in OPTIONAL_FILES:
            (folder / name).unlink(missing_ok=True)
        for file in sorted(new.iterdir()):
            if file.name != WEIGHTS:
                file.replace(folder / file.name)
        (new / WEIGHTS).replace(folder / WEIGHTS)


def config_json(config: ModelConfig, roles: Roles) -> dict[str, Any]:
    """The content of `config.json`."""
    network, fields = config.network, dict[str, Any]()
    if isinstance(network, OneStageConfig | TwoStageConfig):
        stack = network.stack if isinstance(network, OneStageConfig) else network.anchor
        fields = config_fields(roles, causal=stack.causal, tied=network.tied, start=network.start)
    return {"format": FORMAT, **fields, **to_json(config)}


def is_model(folder: Path) -> bool:
    """Whether a folder says that it is a model of this package, whole or not."""
    try:
        data = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and {"format", "network"} <= own_fields(data).keys()


def load_model(folder: Path, *, asked: str = "") -> tuple[LanguageModel, ModelConfig, Tokenizer]:
    """Read a model folder, strictly: every file, every key, every shape. Weights of 16 or 64 bits become float32.

    Args:
        asked: the first part of error messages, if the folder is not what the user named.
    """
    asked = asked or f"cannot load a model from {folder}"
    config = read_config(folder, asked)
    for name in FILES:
        if not (folder / name).is_file():
            raise _absent(folder, name, asked)
    try:
        tokenizer = load_tokenizer(folder)
    except AdlmError as error:
        found = f"{TOKENIZER[0]} cannot be used: {error.found or error.asked}"
        raise ModelError(asked, found, error.fix, subject=TOKENIZER[0]) from error
    _check_tokenizer(tokenizer, config, asked)
    model = read_weights(folder / WEIGHTS, config.build, asked)
    return model.eval(), config, tokenizer


def read_config(folder: Path, asked: str) -> ModelConfig:
    """The config of a model folder, or an error that says whose it is instead."""
    if not (folder / CONFIG).is_file():
        raise _absent(folder, CONFIG, asked)

    def refused(found: str, fix: str = "the file is damaged: get it again", subject: str = CONFIG) -> ModelError:
        return ModelError(asked, f"{CONFIG} {found}", fix, subject=subject)

    try:
        data = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise refused(f"is not JSON: {error}") from error
    data = own_fields(data) if isinstance(data, dict) else data
    number = data.pop("format", None) if isinstance(data, dict) else None
    if not isinstance(number, int):
        kind = data.get("model_type") if isinstance(data, dict) else None
        theirs = f"a config of the library transformers, model type {kind!r}" if kind else "not one of this package's"
        fix = "name a model of this package; `adlm convert` makes one of official checkpoints"
        raise refused(f"is {theirs}", fix, subject=f"model_type {kind}" if kind else CONFIG)
    if number != FORMAT:
        fix = "install a newer version of adlm" if number > FORMAT else "save the model again, or get it again"
        raise refused(f"has format {number}; this version reads format {FORMAT}", fix, subject="format")
    try:
        config = from_json(ModelConfig, data, where=CONFIG)
    except AdlmError as error:
        found = ": ".join(filter(None, (error.asked, error.found)))
        raise ModelError(asked, found, error.fix, subject=error.subject or CONFIG) from error
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise refused(f"is invalid: {error}") from error
    if config.packing.length > LONGEST_ROW:
        found = f"has rows of {config.packing.length} tokens; at most {LONGEST_ROW} are supported"
        raise refused(found, subject="packing.length")
    return config


def _absent(folder: Path, name: str, asked: str) -> ModelError:
    if not folder.is_dir():
        found = "a file, not a folder" if folder.exists() else "no such folder"
        return ModelError(f"{asked}: {found}", subject=str(folder))
    if any(folder.glob(_UNFINISHED + "*")):
        return ModelError(f"{asked}: no {name}: a save was interrupted; save the model again", subject=_UNFINISHED)
    return ModelError(f"{asked}: no {name}; name a folder that `adlm train` or `TextModel.save` wrote", subject=name)


def _check_network(model: LanguageModel, config: ModelConfig, asked: str) -> None:
    """What is written comes back only under its own names and with its own config."""
    for name, _ in model.named_parameters():
        if name.startswith(("module.", "_orig_mod.")):
            raise ModelError(
                f"{asked}: it is in a wrapper (its first weight is {name}); save the network inside", subject="network"
            )
        break
    if model.vocabulary != config.vocabulary or getattr(model, "config", config.network) != config.network:
        raise ModelError(f"{asked}: it was built from another config", subject="config")


def _check_tokenizer(tokenizer: Tokenizer, config: ModelConfig, asked: str) -> None:
    """Check that ids mean the same to both: as many, the same mask, none beyond the network's vocabulary."""
    roles, vocabulary = tokenizer.roles, config.vocabulary

    def refused(found: str, subject: str) -> ModelError:
        return ModelError(f"{asked}: {found}", subject=subject)

    if (roles.vocab_size, roles.mask_id) != (vocabulary.size, vocabulary.mask_id):
        ours = f"a vocabulary of {vocabulary.size} with mask {vocabulary.mask_id} in the config"
        raise refused(f"{ours}, one of {roles.vocab_size} with mask {roles.mask_id} in {TOKENIZER[1]}", TOKENIZER[1])
    for role in ("eos_id", "bos_id", "pad_id"):
        index = getattr(roles, role)
        if not isinstance(index, int) or not 0 <= index < vocabulary.size:
            raise refused(f"{role} {index!r} for a vocabulary of {vocabulary.size} in {TOKENIZER[1]}", role)
    known = max(tokenizer.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    # A tokenizer without a mask gets one appended by its roles.
    if known not in (vocabulary.size, vocabulary.size - 1):
        found = f"{known} tokens in {TOKENIZER[0]}, a vocabulary of {vocabulary.size} in the config"
        raise refused(found, TOKENIZER[0])
