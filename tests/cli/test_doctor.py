import importlib.metadata
import re
from pathlib import Path

import pytest

from adlm.cli import doctor, main

ROOT = Path(__file__).parents[2]


def test_it_tells_versions_devices_formats_and_files(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for name in ("adlm", "python", "torch", "cores", "cpu", "bfloat16", "int8", "several processes", "prepared data"):
        assert re.search(rf"^  {name}\s+\S", shown, re.MULTILINE), name
    assert "would fail" in shown


def test_every_extra_for_users_is_known():
    extras = set(importlib.metadata.metadata("adlm").get_all("Provides-Extra"))
    assert extras - {"dev", "docs", "release"} == set(doctor.EXTRAS)


def test_what_is_not_installed_or_too_old_is_named_with_what_to_do(monkeypatch, capsys):
    requires = ['no-such-package>=1; extra == "serve"', 'numpy>=900; extra == "kjv"', "torch>=2.9"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: requires)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "missing: no-such-package" in shown
    assert re.search(r"missing: numpy>=900, [\d.]+ is installed", shown)
    assert "pip install 'adlm[serve]'" in shown
    assert "adlm[hf]" not in shown


def test_a_folder_that_is_not_there_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ADLM_DATA", str(tmp_path / "nowhere"))
    main(["doctor"])
    assert "which is not a folder" in capsys.readouterr().out


@pytest.mark.parametrize("extra", doctor.EXTRAS)
def test_the_extras_are_those_of_the_project(extra):
    assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
