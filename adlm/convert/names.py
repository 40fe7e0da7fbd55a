"""Which classes and functions an official checkpoint may name.

Nothing named in a pickle is ever imported or called here (`pickle_data`): a name is two words. The list is there to
tell a checkpoint from an attack. It admits what the official training and its libraries leave in their files, classes
mostly, and no function that could do anything if somebody did call it: of torch only storages and two rebuilders,
of omegaconf, tokenizers, Lightning and transformers' tokenizers only names written as classes are. A dotted name
("sys.modules", "Tokenizer.from_file") reaches into something and is never admitted.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Name:
    """A class or function as a pickle names it. Never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return shown(f"{self.module}.{self.name}")


def shown(text: str) -> str:
    """Text out of a foreign file, fit for a terminal."""
    text = text if len(text) <= 120 else text[:120] + "..."
    return text if text.isprintable() else ascii(text)


_BUILTINS = "bool bytearray bytes complex dict float frozenset int list object set str tuple"
_STORAGES = "BFloat16 Bool Byte Char Double Float Half Int Long Short"
_DTYPES = "bfloat16 bool float16 float32 float64 int16 int32 int64 int8 uint8"

EXACT: dict[str, frozenset[str]] = {
    module: frozenset(names.split())
    for module, names in {
        "builtins": _BUILTINS,
        "__builtin__": _BUILTINS + " long unicode",  # as protocol 2 writes it
        "collections": "Counter OrderedDict defaultdict deque",
        "typing": "Any Dict List Optional Sequence Tuple Union",
        "_codecs": "encode",  # how protocol 2 writes bytes
        "pathlib": "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath",
        "pathlib._local": "Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath",
        "torch": " ".join(f"{kind}Storage" for kind in _STORAGES.split()) + f" Size device dtype {_DTYPES}",
        "torch._utils": "_rebuild_parameter _rebuild_tensor_v2",
        "torch.nn.parameter": "Parameter",
        "numpy": "dtype ndarray",
        "numpy.core.multiarray": "_reconstruct scalar",
        "numpy._core.multiarray": "_reconstruct scalar",
        "dataloader": "Text8Tokenizer",  # the official repository's own
    }.items()
}

# Modules of which every name that is written as a class is admitted.
CLASSES = re.compile(
    r"omegaconf(\.(dictconfig|listconfig|base|nodes))?"
    r"|tokenizers(\.(models|normalizers|pre_tokenizers|processors|decoders))?"
    r"|transformers\.(models\.\w+\.)?tokenization_\w+"
    r"|(lightning\.pytorch|lightning\.fabric|pytorch_lightning|lightning_fabric)\.(utilities|callbacks|trainer)(\.\w+)*",
    re.ASCII,
)
_CLASS = re.compile(r"[A-Z][A-Za-z0-9]*")


def admitted(name: Name) -> bool:
    """Whether an official checkpoint may hold this name."""
    if name.name in EXACT.get(name.module, ()):
        return True
    return bool(CLASSES.fullmatch(name.module) and _CLASS.fullmatch(name.name))
