"""Files on disk: written whole or not at all, and told apart by their content."""

import hashlib
import os
from pathlib import Path


def file_checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` in one step: a reader sees the old content or the new, never half of one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
