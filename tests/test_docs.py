"""The documentation is run: what a newcomer copies must work."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import adlm
from adlm.cli import commands, main
from adlm.data.config import Corpus
from adlm.train.fit import fit
from adlm.train.run import FitOptions, ValidationConfig
from adlm_studies.experiments.demo import Demo
from tests.plugins import fresh_registry

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# A block with a file's name is that file, for the next block with commands.
TESTED = re.compile(r"^<!-- tested(?:: (\w+\.py))? -->\n```(python|bash)\n(.*?)^```", re.M | re.S)
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}


def blocks():
    for page, text in PAGES.items():
        files: dict[str, str] = {}
        for number, (file, language, block) in enumerate(TESTED.findall(text)):
            if file:
                files[file] = block
            else:
                yield pytest.param(language, block, files, id=f"{page}-{language}-{number}")
                files = {}


BLOCKS = list(blocks())


def test_links_lead_somewhere_and_examples_compile():
    result = subprocess.run([sys.executable, ROOT / "docs/check.py"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder with what `adlm demo` leaves, after two steps of training."""
    folder = tmp_path_factory.mktemp("demo")
    run = Demo(training_steps=2).runs()["ADLM"]
    assert isinstance(run.data, Corpus)
    run = replace(run, data=replace(run.data, source="stories:400"), validation=ValidationConfig(num_rows=8, draws=1))
    fit(run, folder / "runs/demo/adlm", options=FitOptions(cache=folder / "data"))
    return folder


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    assert len(found) == 2
    exec("\n".join(found), {"__name__": "readme"})
    assert capsys.readouterr().out


def test_the_readme_is_short():
    assert len(README.split()) <= 900


def test_the_picture_can_be_made_again(demo, tmp_path):
    picture = tmp_path / "picture.svg"
    command = [sys.executable, ROOT / "docs/picture.py", demo / "runs/demo/adlm", "--out", picture]
    subprocess.run(command, check=True, capture_output=True)
    assert picture.read_text().startswith("<svg")


def test_the_readme_names_only_commands_that_exist():
    named = set(re.findall(r"(?:^|`|-m )adlm ([a-z][a-z-]*)", README, re.M))
    assert named
    assert named - set(commands()) == set()


def test_the_architecture_page_names_only_files_that_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    assert len(named) > 20
    assert [name for name in named if not any((ROOT / folder / name).exists() for folder in ("", "adlm"))] == []


@pytest.mark.parametrize(("language", "block", "files"), BLOCKS)
def test_a_block_marked_as_tested_runs(language, block, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path / "cache"))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    if language == "python":
        # A module of its own: dataclasses look their module up.
        module = type(sys)("page")
        monkeypatch.setitem(sys.modules, "page", module)
        exec(compile(block, "page", "exec"), vars(module))
    else:
        for line in block.replace("\\\n", " ").splitlines():
            command, *words = shlex.split(line, comments=True)
            assert command == "adlm", "only adlm's own commands can be tested here"
            with fresh_registry(tmp_path):
                assert main(words) == 0, line
    assert capsys.readouterr().out


def test_every_mark_stands_before_a_block_that_is_run():
    marks = sum(len(re.findall(r"^<!-- tested", text, re.M)) for text in PAGES.values())
    assert marks == len(BLOCKS) + sum(len(block.values[2]) for block in BLOCKS) > 10


def test_the_four_ways_to_extend_are_under_forty_lines_each():
    files = [block for file, _, block in TESTED.findall(PAGES["extend"]) if file]
    assert len(files) == 4
    assert all(len(block.splitlines()) < 40 for block in files)


def test_the_reference_has_every_public_name():
    named = set(re.findall(r"^::: ([\w.]+)", PAGES["reference"], re.M))
    missing = {name for name in adlm.__all__ if name not in ("evaluate", "samplers")} - {
        path.rsplit(".", 1)[1] for path in named
    }
    assert not missing
    assert all(any(path.startswith(f"adlm.{package}.") for path in named) for package in ("evaluate", "samplers"))


def test_the_page_of_commands_has_every_command():
    paths = [*commands(), *(f"evaluate {name}" for name in commands("adlm.cli.evaluate"))]
    assert [path for path in paths if f"| `adlm {path}" not in PAGES["cli"]] == []


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert set(PAGES) - set(re.findall(r": ([\w-]+)\.md$", navigation, re.M)) == set()


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "index.html").exists()
