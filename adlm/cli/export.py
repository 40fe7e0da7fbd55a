"""`adlm export`: a model as a program for use without this package."""

from pathlib import Path
from typing import Annotated

import tyro

from adlm.cli.progress import console
from adlm.convert.program import PROGRAMS, Form, export_program
from adlm.text_model import load


def command(
    model: Annotated[str, tyro.conf.Positional],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    /,
    *,
    to: Form = "torch-export",
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    revision: str | None = None,
) -> None:
    """Export a model as a program that runs without this package, with its tokenizer and what a sampler needs.

    Args:
        model: the folder of a model, its name on the Hugging Face Hub, or box, the bundled model.
        out: the folder to write.
        to: torch-export: model.pt2, for PyTorch and its compiler; onnx: model.onnx, for onnxruntime and others.
        force: replace a program that is there.
        revision: a branch, tag or commit on the Hub.
    """
    export_program(load(model, revision=revision), out, to, force=force)
    console().print(f"wrote {out / PROGRAMS[to]}", highlight=False, markup=False, soft_wrap=True)
