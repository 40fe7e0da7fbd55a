"""`adlm convert`: official checkpoints into model folders, and back."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from adlm.cli.progress import console
from adlm.convert.from_official import Options, from_official
from adlm.convert.output import check_free, write_safetensors
from adlm.convert.to_official import to_official
from adlm.errors import ConfigError
from adlm.models.io import load_model, save_model


def command(
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    /,
    *,
    to: Literal["adlm", "official"] = "adlm",
    options: Annotated[Options, tyro.conf.arg(name="")] = Options(),  # noqa: B008
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Official ADLM, MDLM and AR checkpoints into model folders, and back.

    A checkpoint is read as data: nothing in it is run, and one that tries is refused.

    Args:
        source: an official .ckpt, or a state_dict under official names as .safetensors; with --to official a model
            folder.
        out: the model folder to write; with --to official a .safetensors file.
        to: adlm: a model folder; official: a state_dict under the official names.
        force: replace what is there.
    """
    asked = f"asked to convert {source}"
    if to == "official":
        idle = [
            f"--{field.name.replace('_', '-')}" for field in fields(options) if getattr(options, field.name) is not None
        ]
        if idle:
            raise ConfigError(
                f"asked for --to official with {', '.join(idle)}", "a folder says that itself", "leave it"
            )
        if out.suffix != ".safetensors" or out.is_dir():
            raise ConfigError(asked, f"{out} as the file to write", "give it a name that ends in .safetensors")
        check_free(out, force=force, asked=asked)
        model, config, _ = load_model(source)
        weights, metadata = to_official(model, config, asked=asked)
        write_safetensors(out, weights, metadata)
        _say(f"wrote {out}: {len(weights)} tensors under their official names")
        if model.causal:
            _say(
                f"its rows start from the mask token ({config.vocabulary.mask_id}), which goes where a begin token does"
            )
        return
    if source.is_dir():
        raise ConfigError(asked, "a folder", "name an official .ckpt, or turn a model folder into one: --to official")
    if out.is_file():
        raise ConfigError(asked, f"{out} as the folder to write, which is a file", "name a new folder")
    check_free(out, force=force, asked=asked)
    converted = from_official(source, options)
    for line in converted.report:
        _say(line)
    save_model(out, converted.model, converted.config, converted.tokenizer)
    _say(f"wrote {out}")


def _say(line: str) -> None:
    console().print(line, highlight=False, markup=False, soft_wrap=True)
