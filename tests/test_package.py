"""Promises about the package as a whole: layers, public names, the wheel."""

import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import adlm

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, STUDIES = ROOT / "adlm", ROOT / "adlm_studies"

# From the top down; a module may import from its own layer and from those below it.
LAYERS = [
    ["cli", "__main__", "__init__"],
    ["serve", "hf"],
    ["recipes", "adapt"],
    ["convert", "evaluate"],
    ["pieces", "text_model", "text_rows", "scoring", "decisions"],
    ["train"],
    ["objectives", "samplers"],
    ["diffusion"],
    ["anchors", "models", "data"],
    ["config"],
    ["registry"],
    ["lazy", "types", "errors", "files", "memory", "randomness", "distributed", "resumable"],
]
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}


def part_of(module: str) -> str:
    """adlm.data.files -> data"""
    return [*module.split("."), "__init__"][1]


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "adlm":
            yield from (f"adlm.{alias.name}" if alias.name in RANK else "adlm" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "adlm":
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "adlm")


def test_every_module_has_a_layer():
    found = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert found == set(RANK)


def test_imports_only_go_down():
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own == "__init__":
            continue  # the public names, for type checkers
        for module in imports(path):
            if module == "adlm" and own in ("cli", "serve"):
                continue  # the version
            if RANK[part_of(module)] < RANK[own]:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


def test_the_library_never_imports_the_studies():
    assert not [path for path in PACKAGE.rglob("*.py") if "adlm_studies" in path.read_text(encoding="utf-8")]


def test_public_names_are_the_documented_ones():
    lines = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").splitlines()
    documented = [line.split("`")[1] for line in lines if line.startswith("### `")]
    assert sorted(adlm.__all__) == sorted(name.removeprefix("adlm.").split("(")[0] for name in documented)
    for name in adlm.__all__:
        assert getattr(adlm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        adlm.nothing  # noqa: B018


def test_importing_the_data_layer_does_not_import_torch():
    program = "import sys, adlm, adlm.data.prepare, adlm.data.catalog; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_wheel_is_whole_and_its_command_runs_outside_the_repository(tmp_path):
    """Built, installed into a clean environment, run from another folder.

    The dependencies are taken from this environment through a path file: what is tested is our wheel.
    """
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--quiet", str(wheel)],
        check=True,
    )
    site = Path(subprocess.run([python, "-c", "import site; print(site.getsitepackages()[0])"], check=True,
                               capture_output=True, text=True).stdout.strip())  # fmt: skip
    installed, expected = set[str](), set[str]()
    for package in (PACKAGE, STUDIES):
        installed |= {p.relative_to(site).as_posix() for p in (site / package.name).rglob("*") if p.suffix != ".pyc"}
        expected |= {p.relative_to(ROOT).as_posix() for p in package.rglob("*") if "__pycache__" not in p.parts}
    assert {p for p in installed if not p.endswith("__pycache__")} == expected
    # Everything but this package: the path of an editable install is not followed from here.
    (site / "dependencies.pth").write_text(
        "import sys; sys.path += [p for p in %r if 'site-packages' in p]\n" % [p for p in sys.path if p]
    )
    (tmp_path / "text.txt").write_text("\n".join(f"line {i} of a text" for i in range(500)))
    command = [str(python), "-m", "adlm", "prepare", "text.txt", "--tokenizer", "bpe:300", "--length", "16"]
    run = subprocess.run(
        [*command, "--cache", "cache", "--workers", "2"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    where = subprocess.run(
        [str(python), "-c", "import adlm; print(adlm.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(home))
    assert len(list((tmp_path / "cache").glob("*/manifest.json"))) == 3
    version = subprocess.run([home / "bin" / "adlm", "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"adlm {adlm.__version__}\n"
