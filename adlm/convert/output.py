"""Put converted files in place: whole or not at all, and never over something unasked."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from adlm.errors import ModelError
from adlm.models.io import CONFIG, WEIGHTS


def check_free(out: Path, *, force: bool, asked: str) -> None:
    """Refuse to write where something is, before any work is done."""
    if out.is_dir():
        whole = (out / CONFIG).exists() and (out / WEIGHTS).exists()
        # Hidden names are what an interrupted save leaves.
        if not whole and any(not inside.name.startswith(".") for inside in out.iterdir()):
            raise ModelError(asked, f"{out} is a folder with other things in it", "name a new folder")
        if whole and not force:
            raise ModelError(asked, f"{out} holds a model already", "name another folder, or replace it with --force")
    elif out.exists() and not force:
        raise ModelError(asked, f"{out} exists already", "name another file, or replace it with --force")


def write_safetensors(out: Path, weights: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file, made beside its place and moved there."""
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        save_file(dict(weights), temporary / out.name, metadata=dict(metadata))
        (temporary / out.name).replace(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
