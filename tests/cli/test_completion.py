import shutil
import subprocess

import pytest

from adlm.cli import COMMANDS, completion, main


@pytest.fixture(scope="module")
def words():
    return dict(completion.words_by_command())


def test_every_command_is_there_with_its_options(words):
    assert words["adlm"] == tuple(COMMANDS)
    assert "perplexity" in words["adlm evaluate"]
    assert {"--help", "--out", "--set", "--dry-run"} <= {*words["adlm train"]}
    assert "--draws" in words["adlm evaluate perplexity"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["adlm", "s"], "sample serve studio"),
        (["adlm", "evaluate", "per"], "perplexity"),
        (["adlm", "evaluate", "perplexity", "runs/a", "--dr"], "--draws"),
        (["adlm", "train", "demo-adlm", "--dry"], "--dry-run"),
        (["adlm", "nothing", "--x"], ""),
    ],
)
def test_bash_completes(words, typed, expected, tmp_path):
    if (bash := shutil.which("bash")) is None:
        pytest.skip("no bash here")
    script = tmp_path / "adlm.bash"
    script.write_text(completion._bash(words))
    asked = " ".join(typed)
    program = f'source "$1"; COMP_WORDS=({asked}); COMP_CWORD={len(typed) - 1}; _adlm; echo "${{COMPREPLY[@]}}"'
    shown = subprocess.run([bash, "-c", program, "-", str(script)], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == expected
    assert shown.stderr == ""


def test_fish_and_zsh_get_theirs(words):
    fish = completion._fish(words)
    assert "seen_subcommand_from evaluate; and __fish_seen_subcommand_from perplexity' -l draws" in fish
    assert completion._zsh(words).startswith("autoload")


def test_an_unknown_shell_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        main(["completion", "csh"])
    assert "fish" in "".join(capsys.readouterr())
