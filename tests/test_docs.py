"""The documentation is run: what a newcomer copies must work."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from adlm.cli import COMMANDS
from adlm.data.config import Corpus
from adlm.experiments.demo import Demo
from adlm.train.run import ValidationConfig
from adlm.train.trainer import fit

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_lead_somewhere_and_examples_compile():
    result = subprocess.run([sys.executable, ROOT / "docs/check.py"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder with what `adlm demo` leaves, after two steps of training."""
    folder = tmp_path_factory.mktemp("demo")
    run = Demo(training_steps=2).runs()["ADLM"]
    assert isinstance(run.data, Corpus)
    run = replace(run, data=replace(run.data, source="stories:400"), validation=ValidationConfig(rows=8, draws=1))
    fit(run, folder / "runs/demo/adlm", cache=folder / "data")
    return folder


def test_the_thirty_seconds_of_python_run(demo, monkeypatch, capsys):
    monkeypatch.chdir(demo)
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    assert blocks
    for block in blocks:
        exec(block, {"__name__": "readme"})
    assert capsys.readouterr().out


def test_the_picture_can_be_made_again(demo):
    picture = ROOT / "docs/unmasking.svg"
    before = picture.read_bytes()
    try:
        command = [sys.executable, ROOT / "docs/picture.py", demo / "runs/demo/adlm"]
        subprocess.run(command, check=True, capture_output=True)
        assert picture.read_text().startswith("<svg")
    finally:
        picture.write_bytes(before)


def test_the_readme_names_only_commands_that_exist():
    named = set(re.findall(r"(?:^|`|-m )adlm ([a-z][a-z-]*)", README, re.M))
    assert named - set(COMMANDS) == set()


def test_the_tree_in_the_readme_is_the_tree():
    (tree,) = re.findall(r"^```\nadlm/\n(.*?)^```", README, re.M | re.S)
    named = re.findall(r"^  ([\w.]+)/?", tree, re.M)
    assert sorted(named) == sorted(
        path.name for path in (ROOT / "adlm").iterdir() if not path.name.startswith("_") and path.name != "py.typed"
    )
