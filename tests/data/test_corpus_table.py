import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import adlm.data.corpus_table as module
import adlm.data.prepare as preparing
from adlm.data.corpus_table import TABLE, CorpusTable, _Seen, make_table
from adlm.data.packing import Padded, Wrapped
from adlm.data.prepare import prepare
from adlm.data.shards import MANIFEST, Shards
from adlm.data.tokenizer import characters, train_bpe
from adlm.errors import DamagedData, DataError
from tests.conftest import Texts
from tests.errors import raises

TEXTS = tuple(f"document {i}: " + " ".join(f"word{(i * j) % 17}" for j in range(i % 40)) for i in range(200))
TOKENIZER = train_bpe(TEXTS[:50], 320)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Many shards, and blocks that end in the middle of documents and shards."""
    monkeypatch.setattr(preparing, "CHUNK_CHARACTERS", 500)
    monkeypatch.setattr(preparing, "SHARD_TOKENS", 1500)
    monkeypatch.setattr(module, "BLOCK_TOKENS", 7 * 16)


@pytest.fixture
def shards(tmp_path) -> Shards:
    return prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16), cache=tmp_path)


def plain(documents: list[list[int]]) -> tuple[Counter, Counter]:
    """Occurrences of each token, and documents that hold it."""
    return Counter(t for d in documents for t in d), Counter(t for d in documents for t in set(d))


def as_counters(*arrays: np.ndarray) -> list[Counter]:
    return [Counter({i: int(n) for i, n in enumerate(array) if n}) for array in arrays]


def stream(shards: Shards, *, framed: bool = False) -> list[list[int]]:
    """The documents of wrapped rows: up to and with each end token, the last one as far as it was kept."""
    rows = shards.tokens(np.arange(len(shards)))
    documents: list[list[int]] = [[]]
    for token in (rows[:, 1:-1] if framed else rows).ravel().tolist():
        documents[-1].append(token)
        if token == TOKENIZER.roles.eos_id:
            documents.append([])
    return [document for document in documents if document]


def test_documents_of_one_stream_end_with_their_end_token_over_rows_and_shards(shards):
    assert len(shards.manifest["shards"]) > 3
    table = CorpusTable.count(shards)
    documents = stream(shards)
    assert as_counters(table.counts, table.document_counts) == [*plain(documents)]
    assert (table.tokens, table.documents) == (shards.length * len(shards), len(documents))
    assert len(documents) in (len(TEXTS), len(TEXTS) - 1)
    assert (table.key, table.corpus, table.mask_id) == (shards.key, "texts (train)", TOKENIZER.mask_id)


def test_tokens_that_frame_rows_are_counted_and_are_in_every_document(tmp_path):
    shards = prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16, framed=True), cache=tmp_path)
    table = CorpusTable.count(shards)
    documents = stream(shards, framed=True)
    _, holding = plain(documents)
    holding[TOKENIZER.roles.bos_id] = holding[TOKENIZER.roles.eos_id] = len(documents)
    assert as_counters(table.document_counts) == [holding]
    assert as_counters(table.counts) == as_counters(
        np.bincount(shards.tokens(np.arange(len(shards))).ravel(), minlength=TOKENIZER.vocab_size)
    )


@pytest.mark.parametrize("packing", [Padded(16), Padded(16, crop=True), Padded(16, predict_padding=True)])
def test_a_padded_row_is_a_document_of_its_valid_tokens(tmp_path, packing):
    shards = prepare(Texts(TEXTS), "train", TOKENIZER, packing, cache=tmp_path)
    rows = np.arange(len(shards))
    documents = [row[valid].tolist() for row, valid in zip(shards.tokens(rows), shards.valid(rows), strict=True)]
    table = CorpusTable.count(shards)
    assert as_counters(table.counts, table.document_counts) == [*plain(documents)]
    assert table.documents == len(shards)


def test_a_stream_without_end_tokens_has_rows_for_documents(tmp_path):
    shards = prepare(Texts(TEXTS), "train", characters(), Wrapped(16, separated=False), cache=tmp_path)
    table = CorpusTable.count(shards)
    assert as_counters(table.counts, table.document_counts) == [*plain(shards.tokens(np.arange(len(shards))).tolist())]
    assert table.documents == len(shards)


@given(st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=8), st.data(), st.booleans())
def test_blocks_of_any_size_count_the_same_documents(documents, data, wide):
    tokens = np.array([t for document in documents for t in document], np.int64)
    numbers = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    seen = _Seen((1 << 16) + 1 if wide else 6)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    for part, of in zip(np.split(tokens, cuts), np.split(numbers, cuts), strict=True):
        seen.add(part, of)
    assert as_counters(seen.documents) == [plain(documents)[1]]


def test_a_table_is_read_as_it_was_written_and_its_bytes_are_always_the_same(shards, monkeypatch):
    path = make_table(shards)
    assert path == shards.folder / TABLE
    first = path.read_bytes()
    table = CorpusTable.read(shards.folder, vocab_size=TOKENIZER.vocab_size, key=shards.key)
    path.unlink()
    monkeypatch.setattr(module, "BLOCK_TOKENS", 1 << 20)
    assert make_table(shards).read_bytes() == first
    again = CorpusTable.count(shards)
    assert table.checksum == again.checksum
    assert np.array_equal(table.counts, again.counts)
    assert np.array_equal(table.document_counts, again.document_counts)
    Shards.open(shards.folder)


def test_other_processes_write_the_same_bytes(shards):
    """Hash seeds differ between processes, and so would the order of what a hash map holds."""
    program = (
        "import sys; from adlm.data.shards import Shards; from adlm.data.corpus_table import make_table\n"
        "sys.stdout.buffer.write(make_table(Shards.open(sys.argv[1])).read_bytes())"
    )
    found = set()
    for _ in range(2):
        (shards.folder / TABLE).unlink(missing_ok=True)
        command = [sys.executable, "-c", program, str(shards.folder)]
        found.add(hashlib.sha256(subprocess.run(command, check=True, capture_output=True).stdout).hexdigest())
    assert found == {hashlib.sha256(make_table(shards).read_bytes()).hexdigest()}


def test_a_table_that_is_there_is_kept_and_a_damaged_or_foreign_one_made_again(tmp_path, shards):
    path = make_table(shards)
    whole, stamp = path.read_bytes(), path.stat().st_mtime_ns
    rows: list[int] = []
    make_table(shards, watch=rows.append)
    assert path.stat().st_mtime_ns == stamp
    assert not rows
    other = prepare(Texts(TEXTS[1:]), "train", TOKENIZER, Wrapped(16), cache=tmp_path)
    for damaged in (whole[:-3], b"", whole[:-1] + bytes([whole[-1] ^ 1]), make_table(other).read_bytes()):
        path.write_bytes(damaged)
        assert make_table(shards, watch=rows.append).read_bytes() == whole
    assert rows[-1] == len(shards)


def test_an_interruption_leaves_no_table_and_the_next_run_makes_it_whole(shards):
    def stop(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_table(shards, watch=stop)
    assert not (shards.folder / TABLE).exists()
    CorpusTable.read(make_table(shards), key=shards.key)


def test_a_kill_while_writing_leaves_no_table(shards):
    program = (
        "import os, sys, time; from adlm.data.shards import Shards; from adlm.data.corpus_table import make_table\n"
        "os.fsync = lambda _: (print('writing', flush=True), time.sleep(60))\n"
        "make_table(Shards.open(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, str(shards.folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (shards.folder / TABLE).exists()
    with raises(DataError, subject=str(shards.folder / TABLE)):
        CorpusTable.read(shards.folder)
    CorpusTable.read(make_table(shards), key=shards.key)


def test_what_is_wrong_with_a_table_is_named(shards):
    path = make_table(shards)
    whole = path.read_bytes()
    with raises(DataError, subject="vocab_size"):
        CorpusTable.read(path, vocab_size=50258)
    with raises(DataError, subject="key"):
        CorpusTable.read(path, key="0" * 64)
    with raises(DamagedData, subject="0" * 64):
        CorpusTable.read(path, checksum="0" * 64)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with raises(DamagedData, subject="checksum") as caught:
        CorpusTable.read(path)
    assert "--anchor-table" in str(caught.value)
    for rubbish in (b"", b"rubbish", whole[:100]):
        path.write_bytes(rubbish)
        with raises(DamagedData, subject=path.name):
            CorpusTable.read(path)


@pytest.mark.parametrize(
    ("change", "arrays", "subject"),
    [
        ({"format": 99}, {}, "format"),
        ({"tokens": "many"}, {}, "tokens"),
        ({"documents": True}, {}, "documents"),
        ({}, {"counts": np.zeros(3, np.int64)}, "document_counts"),
        ({}, {"counts": np.zeros(320, np.float32)}, "counts"),
        ({"tokens": 5}, {}, "checksum"),
    ],
)
def test_a_table_from_elsewhere_is_not_trusted(shards, change, arrays, subject):
    path = make_table(shards)
    table = CorpusTable.read(path)
    head = {**table._head(), "checksum": table.checksum, **change}
    save_file({**load_file(path), **arrays}, path, {"adlm": json.dumps(head)})
    with raises(DamagedData, subject=subject):
        CorpusTable.read(path)


def test_a_tokenizer_that_does_not_fit_the_shards_is_named(shards):
    train_bpe(TEXTS[:50], 260).save(shards.folder / "tokenizer")
    with raises(DamagedData, subject="vocab_size"):
        make_table(Shards.open(shards.folder))


def test_a_full_disk_is_named(shards, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises(DataError, subject=str(shards.folder / TABLE)):
        make_table(shards)
    assert not (shards.folder / TABLE).exists()


def test_force_throws_the_table_away_with_the_shards(tmp_path, shards):
    make_table(shards)
    again = prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16), cache=tmp_path, force=True)
    assert (again.folder / MANIFEST).exists()
    assert not (again.folder / TABLE).exists()
