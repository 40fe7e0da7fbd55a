import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import adlm.data.prepare as module
from adlm.data.packing import Padded, Wrapped
from adlm.data.prepare import prepare
from adlm.data.shards import MANIFEST, Shards
from adlm.data.source import Piece
from adlm.data.tokenizer import train_bpe
from adlm.errors import DamagedData, DataError, OutOfRange
from tests.conftest import Texts
from tests.errors import raises

TEXTS = tuple(f"document {i}: " + " ".join(f"word{(i * j) % 17}" for j in range(i % 40)) for i in range(400))
TOKENIZER = train_bpe(TEXTS[:50], 320)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Many chunks and shards from little text."""
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 500)
    monkeypatch.setattr(module, "SHARD_TOKENS", 1500)


def contents(shards: Shards) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(shards.folder.glob("*.npy"))}


@dataclass(frozen=True)
class Breaking(Texts):
    """Stops with an error after some documents, as an interruption would."""

    after: int = 0

    def pieces(self, split: str) -> Iterator[Piece]:
        for i, piece in enumerate(super().pieces(split)):
            if i == self.after:
                raise KeyboardInterrupt
            yield piece


@pytest.mark.parametrize("packing", [Wrapped(16), Wrapped(16, framed=True), Padded(16), Padded(16, crop=True)])
def test_shards_hold_the_text_whatever_the_number_of_workers(tmp_path, packing):
    one = prepare(Texts(TEXTS), "train", TOKENIZER, packing, cache=tmp_path / "one")
    two = prepare(Texts(TEXTS), "train", TOKENIZER, packing, cache=tmp_path / "two", workers=2)
    assert contents(one) == contents(two)
    assert len(one.manifest["shards"]) > 3
    whole = packing.pack(np.zeros(0, np.int64), [(TOKENIZER.encode(t), True) for t in TEXTS], TOKENIZER.roles)
    assert np.array_equal(one.tokens(np.arange(len(one))), whole.rows)
    assert np.array_equal(one.lengths(np.arange(len(one))), whole.lengths)
    assert one.manifest["documents"] == len(TEXTS)


def test_an_interrupted_preparation_goes_on_and_gives_the_same_bytes(tmp_path):
    packing = Wrapped(16)
    whole = prepare(Texts(TEXTS), "train", TOKENIZER, packing, cache=tmp_path / "whole")
    for after in (150, 300):
        with pytest.raises(KeyboardInterrupt):
            prepare(Breaking(TEXTS, after=after), "train", TOKENIZER, packing, cache=tmp_path / "cut")
        folder = next(path for path in (tmp_path / "cut").iterdir() if path.is_dir())
        with raises(DataError, subject="manifest.json"):
            Shards.open(folder)
        before = {path.name: path.stat().st_mtime_ns for path in folder.glob("shard-*.npy")}
        assert before
    # The class is part of the key; continue under the interrupted one's.
    cut = prepare(Breaking(TEXTS, after=10**9), "train", TOKENIZER, packing, cache=tmp_path / "cut")
    assert contents(cut) == contents(whole)
    after_all = {path.name: path.stat().st_mtime_ns for path in cut.folder.glob("shard-*.npy")}
    assert all(after_all[name] == stamp for name, stamp in before.items()), "finished shards were written again"


def test_a_killed_preparation_goes_on(tmp_path):
    """A real process, killed without warning several times on the way."""
    program = (
        "import sys, time\nfrom pathlib import Path\nimport adlm.data.prepare as p\n"
        "from adlm.data.files import TextFiles\nfrom adlm.data.documents import Lines\n"
        "from adlm.data.tokenizer import load_tokenizer\nfrom adlm.data.packing import Wrapped\n"
        "p.CHUNK_CHARACTERS, p.SHARD_TOKENS = 500, 1500\n"
        "watch = lambda documents, characters, rows: time.sleep(0.004)\n"
        "source = TextFiles(sys.argv[1] + '/corpus.txt', rule=Lines(), cut=None)\n"
        "s = p.prepare(source, 'train', load_tokenizer(sys.argv[1] + '/tok'), Wrapped(16),\n"
        "    cache=Path(sys.argv[2]), watch=watch)\nprint(s.folder)\n"
    )
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS))
    TOKENIZER.save(tmp_path / "tok")

    def start(cache: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, str(tmp_path), str(tmp_path / cache)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    kills = 0
    for delay in (0.05, 0.1, 0.15):
        process = start("killed")
        deadline = time.monotonic() + 30
        while not list((tmp_path / "killed").glob("*/shard-*.npy")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(delay)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.communicate()
    assert kills, "the preparation was over before it could be killed"
    killed = Shards.open(start("killed").communicate()[0].strip())
    assert contents(killed) == contents(Shards.open(start("whole").communicate()[0].strip()))


def test_a_second_call_finds_the_result_and_force_makes_it_again(tmp_path):
    arguments = (Texts(TEXTS), "train", TOKENIZER, Wrapped(16))
    first = prepare(*arguments, cache=tmp_path)
    stamp = (first.folder / MANIFEST).stat().st_mtime_ns
    assert (prepare(*arguments, cache=tmp_path).folder / MANIFEST).stat().st_mtime_ns == stamp
    assert (prepare(*arguments, cache=tmp_path, force=True).folder / MANIFEST).stat().st_mtime_ns != stamp


def test_whatever_shapes_the_bytes_changes_the_folder(tmp_path):
    other = train_bpe(TEXTS[50:120], 320)
    folders = {
        prepare(texts, "train", tokenizer, packing, cache=tmp_path).folder
        for texts, tokenizer, packing in [
            (Texts(TEXTS), TOKENIZER, Wrapped(16)),
            (Texts(TEXTS), other, Wrapped(16)),
            (Texts(TEXTS), TOKENIZER, Wrapped(32)),
            (Texts(TEXTS), TOKENIZER, Wrapped(16, framed=True)),
            (Texts(TEXTS), TOKENIZER, Padded(16)),
            (Texts(TEXTS[1:]), TOKENIZER, Wrapped(16)),
            (Texts(TEXTS, name="other"), TOKENIZER, Wrapped(16)),
        ]
    }
    assert len(folders) == 7


@pytest.fixture
def shards(tmp_path) -> Shards:
    return prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16), cache=tmp_path)


def test_damage_is_named(shards):
    victim: Path = shards.folder / shards.manifest["shards"][1]
    whole = victim.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-4]):
        victim.write_bytes(damaged)
        with raises(DamagedData, subject=victim.name):
            Shards.open(shards.folder)
    victim.unlink()
    with raises(DamagedData, subject=victim.name):
        Shards.open(shards.folder)
    (shards.folder / MANIFEST).write_text("{")
    with raises(DamagedData, subject="manifest.json"):
        Shards.open(shards.folder)
    (shards.folder / MANIFEST).write_text(json.dumps({**shards.manifest, "format": 99}))
    with raises(DataError, subject="format"):
        Shards.open(shards.folder)


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"files": [{"name": "../secret.npy", "bytes": 1, "sha256": ""}]}, "../secret.npy"),
        ({"shards": ["../secret.npy"]}, "shards"),
        ({"rows": None}, "rows"),
    ],
)
def test_a_manifest_from_elsewhere_cannot_reach_outside_its_folder(shards, change, subject):
    manifest = {key: value for key, value in {**shards.manifest, **change}.items() if value is not None}
    (shards.folder / MANIFEST).write_text(json.dumps(manifest))
    with raises(DamagedData, subject=subject):
        Shards.open(shards.folder)


def test_damaged_data_is_refused_by_prepare_and_remade_with_force(tmp_path, shards):
    victim: Path = shards.folder / shards.manifest["shards"][0]
    victim.write_bytes(b"")
    with pytest.raises(DamagedData):
        prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16), cache=tmp_path)
    again = prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16), cache=tmp_path, force=True)
    assert len(again) == len(shards)


def test_a_corpus_without_one_full_row_is_refused(tmp_path):
    for texts in ((), ("short",)):
        with raises(DataError, subject="train"):
            prepare(Texts(texts), "train", TOKENIZER, Wrapped(64), cache=tmp_path)


def test_nonsense_settings_are_refused(tmp_path):
    with raises(OutOfRange, subject="workers", value=0):
        prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16), cache=tmp_path, workers=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="a folder you can write to"):
        prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16), cache=tmp_path / "file")


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    whole = prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16), cache=tmp_path / "whole")
    save, saved = np.save, []

    def full_after_two(file, array, **options):
        if len(saved) == 2:
            raise OSError(28, "No space left on device")
        saved.append(file)
        save(file, array, **options)

    monkeypatch.setattr(np, "save", full_after_two)
    with pytest.raises(DataError, match="No space left on device"):
        prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16), cache=tmp_path / "full")
    monkeypatch.undo()
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 500)
    monkeypatch.setattr(module, "SHARD_TOKENS", 1500)
    assert contents(prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16), cache=tmp_path / "full")) == contents(whole)


def _prepare_in_process(cache: str) -> str:
    return str(prepare(Texts(TEXTS), "train", TOKENIZER, Wrapped(16), cache=Path(cache)).folder)


def test_processes_that_prepare_the_same_data_wait_for_each_other(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        folders = pool.map(_prepare_in_process, [str(tmp_path)] * 4)
    assert len(set(folders)) == 1
    assert len(Shards.open(folders[0])) > 0
