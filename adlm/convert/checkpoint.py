"""Read a checkpoint that PyTorch wrote (`torch.save`, a zip file) without running anything in it.

The file holds one pickle, `data.pkl`, and the raw bytes of every storage under `data/`. The pickle is read as data
(`pickle_data`); tensors are made of the bytes directly, and only those that are asked for: an optimizer's are never
read. What could make reading costly is refused first: torch compresses nothing, so every entry must be stored as it
is and all of them must fit into the file.
"""

import math
import re
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adlm.convert.pickle_data import LARGEST, Name, RefusedPickle, read_pickle, shown
from adlm.errors import ModelError

DTYPES = {
    Name("torch", f"{kind}Storage"): dtype
    for kind, dtype in {
        "BFloat16": torch.bfloat16,
        "Bool": torch.bool,
        "Byte": torch.uint8,
        "Char": torch.int8,
        "Double": torch.float64,
        "Float": torch.float32,
        "Half": torch.float16,
        "Int": torch.int32,
        "Long": torch.int64,
        "Short": torch.int16,
    }.items()
}
_KEY = re.compile(r"[0-9]{1,9}")
_PICKLE = "/data.pkl"


class Archive:
    """The entries of a checkpoint, checked, by their name below its one folder."""

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        self.path, self.file = path, file
        pickles = [entry.filename for entry in file.infolist() if entry.filename.endswith(_PICKLE)]
        if len(pickles) != 1:
            raise RefusedPickle(f"{len(pickles)} entries data.pkl instead of one", "data.pkl")
        folder = pickles[0].removesuffix("data.pkl")
        self.entries: dict[str, zipfile.ZipInfo] = {}
        for entry in file.infolist():
            name = entry.filename
            if not name.startswith(folder) or "\\" in name or {"", ".", ".."} & set(name.split("/")):
                found = f"an entry named {shown(name)}, outside the checkpoint's folder {shown(folder)}"
                raise RefusedPickle(found, shown(name))
            if name.removeprefix(folder) in self.entries:
                raise RefusedPickle(f"two entries named {shown(name)}", shown(name))
            if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                raise RefusedPickle(f"the entry {shown(name)} is compressed, which PyTorch never does", shown(name))
            self.entries[name.removeprefix(folder)] = entry
        if sum(entry.file_size for entry in file.infolist()) > path.stat().st_size:
            raise RefusedPickle("entries that are larger together than the file", path.name)
        if self.read("byteorder", b"little", limit=16) != b"little":
            raise RefusedPickle("numbers in big-endian order", "byteorder")

    def read(self, name: str, default: bytes | None = None, *, limit: int) -> bytes:
        entry = self.entries.get(name)
        if entry is None:
            if default is None:
                raise RefusedPickle(f"no entry {shown(name)}", shown(name))
            return default
        if entry.file_size > limit:
            found = f"{entry.file_size:,} bytes in {shown(name)} where at most {limit:,} belong"
            raise RefusedPickle(found, shown(name))
        return self.file.read(entry)  # checks the CRC


