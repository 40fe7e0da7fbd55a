import shutil
import subprocess

import pytest

from adlm.cli import main


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("completion") / "adlm.bash"
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: printed.append(" ".join(map(str, words))))
        assert main(["completion", "bash"]) == 0
    file.write_text("\n".join(printed))
    return file


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["adlm", "s"], {"sample", "serve", "studio"}),
        (["adlm", "evaluate", "per"], {"perplexity"}),
        (["adlm", "evaluate", "perplexity", "runs/a", "--dr"], {"--draws"}),
        (["adlm", "train", "demo-adlm", "--dry"], {"--dry-run"}),
    ],
)
def test_bash_completes(script, typed, expected):
    if (bash := shutil.which("bash")) is None:
        pytest.skip("no bash here")
    asked = " ".join(typed)
    function = '$(complete -p adlm | sed "s/.*-F \\([^ ]*\\).*/\\1/")'
    program = f'source "$1"; COMP_WORDS=({asked}); COMP_CWORD={len(typed) - 1}; {function}; echo "${{COMPREPLY[@]}}"'
    shown = subprocess.run([bash, "-c", program, "-", str(script)], capture_output=True, text=True, check=True)
    assert set(shown.stdout.split()) == expected
    assert shown.stderr == ""


def test_an_unknown_shell_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        main(["completion", "csh"])
    assert "zsh" in "".join(capsys.readouterr())
