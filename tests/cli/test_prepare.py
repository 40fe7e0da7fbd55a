from pathlib import Path

import pytest

import adlm.data.prepare as preparing
from adlm.cli import main
from adlm.data.corpus_table import TABLE, CorpusTable
from adlm.data.shards import Shards


@pytest.fixture
def words(tmp_path) -> list[str]:
    (tmp_path / "notes.txt").write_text("\n".join(f"line {i} of some notes" for i in range(400)))
    command = ["prepare", str(tmp_path / "notes.txt"), "--tokenizer", "bpe:300", "--length", "16"]
    return [*command, "--documents", "lines", "--cache", str(tmp_path / "cache"), "--workers", "1"]


def printed_tables(capsys) -> list[Path]:
    return [Path(line) for line in capsys.readouterr().out.splitlines() if line.endswith(TABLE)]


def test_the_anchor_table_of_the_training_text_is_made_and_its_path_printed(tmp_path, words, capsys):
    assert main([*words, "--anchor-table"]) == 0
    assert list((tmp_path / "cache").glob(f"*/{TABLE}")) == printed_tables(capsys)
    (path,) = (tmp_path / "cache").glob(f"*/{TABLE}")
    assert "-train-" in path.parent.name
    assert CorpusTable.read(path, vocab_size=300).key == Shards.open(path.parent).key


def test_the_anchor_table_of_prepared_data_is_made_without_preparing_it_again(tmp_path, words, capsys):
    assert main(words) == 0
    assert not printed_tables(capsys)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("*/*.npy")}
    assert main([*words, "--anchor-table"]) == 0
    (path,) = printed_tables(capsys)
    first = path.read_bytes()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").glob("*/*.npy")} == before
    path.unlink()
    assert main([*words, "--anchor-table"]) == 0
    assert printed_tables(capsys) == [path]
    assert path.read_bytes() == first


def test_another_split_has_a_table_if_it_is_named(words, capsys):
    assert main([*words, "--anchor-table", "--split", "test"]) == 0
    (path,) = printed_tables(capsys)
    assert "-test-" in path.parent.name


def test_a_trained_tokenizer_is_kept_unless_it_is_forced(tmp_path, words, monkeypatch, capsys):
    assert main(words) == 0
    calls = []
    train = preparing.train_bpe
    monkeypatch.setattr(preparing, "train_bpe", lambda *args, **options: calls.append(1) or train(*args, **options))
    assert main(words) == 0
    assert not calls
    before = capsys.readouterr().out.splitlines()
    assert main([*words, "--force"]) == 0
    assert len(calls) == 1
    assert before == capsys.readouterr().out.splitlines() * 2  # the same folders, printed twice before


def test_the_option_that_replaces_bad_bytes_is_named_here(tmp_path, capsys):
    (tmp_path / "notes.txt").write_bytes(b"caf\xe9 and more words of a line\n" * 40)
    command = ["prepare", str(tmp_path / "notes.txt"), "--tokenizer", "bpe:300", "--length", "8", "--workers", "1"]
    command += ["--cache", str(tmp_path / "cache"), "--documents", "lines"]
    assert main(command) == 2
    assert "--replace-bad-bytes" in capsys.readouterr().err
    assert main([*command, "--replace-bad-bytes"]) == 0


def test_a_csv_without_a_header_is_prepared_by_column(tmp_path, capsys):
    (tmp_path / "news.csv").write_text("".join(f'"{i}","title {i}","some words of news {i}"\n' for i in range(200)))
    command = ["prepare", str(tmp_path / "news.csv"), "--tokenizer", "bpe:300", "--length", "8", "--workers", "1"]
    command += ["--cache", str(tmp_path / "cache")]
    assert main(command) == 2
    assert "header" in capsys.readouterr().err
    assert main([*command, "--field", "2,3"]) == 0
