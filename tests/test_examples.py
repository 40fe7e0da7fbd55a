"""The example scripts run with the bundled model, and stay short."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_example_runs_and_is_short(script, capsys):
    assert len(script.read_text(encoding="utf-8").splitlines()) < 40
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out
