"""Convert models: foreign checkpoints into model folders, and model folders for others."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Literal

from safetensors.torch import save_file
from torch import Tensor

from adlm.convert.description import Options, settings_of
from adlm.convert.families import FAMILIES, no_counterpart
from adlm.convert.from_causal import from_causal, from_gguf
from adlm.convert.from_llama2c import from_llama2c, is_llama2c
from adlm.convert.from_official import Converted, from_official
from adlm.convert.from_transformers import from_transformers
from adlm.convert.official import to_official
from adlm.errors import ConfigError, ModelError
from adlm.models.gguf_files import SMOLLM2, smollm2_file
from adlm.models.hub import BOX, find_model, find_transformers_model
from adlm.models.io import CONFIG, WEIGHTS, is_model, load_model, save_model
from adlm.text_model import TextModel, load

Target = Literal["adlm", "official"]
_CHECKPOINTS = (".ckpt", ".pth", ".pt", ".bin", ".safetensors", ".gguf")


def convert(
    source: str | Path,
    out: Path,
    *,
    to: Target = "adlm",
    options: Options = Options(),  # noqa: B008
    force: bool = False,
) -> list[str]:
    """Convert a model and write it; returns a report, line by line.

    Args:
        source: a foreign checkpoint, smollm2, or owner/name of a causal model on the Hub; or a model of this package:
            `box`, a folder, or owner/name on the Hub.
        to: a model folder, or a state_dict under the official names.
        options: for a foreign checkpoint.
        force: replace what is there.
    """
    asked = f"cannot convert {source}"
    _check_target(out, to, asked)
    check_free(out, force=force, asked=asked)
    path = foreign_path(source, asked=asked)
    if path is None or to != "adlm":
        check_none_given(options, asked)
    folder = find_model(source, asked=asked) if path is None else path
    if out.resolve() == folder.resolve():
        raise ConfigError(f"{asked} into its own folder; name a new one", subject=str(out))
    if path is not None and to == "adlm":
        made = converted(path, options)
        save_model(out, made.model, made.config, made.tokenizer)
        return [*made.report, f"wrote {out}"]
    model, config, tokenizer = load_model(folder, asked=asked)
    if to == "adlm":
        save_model(out, model, config, tokenizer)
        return [f"wrote {out}"]
    weights, metadata = to_official(model, config, asked=asked)
    write_safetensors(out, weights, metadata)
    report = [f"wrote {out}: {len(weights)} tensors under their official names"]
    if model.causal:
        mask = config.vocabulary.mask_id
        report.append(f"rows begin with the mask token ({mask}), in the place of the official begin token")
    return report


def _check_target(out: Path, to: Target, asked: str) -> None:
    if to == "official" and (out.suffix != ".safetensors" or out.is_dir()):
        raise ConfigError(f"{asked} to {out}: give it a name that ends in .safetensors", subject=str(out))
    if to != "official" and out.is_file():
        raise ConfigError(f"{asked} to {out}: it is a file, not a folder", subject=str(out))


def converted(source: Path, options: Options = Options()) -> Converted:  # noqa: B008
    """The model in a checkpoint of ADLM, MDLM, AR or SEDD, in a folder of a causal model of transformers, in a GGUF
    file, or in the files of llama2.c."""
    if source.suffix == ".gguf":
        return from_gguf(source, options)
    if is_llama2c(source):
        return from_llama2c(source, options)
    if source.is_dir():
        settings = settings_of(source, f"cannot convert {source}")
        if settings.get("model_type") in FAMILIES:
            lacking = no_counterpart(settings)
            return from_causal(source, options) if lacking is None else _from_library(source, lacking, options)
    return from_official(source, options)


def _from_library(folder: Path, lacking: str, options: Options) -> Converted:
    """As a network of transformers, and says why."""
    made = from_transformers(folder, options)
    return made._replace(report=[*made.report, f"it stays a network of transformers: none here has {lacking}"])


def from_ar(source: str | Path, options: Options = Options()) -> TextModel:  # noqa: B008
    """A left-to-right model of another family as a text model of this package, ready to be read in blocks.

    Args:
        source: a folder or file that `converted` reads, owner/name of a causal model on the Hub, or smollm2; a model
            of this package is loaded.
    """
    path = foreign_path(source, asked=f"cannot convert {source}")
    if path is None:
        return load(source)
    made = converted(path, options)
    return TextModel(made.model, made.config, made.tokenizer)


def foreign_path(source: str | Path, *, asked: str) -> Path | None:
    """The path of a model of another project, local or in the Hub's cache; None for a model of this package."""
    path = Path(source)
    if source == SMOLLM2:
        return smollm2_file()
    if source == BOX or is_model(path):
        return None
    if path.exists() or path.suffix in _CHECKPOINTS:
        return path
    if "/" not in str(source):  # no name of the Hub either
        return None
    try:
        find_model(source, asked=asked)
    except ModelError as error:
        if not error.subject.startswith("model_type ") or not isinstance(source, str):
            raise
        return find_transformers_model(source, asked=asked)
    return None


def check_free(out: Path, *, force: bool, asked: str) -> None:
    """Refuse to write where something is, before any work is done."""

    def refused(found: str, fix: str) -> ModelError:
        return ModelError(asked, found, fix, subject=str(out))

    if out.is_dir():
        whole = (out / CONFIG).exists() and (out / WEIGHTS).exists()
        # Hidden names are what an interrupted save leaves.
        if not whole and any(not inside.name.startswith(".") for inside in out.iterdir()):
            raise refused(f"{out} is a folder with other things in it", "name a new folder")
        if whole and not force:
            raise refused(f"{out} holds a model already", "name another folder, or replace it with --force")
    elif out.exists() and not force:
        raise refused(f"{out} exists already", "name another file, or replace it with --force")


def write_safetensors(out: Path, weights: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file, made beside its place and moved there."""
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        save_file(dict(weights), temporary / out.name, metadata=dict(metadata))
        (temporary / out.name).replace(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_none_given(options: Options, asked: str) -> None:
    """Refuse options that only foreign checkpoints have."""
    given = [field.name for field in fields(options) if getattr(options, field.name) is not None]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{asked} with {names}: a model of this package needs no such options", subject=given[0])
