"""Prepared data on disk: rows of token ids in memory-mapped `.npy` files, and a manifest written last.

    FOLDER/manifest.json            counts, checksums, and the key over everything that shaped the bytes
    FOLDER/shard-00000.npy          [rows, length] uint16 or uint32
    FOLDER/shard-00000.lengths.npy  [rows], where rows are padded
    FOLDER/tokenizer/
    FOLDER/anchors.safetensors      token and document counts, if they were made (corpus_table.py)

Any tool that reads npy can open them, and nothing in them can run.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.data.table import Table, document_numbers
from adlm.data.tokenizer import Tokenizer, load_tokenizer
from adlm.errors import DamagedData, DataError
from adlm.files import file_checksum

MANIFEST = "manifest.json"
FORMAT = 1
_KEYS = {"key", "rows", "length", "padded", "padding_counts", "apart", "shards", "files"}
_NAME = re.compile(r"shard-\d{5,}(\.lengths)?\.npy")


@dataclass(frozen=True)
class Shards(Table):
    """A prepared split, opened."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> "Shards":
        """Open a prepared folder.

        Args:
            verify: compare every checksum (under a second per gigabyte on a recent CPU). Sizes are always compared.
        """
        folder = Path(folder)
        asked = f"cannot open the prepared data in {folder}"
        again = "run `adlm prepare --force` again"
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            unfinished = "an unfinished preparation" if any(folder.glob("shard-*.npy")) else f"no {MANIFEST}"
            raise DataError(f"{asked}: {unfinished}; run `adlm prepare`, which resumes", subject=MANIFEST) from None
        except ValueError as error:
            raise DamagedData(f"{asked}: {MANIFEST} is not JSON: {error}; {again}", subject=MANIFEST) from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            found = manifest.get("format") if isinstance(manifest, dict) else None
            raise DataError(f"{asked}: format {found}, this version reads {FORMAT}; {again}", subject="format")
        if missing := sorted(_KEYS - manifest.keys()):
            raise DamagedData(f"{asked}: {MANIFEST} has no {', '.join(missing)}; {again}", subject=missing[0])
        for entry in manifest["files"]:
            if not _NAME.fullmatch(entry["name"]):  # a manifest from elsewhere must not name files outside
                raise DamagedData(f"{asked}: it names a file {entry['name']!r}; {again}", subject=entry["name"])
            path = folder / entry["name"]
            if not path.exists():
                raise DamagedData(f"{asked}: {entry['name']} is missing; {again}", subject=entry["name"])
            if (size := path.stat().st_size) != entry["bytes"]:
                found = f"{entry['name']} has {size} bytes instead of {entry['bytes']}"
                raise DamagedData(f"{asked}: {found}; {again}", subject=entry["name"])
            if verify and file_checksum(path) != entry["sha256"]:
                found = f"{entry['name']} does not match its checksum"
                raise DamagedData(f"{asked}: {found}; {again}", subject=entry["name"])
        if not {*manifest["shards"]} <= {entry["name"] for entry in manifest["files"]}:
            raise DamagedData(f"{asked}: {MANIFEST} names shards it has no checksum of; {again}", subject="shards")
        return cls(folder, manifest)

    def __len__(self) -> int:
        return int(self.manifest["rows"])

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def key(self) -> str:
        return str(self.manifest["key"])

    @property
    def length(self) -> int:
        return int(self.manifest["length"])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.folder / "tokenizer")

    @cached_property
    def _tables(self) -> list[NDArray[Any]]:
        return [np.load(self.folder / name, mmap_mode="r") for name in self.manifest["shards"]]

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(len(table) for table in self._tables)])

    @cached_property
    def _lengths(self) -> NDArray[np.int64] | None:
        if not self.manifest["padded"]:
            return None
        names = [name.replace(".npy", ".lengths.npy") for name in self.manifest["shards"]]
        return np.concatenate([np.load(self.folder / name) for name in names]).astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        # Loader workers open the memory maps anew instead of receiving their contents.
        return {"folder": self.folder, "manifest": self.manifest}

    def tokens(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        out = np.empty((len(rows), self.length), np.int64)
        shard_of = np.searchsorted(self._starts, rows, side="right") - 1
        for i, (row, shard) in enumerate(zip(rows, shard_of, strict=True)):
            out[i] = self._tables[shard][row - self._starts[shard]]
        return out

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return super().lengths(rows) if self._lengths is None else self._lengths[rows]

    def documents(self, tokens: NDArray[np.int64]) -> NDArray[np.int64] | None:
        return document_numbers(tokens, self.tokenizer.roles.eos_id) if self.manifest["apart"] else None

    def valid(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self.manifest["padding_counts"]:
            return np.ones((len(rows), self.length), bool)
        return super().valid(rows)
