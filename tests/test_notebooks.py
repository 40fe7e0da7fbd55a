"""The notebooks are run, cell by cell, as a reader would."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "docs/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# One kernel for all of them, since most of the time goes into starting it; and not in this process, in which Jupyter
# would leave sockets open.
RUNNER = """
import json, sys
import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

kernel = KernelManager(kernel_name="python3")
kernel.start_kernel()
found = {}
for path in sys.argv[1:]:
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    try:
        NotebookClient(notebook, timeout=300, km=kernel).execute()
        found[path] = "" if any(cell.get("outputs") for cell in notebook.cells) else "nothing was printed"
    except CellExecutionError as error:
        found[path] = str(error)
kernel.shutdown_kernel(now=True)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """What went wrong in each notebook: nothing, if all is well."""
    for package in ("ipykernel", "nbclient"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("notebooks")
    few = {"ADLM_NOTEBOOK_STEPS": "2", "ADLM_CACHE": str(folder / "cache"), "IPYTHONDIR": str(folder / "ipython")}
    command = [sys.executable, "-c", RUNNER, *NOTEBOOKS]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **few}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_the_notebook_runs(path, failures):
    assert failures[str(path)] == ""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_file_keeps_no_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cells
    for cell in cells:
        assert not cell.get("outputs"), f"clear the outputs of {path.name}"
        assert cell.get("execution_count") is None
