"""Data as a value: every kind survives JSON, a corpus is prepared once, and its splits are found or named."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import adlm.data.prepare as preparing
from adlm.config import from_json, to_json, with_changes
from adlm.data.anchored_process import AnchoredProcess
from adlm.data.catalog import open_source
from adlm.data.config import Corpus
from adlm.data.documents import Lines, Separator
from adlm.data.packing import Padded, Wrapped
from adlm.data.prepare import prepare, tokenizer_for
from adlm.data.prompts import Prompts
from adlm.data.synthetic import Synthetic
from adlm.data.table import DataConfig
from adlm.errors import ConfigError, DamagedData, DataError, NotUtf8, UnknownName


@pytest.fixture
def notes(tmp_path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("\n".join(f"line {i} of some notes" for i in range(400)))
    return path


def corpus_of(path: Path, **options) -> Corpus:
    return Corpus(str(path), "bpe:300", Wrapped(16), documents=Lines(), **options)


@pytest.mark.parametrize(
    "value",
    [
        Corpus("stories:40000", "words", Padded(64, crop=True), valid="test"),
        Corpus("here.jsonl", folder="there", field="body", documents=Separator("#"), encoding_errors="replace"),
        Prompts("train.jsonl", "model", 64, valid="valid.jsonl", separator="\n", padding=True, too_long="drop"),
        Synthetic(vocabulary=100, length=8, count=3, seed=7),
        AnchoredProcess(values=3, length=5, anchors=(0, 4), count=3, seed=7),
    ],
)
def test_every_kind_of_data_survives_json(value):
    assert from_json(DataConfig, json.loads(json.dumps(to_json(value)))) == value


def test_one_import_makes_every_kind_known_and_brings_no_torch():
    program = (
        "import sys; from adlm.data.config import DataConfig; from adlm.config import from_json\n"
        "from_json(DataConfig, {'kind': 'Prompts', 'train': 'a', 'tokenizer': 'b', 'length': 8})\n"
        "from_json(DataConfig, 'Synthetic'), from_json(DataConfig, {'kind': 'Corpus', 'source': 'kjv'})\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_fields_are_changed_as_a_command_says_it():
    changed = with_changes(Corpus("kjv"), ["documents=Lines", "packing.length=64", "valid=test"])
    assert changed == Corpus("kjv", packing=Wrapped(64), documents=Lines(), valid="test")


def test_a_corpus_gives_what_preparing_its_parts_gives(notes, tmp_path):
    data = corpus_of(notes).prepare(cache=tmp_path / "cache")
    source = open_source(notes, documents=Lines())
    tokenizer = tokenizer_for("bpe:300", source, cache=tmp_path / "other")
    for table, split in ((data.train, "train"), (data.valid, "valid")):
        expected = prepare(source, split, tokenizer, Wrapped(16), cache=tmp_path / "other")
        assert table.key == expected.key
        rows = np.arange(len(expected))
        assert np.array_equal(table.tokens(rows), expected.tokens(rows))
    assert data.tokenizer.fingerprint == tokenizer.fingerprint
    assert data.packing == Wrapped(16)


def test_a_trained_tokenizer_is_kept(notes, tmp_path, monkeypatch):
    first = corpus_of(notes).prepare(cache=tmp_path / "cache")

    def never(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(preparing, "train_bpe", never)
    again = corpus_of(notes).prepare(cache=tmp_path / "cache")
    assert again.tokenizer.fingerprint == first.tokenizer.fingerprint
    assert again.train.key == first.train.key
    with pytest.raises(AssertionError, match="trained again"):
        tokenizer_for("bpe:301", open_source(notes, documents=Lines()), cache=tmp_path / "cache")
    with pytest.raises(AssertionError, match="trained again"):
        corpus_of(notes, train="valid").prepare(cache=tmp_path / "cache")
    notes.write_text("another text altogether\n" * 400)
    with pytest.raises(AssertionError, match="trained again"):
        corpus_of(notes).prepare(cache=tmp_path / "cache")


def test_a_damaged_tokenizer_is_trained_again(notes, tmp_path):
    source = open_source(notes, documents=Lines())
    first = tokenizer_for("bpe:300", source, cache=tmp_path / "cache")
    (path,) = (tmp_path / "cache").glob("*/tokenizer/tokenizer.json")
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert tokenizer_for("bpe:300", source, cache=tmp_path / "cache").fingerprint == first.fingerprint
    assert path.read_bytes() == whole


def test_a_tokenizer_can_be_forced(notes, tmp_path):
    source = open_source(notes, documents=Lines())
    tokenizer_for("words", source, cache=tmp_path / "cache")
    (path,) = (tmp_path / "cache").glob("*/tokenizer")
    before = path.stat().st_ino
    tokenizer_for("words", source, cache=tmp_path / "cache")
    assert path.stat().st_ino == before
    (path / "mark").touch()
    tokenizer_for("words", source, cache=tmp_path / "cache", force=True)
    assert not (path / "mark").exists()


def test_processes_that_start_at_once_get_the_same_data(notes, tmp_path):
    program = (
        "import sys; from pathlib import Path; import adlm.data.prepare as p; from adlm.data.config import Corpus\n"
        "train = p.train_bpe\n"
        "p.train_bpe = lambda *a, **k: (print('trained'), train(*a, **k))[1]\n"
        "print(Corpus(sys.argv[1], 'bpe:300').prepare(cache=Path(sys.argv[2])).train.key)"
    )
    command = [sys.executable, "-c", program, str(notes), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [process.communicate()[0].split() for process in processes]
    assert sorted(map(len, lines)) == [1, 2]
    assert len({words[-1] for words in lines}) == 1


@pytest.mark.parametrize("name", ["bpe:", "bpe:many", "bpe:²"])
def test_a_tokenizer_without_a_size_is_refused(notes, name):
    with pytest.raises(ConfigError):
        Corpus(str(notes), name).prepare()


@pytest.mark.parametrize(
    ("files", "options", "train", "valid"),
    [
        (("train", "valid", "test"), {}, "train", "valid"),
        (("train", "test"), {}, "train", "test"),
        (("train",), {}, "train", None),
        (("train", "valid", "test"), {"valid": "test"}, "train", "test"),
        (("valid", "test"), {"train": "valid"}, "valid", "test"),
        (("test",), {"train": "test"}, "test", None),
    ],
)
def test_held_out_text_is_found_by_its_name(tmp_path, files, options, train, valid):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in files:
        (folder / f"{name}.txt").write_text(f"{name} " * 100)
    data = Corpus(str(folder), "characters", Wrapped(16), **options).prepare(cache=tmp_path / "cache")

    def words(table) -> set[str]:
        return set(data.tokenizer.decode(table.tokens(np.arange(2)).ravel()).split()[:-1])

    assert words(data.train) == {train}
    assert (words(data.valid) == {valid}) if valid else data.valid is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "asked to train on the split 'train'.*\n.*only valid, test\n.*train='valid'"),
        ({"train": "valid", "valid": "dev"}, "asked to validate on the split 'dev'"),
    ],
)
def test_a_split_that_is_not_there_is_answered_with_those_that_are(tmp_path, options, message):
    for name in ("valid", "test"):
        (tmp_path / f"{name}.txt").write_text("some text")
    with pytest.raises(DataError, match=message):
        Corpus(str(tmp_path), **options).prepare()


def test_options_reach_the_source(tmp_path):
    (tmp_path / "corpus.jsonl").write_bytes(b'{"body": "some text \xff"}\n' * 400)
    with pytest.raises(NotUtf8):
        Corpus(str(tmp_path / "corpus.jsonl"), "characters").prepare(cache=tmp_path)
    good = Corpus(str(tmp_path / "corpus.jsonl"), "characters", field="body", encoding_errors="replace")
    assert len(good.prepare(cache=tmp_path).train) > 0
    with pytest.raises(UnknownName, match="did you mean 'ptb'"):
        Corpus(str(tmp_path / "corpus.jsonl"), "characters", detokenizer="ptbb").prepare(cache=tmp_path)
    with pytest.raises(ConfigError):
        Corpus(str(tmp_path / "corpus.jsonl"), "characters", revision="main").prepare(cache=tmp_path)


def test_checksums_are_compared_unless_another_process_does(notes, tmp_path):
    data = corpus_of(notes).prepare(cache=tmp_path / "cache")
    (path,) = data.train.folder.glob("shard-*.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert len(corpus_of(notes).prepare(cache=tmp_path / "cache", verify=False).train) == len(data.train)
    with pytest.raises(DamagedData, match="does not match its checksum"):
        corpus_of(notes).prepare(cache=tmp_path / "cache")


def test_preparing_is_watched(notes, tmp_path):
    seen = []
    corpus_of(notes).prepare(
        cache=tmp_path, watch=lambda documents, characters, rows: seen.append((documents, characters, rows))
    )
    assert [documents for documents, _, _ in seen] == [360, 20]  # the training text, then the held-out


# Characters and documents of the two splits, as tests/data/test_catalog.py has them.
@pytest.mark.parametrize(
    ("name", "options", "train", "valid"),
    [
        ("wikitext2", {}, (10_356_139, 600), (1_076_722, 60)),
        ("text8", {"train": "valid"}, (3_704_530, 1), (3_704_531, 1)),
        ("tinystories", {"train": "valid"}, (2_514_037, 3_117), (2_465_793, 3_118)),
    ],
)
def test_real_files_are_prepared_by_their_names(shared, tmp_path, name, options, train, valid):
    corpus = Corpus(name, "characters", Wrapped(128), folder=str(shared / "data" / name), **options)
    data = corpus.prepare(cache=tmp_path)
    assert len(data.train) == sum(train) // 128  # every document has an end token
    assert len(data.valid) == sum(valid) // 128


def test_real_files_without_a_training_text_say_what_they_have(shared, tmp_path):
    folder = shared / "data" / "tinystories"
    for source, position in (("tinystories", str(folder)), (str(folder), None)):
        with pytest.raises(DataError, match="only valid, test"):
            Corpus(source, folder=position).prepare(cache=tmp_path)
    (head,) = folder.glob("*.txt")
    assert Corpus(str(head), "characters").prepare(cache=tmp_path).valid is not None
