import contextlib
import json
import shlex
import subprocess
import sys

import pytest

from adlm import __version__
from adlm.cli import COMMANDS, main
from adlm.cli.evaluate import COMMANDS as MEASUREMENTS


def test_help_lists_every_command_without_importing_torch():
    program = (
        "import sys; from adlm.cli import main; code = main(['--help']); "
        "assert not {'torch', 'numpy', 'tyro', 'rich'} & set(sys.modules); sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name in COMMANDS)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"adlm {__version__}\n"


def test_an_unknown_command_offers_the_nearest(capsys):
    assert main(["demmo"]) == 2
    assert "did you mean 'demo'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [*([name] for name in COMMANDS), *(["evaluate", name] for name in MEASUREMENTS)])
def test_every_command_has_help(words, capsys):
    with contextlib.suppress(SystemExit):  # as tyro ends
        assert main([*words, "--help"]) == 0
    assert f"usage: adlm {' '.join(words)} " in capsys.readouterr().out


def test_prepare_lists_the_catalog(capsys):
    assert main(["prepare", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("kjv", "stories", "lm1b", "openwebtext"))
    header = next(line for line in shown.splitlines() if "name" in line)
    stories = next(line for line in shown.splitlines() if "stories" in line)
    assert header.index("license") <= stories.index("CC0") < header.index("from") <= stories.index("generated")


def test_prepare_writes_shards_and_finds_them_again(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("\n".join(f"line {i} of some notes" for i in range(400)))
    words = ["prepare", str(tmp_path / "notes.txt"), "--tokenizer", "bpe:300", "--length", "16"]
    words += ["--documents", "lines", "--cache", str(tmp_path / "cache"), "--workers", "1"]
    assert main(words) == 0
    manifests = sorted((tmp_path / "cache").glob("*/manifest.json"))
    assert len(manifests) == 3
    stamps = [path.stat().st_mtime_ns for path in manifests]
    assert sum(json.loads(path.read_text())["documents"] for path in manifests) == 400
    assert main(words) == 0
    assert [path.stat().st_mtime_ns for path in manifests] == stamps
    assert "tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "adlm prepare --list"),
        (["wikitext22", "--folder", "."], "'wikitext2'"),
        (["./no/such/file.txt"], "file.txt"),
        (["kjv", "--tokenizer", "bpe:many"], "bpe:many"),
        (["kjv", "--tokenizer", "./no-such-tokenizer"], "./no-such-tokenizer"),
        (["kjv", "--packing", "crop", "--frame"], "--frame"),
        (["kjv", "--tokenizer", "characters", "--workers", "0"], "workers"),
        (["kjv", "--split", "tset", "--tokenizer", "characters"], "'tset'"),
    ],
)
def test_mistakes_are_answered(words, named, tmp_path, capsys):
    assert main(["prepare", *words, "--cache", str(tmp_path)]) == 2
    assert named in capsys.readouterr().err


def test_the_demo_runs_to_its_end_and_the_commands_it_prints_work(tmp_path, capsys, monkeypatch):
    """Two steps of each model: every part of the command, none of the quality."""
    (tmp_path / "text.txt").write_text("\n".join(f"line {i} of some text about {i % 7} things" for i in range(900)))
    words = ["demo", "--quick", "--steps", "2", "--samples", "1", "--out", str(tmp_path / "out")]
    assert main([*words, "--corpus", str(tmp_path / "text.txt")]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("AR", "MDLM", "ADLM", "perplexity", "Masked models"))
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    trained = [each for each in results["outcomes"] if "model" in each["labels"]]
    assert [each["name"] for each in trained] == ["ar", "mdlm", "adlm", "adlm-block"]
    for each in trained:
        (score,) = each["result"]["scores"].values()
        assert score["nats_per_token"]["error"] > 0
        assert (tmp_path / "out" / each["name"] / "model.safetensors").exists()
    assert "<!doctype html>" in (tmp_path / "out" / "report.html").read_text()[:100].lower()
    monkeypatch.chdir(tmp_path)  # where results of evaluations go
    commands = [line.strip() for line in shown.splitlines() if " -m adlm " in line or line.startswith("  adlm ")]
    words = [shlex.split(line[line.index("adlm ") + len("adlm ") :]) for line in commands]
    assert [each[0] for each in words] == ["sample", "infill", "evaluate"]
    for each in words:
        assert main(each) == 0, each


def test_a_demo_without_steps_is_refused(tmp_path, capsys):
    assert main(["demo", "--steps", "0", "--out", str(tmp_path)]) == 2
    assert "--steps" in capsys.readouterr().err


def test_the_demo_needs_something_held_out(tmp_path, capsys):
    (tmp_path / "train.txt").write_text("only training text here")
    assert main(["demo", "--corpus", str(tmp_path / "train.txt"), "--out", str(tmp_path / "out")]) == 2
    assert "nothing held out" in capsys.readouterr().err
