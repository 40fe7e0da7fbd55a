"""The command line. A command is a file here with a function `command`; it is imported only when it is called.

tyro turns the signature of that function into options and help: types are written once, nested frozen
dataclasses become dotted options, and a wrong value is answered with the right ones.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from adlm import __version__
from adlm.errors import AdlmError, Interrupted, UnknownName

COMMANDS = {
    "convert": "official ADLM, MDLM and AR checkpoints into model folders, and back; nothing in them is run",
    "demo": "train AR, MDLM and ADLM on text that comes with the package; score them, write samples",
    "prepare": "tokenise and pack a corpus into memory-mapped shards",
    "recipes": "list the runs and networks that have a name; show what one is and takes",
    "train": "train a model by a recipe, on one process or under torchrun; stopped, it goes on where it was",
}


def _help() -> str:
    rows = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    return (
        "usage: adlm COMMAND [options]      adlm COMMAND --help for its options\n\n"
        "Anchored diffusion language models: train, measure, sample, explain and serve them.\n\n"
        f"commands:\n{rows}\n\n"
        "  --version  print the version\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help(), end="")
        return 0
    if words[0] in ("-V", "--version"):
        print(f"adlm {__version__}")
        return 0
    # OpenMP threads that spin long while they wait slow each other down beside any other busy process. A short
    # spin costs nothing on a quiet machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        if words[0] not in COMMANDS:
            raise UnknownName("command", words[0], COMMANDS)
        import tyro

        module = importlib.import_module(f"adlm.cli.{words[0]}")
        tyro.cli(module.command, prog=f"adlm {words[0]}", args=words[1:])
    except AdlmError as error:
        rank = os.environ.get("RANK", "0")
        # What all processes found, the first one tells.
        print(f"adlm: {error}" if rank == "0" else f"adlm: process {rank} stopped: {error.asked}", file=sys.stderr)
        return 128 + error.signal if isinstance(error, Interrupted) else 2
    except KeyboardInterrupt:
        print("adlm: stopped", file=sys.stderr)
        return 130
    return 0
