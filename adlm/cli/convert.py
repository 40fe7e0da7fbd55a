"""`adlm convert`: foreign checkpoints into model folders, and back; and model folders for the library transformers."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from adlm.cli.progress import console
from adlm.convert.options import Options
from adlm.convert.output import check_free, write_safetensors
from adlm.convert.source import converted
from adlm.convert.to_official import to_official
from adlm.errors import ConfigError
from adlm.models.io import load_model, save_model
from adlm.text_model import load


def command(
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    /,
    *,
    to: Literal["adlm", "official", "transformers"] = "adlm",
    options: Annotated[Options, tyro.conf.arg(name="")] = Options(),  # noqa: B008
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Checkpoints of ADLM, MDLM, AR, SEDD and GPT-2 into model folders, and back; and for the library transformers.

    A checkpoint is read as data: nothing in it is run, and one that tries is refused.

    Args:
        source: a .ckpt or .pth of a training, a state_dict as .safetensors or .bin, or a published folder with its
            config.json (MDLM, SEDD, GPT-2); with --to official or transformers a model folder.
        out: the folder to write; with --to official a .safetensors file.
        to: adlm: a model folder; official: a state_dict under the official names; transformers: a folder that this
            library loads, with this package or without it.
        force: replace what is there.
    """
    asked = f"asked to convert {source}"
    if to != "adlm":
        idle = [
            f"--{field.name.replace('_', '-')}" for field in fields(options) if getattr(options, field.name) is not None
        ]
        if idle:
            raise ConfigError(f"asked for --to {to} with {', '.join(idle)}", "a folder says that itself", "leave it")
    if to == "official":
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
    if out.is_file():
        raise ConfigError(asked, f"{out} as the folder to write, which is a file", "name a new folder")
    if to == "transformers":
        _for_transformers(source, out, force=force, asked=asked)
        return
    if out.resolve() == source.resolve():
        raise ConfigError(asked, "the same folder for both", "name a new folder")
    check_free(out, force=force, asked=asked)
    made = converted(source, options)
    for line in made.report:
        _say(line)
    save_model(out, made.model, made.config, made.tokenizer)
    _say(f"wrote {out}")


def _for_transformers(source: Path, out: Path, *, force: bool, asked: str) -> None:
    from adlm.hf import export

    if out.resolve() == source.resolve():
        raise ConfigError(asked, "the same folder for both", "name a new folder")
    check_free(out, force=force, asked=asked)
    export(load(source), out)
    _say(f"wrote {out}, which transformers loads after `import adlm.hf`, or without it where its code is trusted")


def _say(line: str) -> None:
    console().print(line, highlight=False, markup=False, soft_wrap=True)
