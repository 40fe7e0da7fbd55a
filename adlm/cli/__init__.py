"""The command line. A command is a file here with a function `command`; it is imported only when it is called.

tyro turns the signature of that function into options and help: types are written once, nested frozen
dataclasses become dotted options, and a wrong value is answered with the right ones.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import NamedTuple

from adlm import __version__, registry
from adlm.errors import AdlmError, ConfigError, Interrupted, UnknownName
from adlm.memory import keep_freed_memory

COMMANDS = {
    "adapt": "turn a left-to-right model into a diffusion model, measured before and after",
    "completion": "print a script for bash, zsh or tcsh that completes commands and options",
    "convert": "convert checkpoints of other projects to model folders, and back; nothing in them is executed",
    "doctor": "print versions, devices, number formats, extras, and which commands would fail",
    "evaluate": "measure perplexity, zero-shot, generation, MAUVE, anchors and more, each with its error",
    "export": "export a model as a torch.export program or ONNX, to run without this package",
    "infill": "fill the holes of a text",
    "lm-eval": "run the benchmarks of lm-evaluation-harness, with its own command line",
    "prepare": "tokenize and pack a corpus into memory-mapped shards",
    "push": "upload a trained model to the Hugging Face Hub, with its card",
    "recipes": "list the named runs and networks, or show one and what it needs",
    "sample": "generate texts, from a prompt or from scratch; --live shows them appear",
    "serve": "serve models over HTTP: OpenAI-compatible completions, infilling, scores, streaming",
    "studio": "open a page in the browser to watch a model write, and to edit the text",
    "train": "train a recipe, on one process or under torchrun; an interrupted run resumes",
}

ABOUT = """Anchored diffusion language models: train, adapt, evaluate, sample and serve them.

  --version        print the version
  --import MODULE  with any command: first import a module that registers classes of yours (see the page "Extend")"""


class Command(NamedTuple):
    """A module with a function `command`, or a package with `COMMANDS` and `ABOUT`."""

    module: str
    summary: str


def commands(package: str = __name__) -> dict[str, Command]:
    """The commands of a package by name, including those of other packages (entry points `adlm.commands`).

    Such an entry point is a mapping from a path, as in "evaluate code", to the module and the summary.
    """
    listed: Mapping[str, str] = importlib.import_module(package).COMMANDS
    found = {name: Command(f"{package}.{name.replace('-', '_')}", summary) for name, summary in listed.items()}
    inside = [*package.removeprefix(__name__).split(".")[1:]]
    for entry in entry_points(group="adlm.commands"):
        for path, (module, summary) in entry.load().items():
            *parents, name = path.split()
            if parents == inside and package.startswith(__name__):
                found[name] = Command(module, summary)
    return dict(sorted(found.items()))


def _help(found: Mapping[str, Command], prog: str, about: str) -> str:
    width = max(map(len, found))
    lines = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in found.items())
    return (
        f"usage: {prog} COMMAND [options]      {prog} COMMAND --help for its options\n\n{about}\n\ncommands:\n{lines}\n"
    )


def _run(words: Sequence[str], package: str, prog: str) -> None:
    """Run one of a package's commands; a command that is itself a package has commands of its own."""
    found = commands(package)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help(found, prog, importlib.import_module(package).ABOUT))
        return
    name, rest = words[0], list(words[1:])
    if name not in found:
        raise UnknownName("command", name, found, where="" if prog == "adlm" else f"of {prog}")
    module = importlib.import_module(found[name].module)
    if hasattr(module, "COMMANDS"):
        _run(rest, module.__name__, f"{prog} {name}")
        return
    if hasattr(module, "passes_on"):  # to another command line
        module.passes_on(rest)
        return
    import tyro

    from adlm.cli.options import with_plain_help

    tyro.cli(with_plain_help(module.command), prog=f"{prog} {name}", args=rest)


def _without_imports(words: Sequence[str]) -> list[str]:
    """Do what `--import MODULE` says, which every command has; the words that are left."""
    left: list[str] = []
    rest = iter(words)
    for word in rest:
        option, equals, module = word.partition("=")
        if option != "--import":
            left.append(word)
        elif equals or (module := next(rest, "")):
            registry.import_module(module)
        else:
            raise ConfigError("--import needs the name of a module", subject="--import")
    return left


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in ("-V", "--version"):
        print(f"adlm {__version__}")
        return 0
    # OpenMP threads that spin long while they wait slow each other down beside any other busy process. A short
    # spin costs nothing on a quiet machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if words and words[0] in ("serve", "studio"):  # many threads, each of which would keep buffers; read with torch
        os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")
    keep_freed_memory()
    try:
        _run(_without_imports(words), __name__, "adlm")
    except AdlmError as error:
        rank = os.environ.get("RANK", "0")
        # What all processes found, the first one tells.
        print(f"adlm: {error}" if rank == "0" else f"adlm: process {rank} stopped: {error.asked}", file=sys.stderr)
        return 128 + error.signal if isinstance(error, Interrupted) else 2
    except KeyboardInterrupt:
        print("adlm: stopped", file=sys.stderr)
        return 130
    return 0
