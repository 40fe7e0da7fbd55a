"""Local files of every kind, how they are split, and what is said when they are wrong."""

import gzip
import json
import pickle
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adlm.data.catalog import open_source
from adlm.data.documents import FractionSplit, LastDocuments, Lines, Separator
from adlm.data.files import TextFiles, split_of
from adlm.data.source import PIECE_CHARACTERS
from adlm.errors import DataError, NotUtf8, UnknownName
from tests.errors import raises


def everything(source: TextFiles) -> list[str]:
    return [text for split in source.splits for text in source.documents(split)]


def write_lines(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def zstd(path: Path, data: bytes) -> Path:
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(data)
    return path


DOCUMENTS = [f"document {number}\nwith two lines" for number in range(40)]


@pytest.fixture
def by_format(tmp_path: Path) -> dict[str, TextFiles]:
    """The same forty documents in every format."""
    records = [{"id": number, "body": text} for number, text in enumerate(DOCUMENTS)]
    (tmp_path / "list.json").write_text(json.dumps(records, indent=1))
    lines = write_lines(tmp_path / "lines.jsonl", records)
    table = pa.table({"id": [record["id"] for record in records], "body": DOCUMENTS})
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=7)
    rows = "".join(f'{number},"{text}"\n' for number, text in enumerate(DOCUMENTS))
    (tmp_path / "titled.csv").write_text("id,body\n" + rows)
    (tmp_path / "bare.csv").write_text(rows)
    separated = "\n<|endoftext|>\n".join(DOCUMENTS)
    (tmp_path / "stories.txt").write_text(separated)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    zstd(tmp_path / "packed.jsonl.zst", lines.read_bytes())
    zstd(tmp_path / "stories.zst", separated.encode())
    names = ("list.json", "lines.jsonl", "table.parquet", "titled.csv", "packed.jsonl.gz", "packed.jsonl.zst")
    return {
        **{name: TextFiles(str(tmp_path / name), field="body") for name in names},
        "bare.csv": TextFiles(str(tmp_path / "bare.csv"), field="body", header=("id", "body")),
        "stories.txt": TextFiles(str(tmp_path / "stories.txt"), rule=Separator()),
        "stories.zst": TextFiles(str(tmp_path / "stories.zst"), rule=Separator()),
    }


def test_every_format_gives_the_same_documents(by_format: dict[str, TextFiles]) -> None:
    for name, source in by_format.items():
        assert everything(source) == DOCUMENTS, name
        assert [len(list(source.documents(split))) for split in source.splits] == [36, 2, 2], name


def test_a_record_may_hold_a_list_or_several_fields(tmp_path: Path) -> None:
    records = [{"title": "T", "text": ["a .", "b ."]}, {"title": None, "text": ["c"]}]
    path = str(write_lines(tmp_path / "test.jsonl", records))
    assert everything(TextFiles(path)) == ["a . b .", "c"]
    assert everything(TextFiles(path, joiner="\n")) == ["a .\nb .", "c"]
    assert everything(TextFiles(path, field=("title", "text"))) == ["T a . b .", "c"]


def test_ag_news_is_read_with_and_without_a_header(tmp_path: Path) -> None:
    row = '"3","Wall St. Bears","Short-sellers, Wall Street\'s dwindling\\band of ""cynics"", are back."\n'
    (tmp_path / "test.csv").write_text(row * 2)
    (tmp_path / "train.csv").write_text("Class Index,Title,Description\n" + row)
    source = TextFiles(str(tmp_path), field=("title", "description"), header=("label", "title", "description"))
    expected = 'Wall St. Bears Short-sellers, Wall Street\'s dwindling\\band of "cynics", are back.'
    assert list(source.documents("test")) == [expected] * 2
    assert list(source.documents("train")) == [expected]


def test_a_list_of_strings_is_a_list_of_documents(tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text(' [\n"a",\n\n"b" ]')
    assert everything(TextFiles(str(tmp_path / "test.json"))) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("wiki.valid.tokens", "valid"),
        ("train.jsonl", "train"),
        ("ptb.test.txt", "test"),
        ("train/part-0.jsonl", "train"),
        ("memsum_val.jsonl", "valid"),
        ("TinyStoriesV2-GPT4-train.txt", "train"),
        ("dev-00000-of-00001.parquet", "valid"),
        ("contest_latest.txt", None),
        ("training_notes.txt", None),
    ],
)
def test_names_tell_the_split(name: str, split: str | None) -> None:
    assert split_of(name) == split


