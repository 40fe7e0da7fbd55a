"""Parameters to a safetensors file and back, strictly: every name, every shape, every number finite.

A file from a stranger is checked by its header before memory is spent on it, and the network its config describes
is built under a budget taken from that header: neither can ask for more than the other has.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from adlm.errors import AdlmError, MissingExtra, ModelError, first_line

M = TypeVar("M", bound=nn.Module)
# What is read into the network's own type, float32 by default. Whole numbers and 8-bit floats need a scale that
# no file of ours has.
FLOATS = ("F32", "BF16", "F16", "F64")
_WRAPPER = "network."
# About 80,000 tensors; reading the header of millions takes minutes.
_LARGEST_HEADER = 8 << 20
_DAMAGED = "the file is damaged: get it again"
_DIFFERENT = "config and weights belong to different models"


class StoredShape(NamedTuple):
    """The shape and type of a tensor, from the header of its file."""

    shape: tuple[int, ...]
    dtype: str


def write_weights(path: Path, model: nn.Module, asked: str) -> None:
    """Write weights to a file. Tied ones are written once, under their first name; diverged ones are refused."""
    weights = {name: parameter.detach().cpu().contiguous() for name, parameter in model.named_parameters()}
    for name, tensor in weights.items():
        _check_finite(name, tensor, asked)
    save_file(weights, path, metadata={"format": "pt"})


def read_weights(path: Path, build: Callable[[], M], asked: str) -> M:
    """The network that `build` makes, with the weights of the file.

    Args:
        asked: the first part of error messages.
    """
    check_header(path, asked)
    try:
        file = safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(asked, *_why_unreadable(path, error), subject=path.name) from error
    with file, torch.no_grad():
        names = list(file.keys())
        model = _built(build, {name: _stored(file, name) for name in names}, asked)
        prefix = _prefix(model, names)
        for name, parameter in model.named_parameters():
            parameter.copy_(file.get_tensor(prefix + name))
            _check_finite(name, parameter, asked)
    return model


def check_header(path: Path, asked: str) -> None:
    """Refuse a safetensors file with a header that would take minutes to read."""
    size = _header_bytes(path)
    if _LARGEST_HEADER < size <= path.stat().st_size:  # a larger one than the file is no header, and named so later
        found = f"a header of {size:,} bytes in {path.name}; more than {_LARGEST_HEADER:,} are not read"
        raise ModelError(f"{asked}: {found}", subject=path.name)


def _header_bytes(path: Path) -> int:
    """The length that a file gives for its header."""
    try:
        with path.open("rb") as file:
            return int.from_bytes(file.read(8), "little")
    except OSError:
        return 0  # opening it again says why


def _prefix(model: nn.Module, names: Iterable[str]) -> str:
    """`network.`, under which transformers saves the weights of our networks; else nothing."""
    inside = any(name.startswith(_WRAPPER) for name, _ in model.named_parameters())
    return "" if inside or not all(name.startswith(_WRAPPER) for name in names) else _WRAPPER


def _stored(file: Any, name: str) -> StoredShape:
    part = file.get_slice(name)
    return StoredShape(tuple(part.get_shape()), part.get_dtype())


def _built(build: Callable[[], M], stored: Mapping[str, StoredShape], asked: str) -> M:
    """A network for exactly these tensors; one that would not fit is refused before it takes memory."""
    numbers = sum(math.prod(tensor.shape) for tensor in stored.values())
    # Twice what is stored, and some: networks may make small tensors that they do not keep.
    budget = _Budget(4 * len(stored) + 256, 2 * numbers + 2**16)
    try:
        try:
            with budget:
                model = build()
        except _OverBudget:
            # Too large for these weights, so they cannot fit: built once more without memory, to say where. Not done
            # at first since PyTorch takes a second to get ready for tensors without memory.
            with torch.device("meta"), _Budget(budget.tensors, math.inf):
                model = build()
    except _OverBudget as error:
        found = f"the config describes far more tensors than the {len(stored)} in the file"
        raise ModelError(f"{asked}: {found}; {_DIFFERENT}", subject="tensors") from error
    except MissingExtra:
        raise
    except (AdlmError, ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        found = f"the config describes a network that cannot be built: {first_line(error)}"
        raise ModelError(f"{asked}: {found}", subject="config") from error
    prefix = _prefix(model, stored)
    bare = {name.removeprefix(prefix): tensor for name, tensor in stored.items()}
    _check_fit(dict(model.named_parameters()), bare, asked)
    return model


def _check_fit(parameters: Mapping[str, Tensor], stored: Mapping[str, StoredShape], asked: str) -> None:
    missing, extra = sorted(parameters.keys() - stored.keys()), sorted(stored.keys() - parameters.keys())
    if missing or extra:
        found = f"keys missing: {_some(missing)}, not known: {_some(extra)}"
        raise ModelError(f"{asked}: {found}; {_DIFFERENT}", subject=(missing or extra)[0])
    for name, parameter in parameters.items():
        shape, dtype = stored[name]
        if shape != parameter.shape:
            found = f"{name} has shape {list(shape)} instead of {list(parameter.shape)}"
            raise ModelError(f"{asked}: {found}; {_DIFFERENT}", subject=name)
        if dtype not in FLOATS:
            fix = f"convert the weights to one of {', '.join(FLOATS)} first"
            raise ModelError(f"{asked}: {name} holds numbers of type {dtype}; {fix}", subject=name)


def _check_finite(name: str, tensor: Tensor, asked: str) -> None:
    # A sum is finite only if every term is, and takes a twentieth of the time of looking at each. It may also
    # overflow, so a sum that is not finite only raises the suspicion.
    if not tensor.sum().isfinite() and not tensor.isfinite().all():
        fix = "training has diverged: take weights from before that"
        raise ModelError(f"{asked}: {name} holds numbers that are not finite; {fix}", subject=name)


class _OverBudget(Exception):
    pass


class _Budget(TorchFunctionMode):
    """Inside, at most so many tensors of so many numbers together are made, and nothing random is drawn.

    Weights that are about to be read need no random start: that saves most of the time of building, and the
    global random state stays as it was. Everything else, such as tables of positions, is computed as usual.
    """

    MAKING = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)
    DRAWING = ("uniform_", "normal_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_",
               "xavier_normal_")  # fmt: skip

    def __init__(self, tensors: int, numbers: float) -> None:
        super().__init__()
        self.tensors, self.numbers = tensors, numbers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.MAKING:
            self._spend(func(*args, **{**kwargs, "device": "meta"}).numel())
            if func in (torch.rand, torch.randn):
                func = torch.zeros
        elif func is torch.arange:
            self._spend(max((abs(bound) for bound in args), default=0))
        elif getattr(func, "__name__", "") in self.DRAWING:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)

    def _spend(self, numbers: float) -> None:
        self.tensors, self.numbers = self.tensors - 1, self.numbers - numbers
        if self.tensors < 0 or self.numbers < 0:
            raise _OverBudget


def _why_unreadable(path: Path, error: Exception) -> tuple[str, str]:
    """What a file that is no whole safetensors file is instead, and what to do."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(64)
        if head[8:9] == b"{" or size < 9:
            # The layout: eight bytes with the length of the header, the header as JSON, the numbers.
            header = int.from_bytes(head[:8], "little")
            if size < 8 + header or size < 9:
                return f"{path.name} is cut short: it ends after {size} bytes, within its header", _DAMAGED
            file.seek(8)
            end = 8 + header + _data_size(file.read(header))
            if size < end:
                return f"{path.name} is cut short: it ends after {size} of {end} bytes", _DAMAGED
        elif head.startswith((b"PK", b"\x80")):
            fix = "a pickle can run code and is never read: get the model as safetensors, or try `adlm convert`"
            return f"{path.name} is a pickle, as torch.save writes it, whatever its name says", fix
        elif head.startswith(b"version https://git-lfs"):
            return f"{path.name} is a pointer of Git LFS, not the file itself", "fetch it with `git lfs pull`"
        elif head.lstrip().startswith(b"<"):
            return f"{path.name} is a web page", "download the file itself"
    return f"{path.name} is not a safetensors file: {first_line(error)}", _DAMAGED


def _data_size(header: bytes) -> int:
    """Bytes of data that a header promises; 0 if it makes no sense."""
    try:
        entries: dict[str, Any] = json.loads(header)
        return max((int(e["data_offsets"][1]) for name, e in entries.items() if name != "__metadata__"), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return 0


def _some(names: Iterable[str], most: int = 5) -> str:
    names = list(names)
    return f"{names[:most]}" + (f" and {len(names) - most} more" if len(names) > most else "")
