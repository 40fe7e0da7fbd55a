"""The command line. A command is a file here with a function `command`; it is imported only when it is called.

tyro turns the signature of that function into options and help: types are written once, nested frozen
dataclasses become dotted options, and a wrong value is answered with the right ones.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from adlm import __version__
from adlm.errors import AdlmError, Interrupted, UnknownName
from adlm.memory import keep_freed_memory

COMMANDS = {
    "completion": "a script for bash, zsh or fish that completes commands and options",
    "convert": "official ADLM, MDLM and AR checkpoints into model folders, and back; nothing in them is run",
    "demo": "train AR, MDLM and ADLM on text that comes with the package; score them, write samples and a report",
    "doctor": "versions, devices, number formats, extras, and what would fail",
    "evaluate": "measure: perplexity, zero-shot, generation, MAUVE, anchors and more, each with its error",
    "experiment": "carry out a study of the paper's questions, from training to a report; stopped, it goes on",
    "export": "a model as a program for use without this package: torch.export's, or ONNX",
    "infill": "fill the holes of a text",
    "lm-eval": "the benchmarks of lm-evaluation-harness, by its own command line",
    "prepare": "tokenise and pack a corpus into memory-mapped shards",
    "push": "put a trained model on the Hugging Face Hub, with its card",
    "reason": "train and measure models that answer in steps, with anchors: ACoT, Coconut and others",
    "recipes": "list the runs and networks that have a name; show what one is and takes",
    "report": "compare trained runs on one page: figures, curves, samples, and a text as it appears",
    "sample": "write texts, on from a prompt or out of nothing; --live shows them appear",
    "serve": "models over HTTP: OpenAI's completions, infilling, scores, and texts streamed while they appear",
    "studio": "a page on which texts appear around their anchors, to watch and to take a hand in",
    "train": "train a model by a recipe, on one process or under torchrun; stopped, it goes on where it was",
}

ABOUT = """Anchored diffusion language models: train, measure, sample, explain and serve them.

  --version  print the version"""


def _help(commands: Mapping[str, str], prog: str, about: str) -> str:
    wide = max(map(len, commands))
    rows = "\n".join(f"  {name:<{wide}}  {summary}" for name, summary in commands.items())
    return (
        f"usage: {prog} COMMAND [options]      {prog} COMMAND --help for its options\n\n{about}\n\ncommands:\n{rows}\n"
    )


def _run(words: Sequence[str], commands: Mapping[str, str], package: str, about: str) -> None:
    """One of the commands that a package has, a file each; one that has commands itself is a package again."""
    prog = package.replace(".cli", "").replace(".", " ")
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help(commands, prog, about))
        return
    name, rest = words[0], list(words[1:])
    if name not in commands:
        raise UnknownName("command" if prog == "adlm" else f"command of {prog}", name, commands)
    module = importlib.import_module(f"{package}.{name.replace('-', '_')}")
    if hasattr(module, "COMMANDS"):
        _run(rest, module.COMMANDS, module.__name__, module.ABOUT)
        return
    if hasattr(module, "passes_on"):  # to another command line
        module.passes_on(rest)
        return
    import tyro

    tyro.cli(module.command, prog=f"{prog} {name}", args=rest)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in ("-V", "--version"):
        print(f"adlm {__version__}")
        return 0
    # OpenMP threads that spin long while they wait slow each other down beside any other busy process. A short
    # spin costs nothing on a quiet machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    keep_freed_memory()
    try:
        _run(words, COMMANDS, "adlm.cli", ABOUT)
    except AdlmError as error:
        rank = os.environ.get("RANK", "0")
        # What all processes found, the first one tells.
        print(f"adlm: {error}" if rank == "0" else f"adlm: process {rank} stopped: {error.asked}", file=sys.stderr)
        return 128 + error.signal if isinstance(error, Interrupted) else 2
    except KeyboardInterrupt:
        print("adlm: stopped", file=sys.stderr)
        return 130
    return 0
