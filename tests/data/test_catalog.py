"""The catalog: every name opens, published layouts are found, and real files give the published counts."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adlm.data.bundled import PythonDocs
from adlm.data.catalog import CATALOG, listing, open_source
from adlm.data.documents import FirstCharacters, FractionSplit, Lines, Separator
from adlm.data.files import TextFiles
from adlm.data.hub import HubDataset
from adlm.data.source import Source
from adlm.data.stories import Stories
from adlm.errors import AdlmError, ConfigError, DataError, UnknownName
from tests.errors import raises

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def counts(source: Source) -> dict[str, tuple[int, int]]:
    """Documents and characters of each split."""
    found = {}
    for split in source.splits:
        documents = characters = 0
        for text, ends in source.pieces(split):
            documents += ends
            characters += len(text)
        found[split] = documents, characters
    return found


# Published: WikiText has 600 + 60 + 60 articles, LAMBADA 5,153 passages, LM1B's first shard 6,075 sentences.
REAL: list[tuple[str, str, dict[str, tuple[int, int]]]] = [
    ("wikitext2", "wikitext2", {"train": (600, 10356139), "valid": (60, 1076722), "test": (60, 1204795)}),
    ("wikitext103", "wikitext103", {"valid": (60, 1101245), "test": (60, 1238290)}),
    ("text8", "text8", {"train": (1, 66681579), "valid": (1, 3704530), "test": (1, 3704531)}),
    ("lm1b", "lm1b", {"test": (6075, 805048)}),
    ("lm1b", "lm1b/news.en.heldout-00000-of-00050", {"test": (6075, 805048)}),
    ("openwebtext", "openwebtext", {"train": (900, 4208703), "valid": (50, 221939), "test": (50, 190921)}),
    ("lambada", "lambada", {"test": (5153, 1669012)}),
    ("pubmed", "pubmed", {"train": (100, 1691372), "valid": (100, 1656372), "test": (100, 1774326)}),
    ("arxiv", "arxiv", {"train": (450, 590147), "valid": (25, 33928), "test": (25, 32227)}),
    ("books", "books", {"train": (237, 109629157), "valid": (9, 3576864), "test": (14, 7376425)}),
    ("tinystories", "tinystories", {"valid": (3117, 2514037), "test": (3118, 2465793)}),
]


@pytest.mark.parametrize(("name", "position", "expected"), REAL, ids=[position for _, position, _ in REAL])
def test_real_files_give_the_published_counts(name: str, position: str, expected: dict[str, tuple[int, int]]) -> None:
    if not (SHARED / position).exists():
        pytest.skip(f"the real files of {name} are not beside the repository")
    assert counts(open_source(name, folder=SHARED / position)) == expected


def test_whole_books_are_held_out_and_come_from_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    books = [{"author": "A", "title": str(n), "text": f"Title: {n}\n" + "word " * 200_000 * (n % 2)} for n in range(60)]
    with gzip.open(tmp_path / "books.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(book) + "\n" for book in books)
    source = open_source("books", folder=tmp_path)
    found = {split: set(source.documents(split)) for split in source.splits}
    assert set.union(*found.values()) == {book["text"] for book in books}
    assert sum(map(len, found.values())) == len(books)
    assert all(found.values())
    monkeypatch.delenv("ADLM_DATA", raising=False)
    with raises(DataError, subject="books"):
        open_source("books")


def test_one_file_of_a_folder_can_be_opened_with_its_own_field() -> None:
    path = SHARED / "pubmed" / "medline_abstracts.jsonl"
    if not path.exists():
        pytest.skip("the real files of pubmed are not beside the repository")
    source = open_source("pubmed", folder=path, detokenizer="none")
    assert isinstance(source, TextFiles)
    assert source.field == "abstract"
    assert {split: documents for split, (documents, _) in counts(source).items()} == {
        "train": 7021,
        "valid": 390,
        "test": 390,
    }
    assert next(open_source(path, field="abstract").documents("test")) == next(source.documents("test"))


def test_rows_of_wikitext_are_those_of_the_hub() -> None:
    if not (SHARED / "wikitext2").exists():
        pytest.skip("the real files of wikitext2 are not beside the repository")
    source = open_source("wikitext2", folder=SHARED / "wikitext2", documents=Lines(strip=False, keep_empty=True))
    rows = list(source.documents("valid"))
    assert len(rows) == 3760
    assert rows[:4] == ["", " = Homarus gammarus =\n", "", rows[3]]


@pytest.mark.parametrize("name", ["text8", "text8.gz", "text8_part.gz"])
def test_text8_is_one_document_cut_where_everyone_cuts_it(tmp_path: Path, name: str) -> None:
    text = b" anarchism originated as a term" * 100
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    source = open_source("text8", folder=tmp_path)
    assert isinstance(source, TextFiles)
    assert source.cut == FirstCharacters(90_000_000, 5_000_000, 5_000_000)
    assert [documents for documents, _ in counts(source).values()] == [1, 1, 1]
    assert next(source.pieces("train")).text.startswith(" anarchism")


def test_ptb_is_one_sentence_a_line(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        text = f" mr. <unk> is chairman of {split} n.v. the dutch group \n\n it sold N N of the u.s. unit 's <unk> \n"
        (tmp_path / f"ptb.{split}.txt").write_text(text)
    source = open_source("ptb", folder=tmp_path)
    assert source.splits == ("train", "valid", "test")
    assert list(source.documents("valid")) == [
        "mr. ? is chairman of valid n.v. the dutch group",
        "it sold 1 1 of the u.s. unit's ?",
    ]


def test_ag_news_is_title_and_description(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('"4","Rover finds water","NASA\'s rover, on Mars, found it."\n')
    (tmp_path / "test.csv").write_text('"3","Fears for T N pension","Unions say they are ""disappointed""."\n' * 2)
    source = open_source("ag_news", folder=tmp_path)
    assert list(source.documents("train")) == ["Rover finds water NASA's rover, on Mars, found it."]
    assert list(source.documents("test")) == ['Fears for T N pension Unions say they are "disappointed".'] * 2


def test_scientific_papers_are_found_in_each_of_their_forms(tmp_path: Path) -> None:
    def written(folder: str, name: str, record: dict[str, Any]) -> Path:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(json.dumps(record) + "\n")
        return tmp_path / folder

    sentences = ["we test mice ( n = 9 ) , who", "ran off ."]
    expected = ["we test mice (n = 9), who\nran off."]
    for folder, name, record in [
        ("a", "test.jsonl", {"article": "\n".join(sentences), "abstract": "no"}),
        ("b", "test.jsonl", {"article_text": sentences, "abstract_text": ["no"]}),
        ("c", "test.txt", {"article_text": sentences, "abstract_text": ["no"]}),
        ("d", "memsum_test.jsonl", {"text": sentences, "summary": ["no"]}),
    ]:
        position = written(folder, name, record)
        assert list(open_source("pubmed", folder=position).documents("test")) == expected
    assert list(open_source("arxiv", folder=written("e", "test.jsonl", {"abstract": "Yes."})).documents("test")) == [
        "Yes."
    ]


def test_openwebtext_in_files_named_train_is_cut(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"text": [f"page {number}" for number in range(40)]}), tmp_path / "train-00000-of-00001.parquet"
    )
    assert [documents for documents, _ in counts(open_source("openwebtext", folder=tmp_path)).values()] == [36, 2, 2]


def test_tinystories_are_parted_by_their_separator(tmp_path: Path) -> None:
    (tmp_path / "TinyStories-train.txt").write_text("One day.\nHe ran.\n<|endoftext|>\nOnce.\n<|endoftext|>\n")
    (tmp_path / "TinyStories-valid.txt").write_text("End.\n")
    source = open_source("tinystories", folder=tmp_path)
    assert list(source.documents("train")) == ["One day.\nHe ran.", "Once."]
    assert source.splits == ("train", "valid")


def test_every_name_opens_and_has_splits() -> None:
    for name in CATALOG.keys() - {"stories", "books"}:  # books are not on the Hub
        source = open_source(name)
        assert source.name == name
        assert source.licence == CATALOG[name].licence
        assert source.splits


def test_stories_are_in_the_catalog() -> None:
    pytest.importorskip("adlm.data.stories")
    assert next(open_source("stories").documents("valid"))


def test_stories_come_in_the_number_asked_for() -> None:
    assert open_source("stories:40000") == Stories(train=40_000)
    assert counts(open_source("stories:3"))["train"][0] == 3


def test_the_listing_has_a_row_a_name() -> None:
    rows = listing()
    assert [row["name"] for row in rows] == list(CATALOG)
    assert all(row[column] for row in rows for column in ("name", "summary", "licence", "origin"))


def test_hub_names_carry_their_options() -> None:
    source = open_source("hub:owner/data:english", field="body", streaming=True, revision="v2", documents=Lines())
    assert source == HubDataset("owner/data", "english", field="body", streaming=True, revision="v2", rule=Lines())
    wikitext = open_source("wikitext103", streaming=True)
    assert isinstance(wikitext, HubDataset)
    assert (wikitext.dataset, wikitext.config, wikitext.streaming) == (
        "Salesforce/wikitext",
        "wikitext-103-raw-v1",
        True,
    )


def test_paths_are_files_with_the_options_given(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one#two")
    source = open_source(tmp_path, documents=Separator("#"), cut=FractionSplit(0.1), streaming=True)
    assert source == TextFiles(str(tmp_path), rule=Separator("#"), cut=FractionSplit(0.1))
    assert open_source(str(tmp_path / "*.txt"), files=None).splits == ("train", "valid", "test")


def test_pycode_is_python_s_code() -> None:
    assert open_source("pycode") == PythonDocs("code")


@pytest.mark.parametrize(
    ("name", "options", "error", "subject"),
    [
        ("wikitxt2", {}, UnknownName, "wikitxt2"),
        ("nothing", {"folder": "."}, UnknownName, "nothing"),
        ("owner/data", {}, DataError, "owner/data"),
        ("./no-such-file.txt", {}, DataError, "no-such-file.txt"),
        ("kjv", {"folder": "."}, ConfigError, "folder"),
        ("pydocs", {"field": "x"}, ConfigError, "field"),
        ("stories:many", {}, ConfigError, "stories:many"),
        ("stories:", {}, ConfigError, "stories:"),
        ("kjv:40000", {}, ConfigError, "train"),
        ("storys:40000", {}, UnknownName, "storys:40000"),
        ("lm1b", {"cut": FractionSplit()}, ConfigError, "cut"),
        ("hub:owner/data", {"encoding_errors": "replace"}, ConfigError, "encoding_errors"),
        ("ptb", {"folder": "no-such-folder"}, DataError, "no-such-folder"),
        ("ptb", {"detokenizer": "ptbb"}, UnknownName, "ptbb"),
    ],
)
def test_what_cannot_be_opened_is_explained(
    name: str, options: dict[str, Any], error: type[AdlmError], subject: str
) -> None:
    with raises(error, subject=subject):
        open_source(name, **options)


def test_a_missing_path_that_may_be_on_the_hub_says_how_to_open_that() -> None:
    with raises(DataError, subject="owner/data") as caught:
        open_source("owner/data")
    assert "hub:owner/data" in caught.value.fix


def test_a_folder_without_the_usual_files_says_which_they_are(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("nothing here")
    with raises(DataError, subject="ptb") as caught:
        open_source("ptb", folder=tmp_path)
    assert "ptb.*.txt" in caught.value.fix
    (tmp_path / "test.jsonl").write_text('{"body": "b"}\n')
    with raises(DataError, subject="article"):
        open_source("pubmed", folder=tmp_path)


def test_importing_the_catalog_is_light() -> None:
    code = "import sys, adlm.data.catalog; print(*{'torch', 'datasets', 'pandas', 'pyarrow'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
