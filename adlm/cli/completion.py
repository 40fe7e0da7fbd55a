"""`adlm completion`: a script that teaches a shell the commands and their options.

Everything is looked up when the script is made, so that a press of the tab key starts no Python.
"""

import contextlib
import importlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal

import tyro

from adlm import cli

_BASH = """_adlm() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" path="adlm" choices="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path ${{COMP_WORDS[i]}}" in {paths}) path="$path ${{COMP_WORDS[i]}}" ;; esac
    done
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
}}
complete -o default -F _adlm adlm
"""


def command(shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional], /) -> None:
    """Print a script that completes commands and options.

    bash: adlm completion bash > ~/.local/share/bash-completion/completions/adlm
    zsh:  adlm completion zsh >> ~/.zshrc
    fish: adlm completion fish > ~/.config/fish/completions/adlm.fish

    Args:
        shell: the one that reads it.
    """
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](dict(words_by_command())), end="")


def words_by_command(path: str = "adlm", package: str = cli.__name__) -> Iterator[tuple[str, tuple[str, ...]]]:
    """For every command, `adlm evaluate perplexity` as well, what may follow: commands, or options."""
    found = cli.commands(package)
    yield path, tuple(found)
    for name, entry in found.items():
        module = importlib.import_module(entry.module)
        if hasattr(module, "COMMANDS"):
            yield from words_by_command(f"{path} {name}", module.__name__)
        elif hasattr(module, "command"):
            yield f"{path} {name}", _options(module.command)
        else:  # the command line of another package
            yield f"{path} {name}", ()


def _options(command: Callable[..., object]) -> tuple[str, ...]:
    """As the help lists them, each at the beginning of a line."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        tyro.cli(command, args=["--help"])
    return tuple(re.findall(r"^[^\w-]*(?:-\w, )?(--[\w.-]+)", shown.getvalue(), re.MULTILINE))


def _bash(words: Mapping[str, tuple[str, ...]]) -> str:
    cases = "\n".join(f'        "{path}") choices="{" ".join(choices)}" ;;' for path, choices in words.items())
    return _BASH.format(paths="|".join(f'"{path}"' for path in words if " " in path), cases=cases)


def _zsh(words: Mapping[str, tuple[str, ...]]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(words)}"


def _fish(words: Mapping[str, tuple[str, ...]]) -> str:
    lines = []
    for path, choices in words.items():
        _, *before = path.split()
        seen = "; and ".join(f"__fish_seen_subcommand_from {name}" for name in before)
        for choice in choices:
            if choice.startswith("--"):
                lines.append(f"complete -c adlm -n '{seen}' -l {choice[2:]}")
            else:
                known = " ".join(words[path])
                condition = f"{seen}; and " if seen else ""
                lines.append(f"complete -c adlm -f -n '{condition}not __fish_seen_subcommand_from {known}' -a {choice}")
    return "\n".join(lines) + "\n"
