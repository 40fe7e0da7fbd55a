"""`adlm completion`: a script that teaches a shell the commands and their options."""

import importlib
from typing import Annotated, Any, Literal, Union

import tyro

from adlm import cli


def command(shell: Annotated[Literal["bash", "zsh", "tcsh"], tyro.conf.Positional], /) -> None:
    """Print a script that completes commands and options.

    bash: adlm completion bash > ~/.local/share/bash-completion/completions/adlm

    zsh:  adlm completion zsh > ~/.zfunc/_adlm, with ~/.zfunc in $fpath

    Args:
        shell: the shell that reads the script.
    """
    try:
        tyro.cli(_tree(cli.__name__), prog="adlm", args=["--tyro-print-completion", shell])
    except SystemExit as done:  # after printing
        if done.code:
            raise


def _tree(package: str) -> Any:
    """The commands of a package as one type that tyro understands; each package below it is a command with commands."""
    members = []
    for name, entry in cli.commands(package).items():
        module = importlib.import_module(entry.module)
        if hasattr(module, "COMMANDS"):
            run = _group(_tree(module.__name__))
        elif hasattr(module, "command"):
            run = module.command
        else:  # the command line of another package
            run = _nothing
        members.append(Annotated[Any, tyro.conf.subcommand(name, constructor=run, description=entry.summary)])
    return Union[tuple(members)]  # noqa: UP007 - of a list


def _group(commands: Any) -> Any:
    def run(command: Any) -> None: ...

    run.__annotations__["command"] = Annotated[commands, tyro.conf.arg(name="")]
    return run


def _nothing() -> None: ...
