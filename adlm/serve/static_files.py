"""The studio's files, read once: no name from a request reaches the disk."""

from importlib.resources import files
from typing import NamedTuple

_KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".woff2": "font/woff2",
}


class Page(NamedTuple):
    """The bytes of a static file, and its content type."""

    content: bytes
    kind: str


def pages() -> dict[str, Page]:
    """The static files of the pages, by name."""
    found = sorted(files("adlm.serve").joinpath("static").iterdir(), key=lambda file: file.name)
    read: dict[str, Page] = {}
    for file in found:
        ending = "." + file.name.rpartition(".")[2]
        if file.is_file() and ending in _KINDS:
            read[file.name] = Page(file.read_bytes(), _KINDS[ending])
    return read