def test_a_folder_is_read_recursively_and_in_order(tmp_path: Path) -> None:
    for name in ("train/part-1.txt", "train/part-0.txt", "train/README.md", "valid.txt", "README.txt", ".hidden.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    source = TextFiles(str(tmp_path))
    assert source.splits == ("train", "valid")
    assert list(source.documents("train")) == ["train/part-0.txt", "train/part-1.txt"]
    assert everything(TextFiles(str(tmp_path / "**" / "part-?.txt"))) == ["train/part-0.txt", "train/part-1.txt"]


def test_an_explicit_mapping_wins_over_the_names(tmp_path: Path) -> None:
    for name in ("news.en-1", "news.en.heldout-1", "news.en.heldout-2"):
        (tmp_path / name).write_text(f"{name} a\n{name} b\n")
    files = {"train": "news.en-*", "test": "news.en.heldout-*", "valid": "nothing"}
    source = TextFiles(str(tmp_path), files=files, rule=Lines())
    assert source.splits == ("train", "test")
    assert list(source.documents("train")) == ["news.en-1 a", "news.en-1 b"]
    assert len(list(source.documents("test"))) == 4


def test_files_of_training_alone_are_cut_only_on_demand(tmp_path: Path) -> None:
    path = str(write_lines(tmp_path / "train.jsonl", DOCUMENTS))
    assert TextFiles(path).splits == ("train",)
    assert TextFiles(path, cut=FractionSplit()).splits == ("train", "valid", "test")
    write_lines(tmp_path / "valid.jsonl", ["held out"])
    assert list(TextFiles(str(tmp_path), cut=LastDocuments()).documents("valid")) == ["held out"]


def test_bytes_are_read_as_text_should_be(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_bytes("\ufeffa\r\nb\u2028c\rd".encode())
    assert everything(TextFiles(str(tmp_path / "test.txt"))) == ["a\nb\u2028c\nd"]
    assert everything(TextFiles(str(tmp_path / "test.txt"), rule=Lines())) == ["a", "b\u2028c", "d"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), times=st.integers(1, 3000))
def test_a_whole_file_is_given_back_to_the_letter(tmp_path: Path, text: str, times: int) -> None:
    path = tmp_path / "test.txt"
    path.write_text(text * times + ".", encoding="utf-8")
    assert everything(TextFiles(str(path))) == [(text * times + ".").removeprefix("\ufeff")]


def test_memory_stays_flat_whatever_the_size_of_a_file(tmp_path: Path) -> None:
    paths = [tmp_path / "train_line.txt", tmp_path / "train_lines.txt", tmp_path / "train_list.json"]
    paths[0].write_text("some words " * 600_000)
    paths[1].write_text(("some words of a line " * 10 + "\n") * 30_000)
    paths[2].write_text(json.dumps(["some words " * 200] * 3_000))
    for path in paths:
        tracemalloc.start()
        longest = max(len(text) for text, _ in TextFiles(str(path)).pieces("train"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5_000_000 < path.stat().st_size, path.name
        assert longest <= 2 * PIECE_CHARACTERS + 100


def test_the_fingerprint_moves_with_the_text_and_not_with_the_place(tmp_path: Path) -> None:
    def fingerprint(folder: str, text: str, **options: Any) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "train.txt").write_text(text)
        source = TextFiles(str(tmp_path / folder), name="x", **options)
        return json.dumps(source.fingerprint("train"))

    first = fingerprint("here", "abc")
    assert fingerprint("there", "abc") == first
    changed = [
        fingerprint("other", "abd"),
        fingerprint("there", "abc", rule=Lines()),
        fingerprint("there", "abc", detokenizer="ptb"),
        fingerprint("there", "abc", field="body"),
    ]
    assert len({first, *changed}) == 5


def test_sources_are_values(tmp_path: Path) -> None:
    source = TextFiles(str(tmp_path), rule=Separator("#"), files={"train": "*.txt"})
    assert pickle.loads(pickle.dumps(source)) == source
    assert hash(source) == hash(TextFiles(str(tmp_path), rule=Separator("#"), files={"train": "*.txt"}))


def failure(source: TextFiles, split: str = "train") -> str:
    with pytest.raises(DataError) as caught:
        list(source.pieces(split))
    return str(caught.value)


def test_a_csv_without_a_header_is_read_by_column_numbers(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text('"3","Bears back","Short-sellers"\n"1","Oil","Prices, up"\n')
    with raises(DataError, subject="text") as caught:
        list(TextFiles(str(path)).pieces("train"))
    assert "header" in caught.value.fix
    source = TextFiles(str(path), field=("2", "3"))
    assert everything(source) == ["Bears back Short-sellers", "Oil Prices, up"]
    assert everything(open_source(path, field="3")) == ["Short-sellers", "Prices, up"]
    with raises(DataError, subject="4"):
        list(TextFiles(str(path), field="4").pieces("train"))


def test_a_missing_path_offers_near_names(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a")
    assert "did you mean corpus.txt?" in failure(TextFiles(str(tmp_path / "corpsu.txt")))
    assert "no 'nowhere'" in failure(TextFiles(str(tmp_path / "nowhere" / "deep" / "*.txt")))


def test_a_folder_without_readable_files_says_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    for source in (TextFiles(str(tmp_path)), TextFiles(str(tmp_path), files={"train": "*.txt"})):
        assert "no file to read" in failure(source)
        assert ".jsonl" in failure(source)


def test_bad_utf8_names_the_offset_and_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes("é".encode() * 100_000 + b"\xff" + b"rest")
    with raises(NotUtf8, subject=str(path)) as caught:
        list(TextFiles(str(path)).pieces("train"))
    assert "offset 200000" in caught.value.found
    # No option is advised that the caller may not have.
    assert "--" not in str(caught.value)
    assert "--its-option" in str(caught.value.with_option("--its-option"))
    assert everything(TextFiles(str(path), encoding_errors="replace"))[0].endswith("é\ufffdrest")
    half = write_lines(tmp_path / "train.jsonl", [{"text": "fine é"}, {"text": "a\ud800b"}])
    assert "line 2" in failure(TextFiles(str(half)))
    assert everything(TextFiles(str(half), encoding_errors="replace")) == ["fine é", "a?b"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("train.jsonl", '{"text": "a"}\n\n{"text": "b"\n', "line 3 as JSON"),
        ("train.json", '[{"text": "a"}, {"text": ]', "element 2 as JSON"),
        ("train.json", '[{"text": "a"}', "element 2 as JSON"),
        ("train.jsonl", '{"title": "a", "body": "b"}\n', "the fields title, body"),
        ("train.jsonl", '{"text": 7}\n', "7 in it"),
        ("train.jsonl", "7\n", "the fields (none)"),
        ("train.csv", "title,body\na,b\n", "the fields title, body"),
        ("train.parquet", "not parquet at all", "check that the file is whole"),
        ("train.txt", " \n\n", "not one document"),
        ("train.jsonl", '{"text": ""}\n', "not one document"),
        ("train.jsonl", "", "not one document"),
    ],
)
def test_wrong_content_is_named(tmp_path: Path, name: str, content: str, expected: str) -> None:
    (tmp_path / name).write_text(content)
    assert expected in failure(TextFiles(str(tmp_path / name)))


def test_a_record_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlm.data.records._LARGEST_RECORD", 1000)
    (tmp_path / "train.csv").write_text('text\n"' + "b" * 2000)
    assert "field larger than field limit" in failure(TextFiles(str(tmp_path / "train.csv")))
    (tmp_path / "train.json").write_text('["' + "b" * 400_000)
    assert "element 1 as JSON" in failure(TextFiles(str(tmp_path / "train.json")))


def test_a_missing_parquet_column_lists_the_others(tmp_path: Path) -> None:
    pq.write_table(pa.table({"title": ["a"], "body": ["b"]}), tmp_path / "train.parquet")
    message = failure(TextFiles(str(tmp_path / "train.parquet")))
    assert "'text'" in message
    assert "title, body" in message


def truncated(tmp_path: Path) -> Iterator[Path]:
    text = json.dumps(DOCUMENTS * 100).encode()
    for path in (tmp_path / "train.txt.gz", tmp_path / "train.txt.zst"):
        path.write_bytes(gzip.compress(text)) if path.suffix == ".gz" else zstd(path, text)
        path.write_bytes(path.read_bytes()[:-20])
        yield path


def test_a_truncated_archive_is_an_error_not_a_short_text(tmp_path: Path) -> None:
    for path in truncated(tmp_path):
        message = failure(TextFiles(str(path)))
        assert str(path) in message
        assert "fetch it again" in message


def test_names_that_are_not_known_are_refused(tmp_path: Path) -> None:
    path = str(write_lines(tmp_path / "train.jsonl", ["a"]))
    with raises(UnknownName, known=["train"]):
        TextFiles(path).pieces("valid")
    for option in ({"detokenizer": "latin"}, {"format": "docx"}, {"encoding_errors": "shout"}):
        with raises(UnknownName, name=next(iter(option.values()))):
            TextFiles(path, **option)
