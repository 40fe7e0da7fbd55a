"""Data sets of the Hub: tried on local folders laid out like them, since tests have no network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adlm.data.documents import Lines, WikiTextArticles
from adlm.data.hub import HubDataset
from adlm.errors import DataError, UnknownName
from tests.errors import raises

TEXTS = [f"row {number}" for number in range(100)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write_rows(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts, "label": list(range(len(texts)))}), path)
    else:
        path.write_text("".join(json.dumps({"text": text, "label": 0}) + "\n" for text in texts))


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_streamed_or_not_the_text_is_the_same(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "data"
    write_rows(folder / f"train.{ending}", TEXTS)
    write_rows(folder / f"validation.{ending}", ["held", " ", "out"])
    kept, streamed = HubDataset(str(folder)), HubDataset(str(folder), streaming=True)
    assert kept.name == "data"
    assert kept.splits == streamed.splits == ("train", "valid")
    assert list(kept.documents("train")) == list(streamed.documents("train")) == TEXTS
    assert list(kept.documents("valid")) == list(streamed.documents("valid")) == ["held", "out"]
    assert kept.fingerprint("train") == streamed.fingerprint("train")


def test_a_data_set_without_held_out_rows_is_cut(tmp_path: Path) -> None:
    write_rows(tmp_path / "data" / "rows.jsonl", TEXTS)
    streamed = HubDataset(str(tmp_path / "data"), streaming=True)
    with raises(DataError, subject="streaming"):
        list(streamed.documents("valid"))
    kept = HubDataset(str(tmp_path / "data"))
    assert [len(list(kept.documents(split))) for split in kept.splits] == [90, 5, 5]
    # Once it is on disk its length is known.
    assert list(streamed.documents("valid")) == list(kept.documents("valid")) == TEXTS[90:95]


def test_slices_and_folders_are_the_data_set_s_own(tmp_path: Path) -> None:
    write_rows(tmp_path / "data" / "plain_text" / "train" / "0000.parquet", TEXTS)
    write_rows(tmp_path / "data" / "other" / "train" / "0000.parquet", ["other"])
    names = {"train": "train[:-10]", "valid": "train[-10:]"}
    source = HubDataset(str(tmp_path / "data"), data_dir="plain_text", split_names=names)
    assert source.splits == ("train", "valid")
    assert list(source.documents("train")) == TEXTS[:-10]
    assert list(source.documents("valid")) == TEXTS[-10:]


def test_rows_that_are_lines_can_be_joined_to_documents(tmp_path: Path) -> None:
    rows = ["", " = Title = \n", "", " Some text , here . \n", "", " = Other = \n", "", " More . \n"]
    write_rows(tmp_path / "data" / "train.parquet", rows)
    source = HubDataset(
        str(tmp_path / "data"), rule=WikiTextArticles(), detokenizer="wikitext", split_names={"train": "train"}
    )
    assert list(source.documents("train")) == ["= Title =\n\nSome text, here.", "= Other =\n\nMore."]
    as_published = HubDataset(
        str(tmp_path / "data"), rule=Lines(strip=False, keep_empty=True), split_names={"train": "train"}
    )
    assert list(as_published.documents("train")) == rows


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder, and what a fresh process without a network says of it and of a data set of the Hub.

    huggingface_hub reads the variable when it is imported, so only a fresh process can be offline.
    """
    home = tmp_path_factory.mktemp("home")
    write_rows(home / "data" / "train.jsonl", TEXTS)
    code = f"""
import json
from adlm.data.hub import HubDataset
print(json.dumps(HubDataset({str(home / "data")!r}, split_names={{"train": "train"}}).fingerprint("train")))
HubDataset("no-owner/no-data").splits
"""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    return home / "data", done.stdout + done.stderr


def test_a_changed_data_set_gets_a_new_fingerprint_and_the_same_one_keeps_it(offline: tuple[Path, str]) -> None:
    folder, said = offline
    source = HubDataset(str(folder), split_names={"train": "train"})
    before = source.fingerprint("train")
    assert json.loads(said.splitlines()[0]) == before
    write_rows(folder / "train.jsonl", TEXTS[1:])
    os.utime(folder / "train.jsonl", (1, 1))
    assert source.fingerprint("train")["data"] != before["data"]


def test_without_a_network_the_error_says_so(offline: tuple[Path, str]) -> None:
    _, said = offline
    assert "'no-owner/no-data'" in said
    assert "the Hub cannot be reached" in said
    assert "folder=" in said


def test_what_the_library_refuses_is_explained(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_rows(folder / "train.jsonl", TEXTS)
    (tmp_path / "scripted").mkdir()
    (tmp_path / "scripted" / "scripted.py").write_text("raise SystemExit")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train.jsonl").write_text('{"text": "a"\n' * 3)
    names = {"train": "train"}
    for source, subject in [
        (HubDataset(str(folder), field="body", split_names=names), "body"),
        (HubDataset(str(folder), config="other", split_names=names), "config"),
        (HubDataset(str(folder), split_names={"train": "elsewhere"}), "split_names"),
        (HubDataset(str(tmp_path / "scripted"), split_names=names), "revision"),
        (HubDataset(str(tmp_path / "empty"), split_names=names), str(tmp_path / "empty")),
        (HubDataset(str(tmp_path / "nowhere"), split_names=names), str(tmp_path / "nowhere")),
        (HubDataset(str(tmp_path / "broken"), split_names=names), str(tmp_path / "broken")),
        (HubDataset(str(tmp_path / "broken"), split_names=names, streaming=True), str(tmp_path / "broken")),
    ]:
        with raises(DataError, subject=subject):
            list(source.pieces("train"))


def test_unknown_splits_and_empty_ones_are_errors(tmp_path: Path) -> None:
    write_rows(tmp_path / "data" / "train.jsonl", [" "])
    source = HubDataset(str(tmp_path / "data"), split_names={"train": "train"})
    with raises(UnknownName, known=["train"]):
        source.pieces("test")
    with raises(DataError, subject="train"):
        list(source.pieces("train"))