@dataclass(frozen=True, eq=False)
class Storage:
    """Numbers of one type in an entry of the archive."""

    archive: Archive
    key: str
    dtype: torch.dtype
    elements: int


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor that is still in the file."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype

    def load(self) -> Tensor:
        """Load the tensor into memory of its own."""
        storage = self.storage
        with _answered(storage.archive.path):
            if math.prod(self.shape) == 0:
                return torch.empty(self.shape, dtype=self.dtype)
            size = storage.elements * self.dtype.itemsize
            data = storage.archive.read(f"data/{storage.key}", limit=size)
            if len(data) != size:
                found = f"{len(data):,} bytes in data/{storage.key} instead of {size:,}"
                raise RefusedPickle(found, f"data/{storage.key}")
            flat = torch.frombuffer(bytearray(data), dtype=self.dtype)
            if sys.byteorder != "little":  # pragma: no cover
                raise RefusedPickle("little-endian numbers, on a big-endian machine", "byteorder")
            return flat.as_strided(self.shape, self.stride, self.offset).clone(memory_format=torch.contiguous_format)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The object that `torch.save` stored, as data: dictionaries, lists, numbers, text, `StoredTensor`s, `Record`s.

    Tensors can be loaded inside the `with`.
    """
    _check_kind(path)
    with _answered(path):
        file = zipfile.ZipFile(path)
    with file:
        with _answered(path):
            archive = Archive(path, file)
            data = archive.read("data.pkl", limit=LARGEST)
            content = read_pickle(
                data,
                where=str(path),
                makers={
                    Name("torch._utils", "_rebuild_tensor_v2"): _tensor,
                    Name("torch._utils", "_rebuild_parameter"): _parameter,
                },
                persistent=lambda identifier: _storage(archive, identifier),
            )
        yield content


@contextmanager
def _answered(path: Path) -> Iterator[None]:
    """Whatever goes wrong while the file is read is a `ModelError`."""
    try:
        yield
    except ModelError:
        raise
    except RefusedPickle as error:
        raise ModelError(f"cannot read {path}: {error}", subject=error.subject) from error
    except Exception as error:  # zipfile has many errors of its own and lets others through
        raise ModelError(
            f"cannot read {path}: the file is damaged ({type(error).__name__}: {shown(str(error))})",
            subject=path.name,
        ) from error


def _check_kind(path: Path) -> None:
    asked = f"cannot read the checkpoint {path}"
    if not path.is_file():
        raise ModelError(f"{asked}: no such file", subject=str(path))
    with path.open("rb") as file:
        start = file.read(4)
    if start[:2] == b"PK":
        return
    if start[:1] in (b"\x80", b"(", b"]", b"}", b"c"):
        raise ModelError(
            asked,
            "a bare pickle, or a PyTorch file of before version 1.6; neither is read here",
            "where you trust the file, load it and save its state_dict as safetensors, then convert that",
            subject=path.name,
        )
    raise ModelError(f"{asked}: not a zip file, as PyTorch writes them", subject=path.name)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


def _storage(archive: Archive, identifier: Any) -> Storage:
    """("storage", torch.FloatStorage, key, device, elements), and nothing else."""
    if not isinstance(identifier, tuple) or len(identifier) != 5 or identifier[0] != "storage":
        raise RefusedPickle("a persistent id that is not a storage; nothing was run", "storage")
    _, kind, key, device, elements = identifier
    if not isinstance(kind, Name) or kind not in DTYPES:
        shown_kind = str(kind) if isinstance(kind, Name) else type(kind).__name__
        raise RefusedPickle(f"a storage of type {shown_kind}", f"storage type {shown_kind}")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        name = shown(key) if isinstance(key, str) else type(key).__name__
        raise RefusedPickle(f"a storage named {name}", f"data/{name}")
    if not isinstance(device, str) or not _count(elements):
        raise RefusedPickle(f"the storage {key} without a device or size", f"data/{key}")
    return Storage(archive, key, DTYPES[kind], elements)


def _tensor(arguments: tuple[Any, ...]) -> StoredTensor:
    """storage, offset, shape, stride, requires_grad, hooks[, metadata], which must describe a part of the storage."""
    if len(arguments) not in (6, 7):
        raise RefusedPickle(f"a tensor made of {len(arguments)} values", "tensor")
    storage, offset, shape, stride = arguments[:4]
    if not (
        isinstance(storage, Storage)
        and _count(offset)
        and isinstance(shape, tuple)
        and isinstance(stride, tuple)
        and len(shape) == len(stride) <= 8
        and all(map(_count, shape))
        and all(map(_count, stride))
    ):
        raise RefusedPickle("a tensor without a storage, shape or stride", "tensor")
    count = math.prod(shape)
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    # The first condition also refuses expanded tensors, which are larger than what is stored.
    if count > storage.elements or (count and last >= storage.elements):
        found = f"a tensor of shape {list(shape)} that goes beyond its storage of {storage.elements} numbers"
        raise RefusedPickle(found, f"data/{storage.key}")
    return StoredTensor(storage, offset, shape, stride)


def _parameter(arguments: tuple[Any, ...]) -> StoredTensor:
    if not arguments or not isinstance(arguments[0], StoredTensor):
        raise RefusedPickle("a parameter that is not a tensor", "parameter")
    return arguments[0]
