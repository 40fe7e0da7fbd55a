"""Read a pickle as data: a small machine for its opcodes that has no way to import or to call anything.

A pickle is a program for a stack machine. Python's own machine imports what the program names and calls it, which is
how a checkpoint can run a command. This one never does: a name becomes a `Name`, an object a `PickledObject` of what
it would have been made from. The few things that are rebuilt (dictionaries, bytes, tensors) are rebuilt by functions
that the caller of `read_pickle` passes in and that look only at plain values.

Names are checked all the same, to tell a checkpoint from an attack. `admitted` lists what the official training and its
libraries leave in their files: classes mostly, and no function that could do anything if it were called. A dotted
name ("sys.modules", "Tokenizer.from_file") reaches into something and is never admitted.
"""

import pickletools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from adlm.errors import ModelError


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


# An opcode is a byte and may make an object of 60: this bounds memory. Official files have less than a megabyte.
LARGEST = 8 * 2**20

Maker = Callable[[tuple[Any, ...]], Any]


class PickledObject:
    """An object that was not made: its class or function, the arguments, and what was to be put into it."""

    __slots__ = ("arguments", "elements", "items", "name", "state")

    def __init__(self, name: Name, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None
        self.items: dict[Any, Any] = {}
        self.elements: list[Any] = []


class RefusedPickle(Exception):
    """Raised for a pickle that is refused, with the reason; `read_pickle` turns it into a `ModelError`.

    Args:
        subject: the name, entry or pickle instruction at fault; without one, the instruction that was run.
    """

    def __init__(self, found: str, subject: str = "") -> None:
        super().__init__(found)
        self.subject = subject


def read_pickle(data: bytes, *, where: str, makers: Mapping[Name, Maker], persistent: Callable[[Any], Any]) -> Any:
    """The value a pickle describes, every unknown object in it a `PickledObject`.

    Args:
        where: what to call the file in messages.
        makers: our own functions for names that are rebuilt, given the arguments.
        persistent: our own function for persistent ids, which is how torch writes storages.
    """
    if len(data) > LARGEST:
        _refuse(where, f"a pickle of {len(data):,} bytes; more than {LARGEST:,} are not read", "data.pkl")
    machine = _Machine(makers, persistent)
    try:
        return machine.run(data)
    except RefusedPickle as error:
        _refuse(where, str(error), error.subject)
    except ModelError:
        raise
    except Exception as error:  # damaged bytes can end in nearly any of Python's errors
        raise ModelError(
            f"cannot read {where}: its pickle is damaged ({type(error).__name__}: {shown(str(error))})",
            subject="data.pkl",
        ) from error


def _refuse(where: str, found: str, subject: str) -> NoReturn:
    raise ModelError(
        f"cannot read {where}",
        found,
        "do not load this file with anything that unpickles it, unless you trust who made it; if you do, save its "
        "state_dict as safetensors there and convert that",
        subject=subject,
    )


_SCALARS = (str, bytes, int, float, bool, type(None))


def _key(value: Any) -> Any:
    """A dictionary key. Nothing nested: hashing a tuple of a million levels would overrun the C stack."""
    if isinstance(value, (*_SCALARS, Name)):
        return value
    if isinstance(value, tuple) and all(isinstance(item, _SCALARS) for item in value):
        return value
    raise RefusedPickle(f"a {type(value).__name__} as the key of a dictionary")


def _dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    """dict, OrderedDict: of nothing, a dictionary or pairs; defaultdict: what it makes by default is left out."""
    given = arguments[-1] if arguments else {}
    if isinstance(given, dict):
        return dict(given)
    if isinstance(given, list) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in given):
        return {_key(key): value for key, value in given}
    return {}


def _bytes(arguments: tuple[Any, ...]) -> bytes:
    """_codecs.encode(text, "latin1"): protocol 2 has no opcode for bytes."""
    text, encoding = arguments
    if not isinstance(text, str) or encoding != "latin1":
        raise RefusedPickle("_codecs.encode of something else than bytes written as latin1", "_codecs.encode")
    return text.encode("latin1")


def _list(arguments: tuple[Any, ...]) -> list[Any]:
    (given,) = arguments or ((),)
    if not isinstance(given, list | tuple):
        raise RefusedPickle(f"a set or list made of a {type(given).__name__}")
    return list(given)


_MAKERS: dict[Name, Maker] = {
    Name("collections", "OrderedDict"): _dict,
    Name("collections", "defaultdict"): _dict,
    Name("_codecs", "encode"): _bytes,
    **{Name(module, "dict"): _dict for module in ("builtins", "__builtin__")},
    # Sets become lists: membership is never asked for, and their items need not be hashable.
    **{Name(module, kind): _list for module in ("builtins", "__builtin__") for kind in ("set", "frozenset", "list")},
}


class _Machine:
    """The stack, the marks on it, and the memo."""

    def __init__(self, makers: Mapping[Name, Maker], persistent: Callable[[Any], Any]) -> None:
        self.makers = {**_MAKERS, **makers}
        self.persistent = persistent
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under each mark
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        end = 0
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name in _PUSHES:
                self.stack.append(argument)
                continue
            step = _STEPS.get(opcode.name)
            if step is None:
                at = f" of {shown(argument)}" if isinstance(argument, str) else ""
                raise RefusedPickle(f"the pickle instruction {opcode.name}{at}, which no checkpoint needs", opcode.name)
            try:
                step(self, argument)
            except RefusedPickle as error:
                error.subject = error.subject or opcode.name
                raise
            end = (position or 0) + 1
        if end != len(data) or len(self.stack) != 1 or self.below:
            raise RefusedPickle("a pickle that does not end where it should", "STOP")
        return self.stack[0]

    def marked(self) -> list[Any]:
        """What lies above the last mark, taken off."""
        items, self.stack = self.stack, self.below.pop()
        return items

    def mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

    def named(self, module: Any, name: Any) -> Name:
        if not isinstance(module, str) or not isinstance(name, str):
            raise RefusedPickle("a class whose name is not text")
        found = Name(module, name)
        if not admitted(found):
            raise RefusedPickle(f"the name {found}, which does not belong in a checkpoint; nothing was run", str(found))
        return found

    def call(self, function: Any, arguments: Any) -> Any:
        """What a call would have made: a value by one of our makers, or the record of the call."""
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise RefusedPickle(
                f"a call of a {type(function).__name__} with a {type(arguments).__name__}; nothing was run"
            )
        maker = self.makers.get(function)
        return PickledObject(function, arguments) if maker is None else maker(arguments)

    def global_(self, argument: Any) -> None:
        module, separator, name = str(argument).partition(" ")
        if not separator or " " in name:
            raise RefusedPickle(f"the name {shown(str(argument))}; nothing was run")
        self.stack.append(self.named(module, name))

    def stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(self.named(module, name))

    def inst(self, argument: Any) -> None:
        """A call by name in one instruction, written by Python 2 only: it is refused, with its name."""
        self.global_(argument)
        raise RefusedPickle(f"the pickle instruction INST of {shown(str(argument))}, which no checkpoint needs")

    def reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(self.call(function, arguments))

    def new_object_with_keywords(self, _: Any) -> None:
        self.stack.pop()
        self.reduce(_)

    def build(self, _: Any) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, PickledObject):
            target.state = state
        elif not isinstance(target, dict):  # a state_dict carries module versions beside its items; they are left out
            raise RefusedPickle(f"a state for a {type(target).__name__}; nothing was run")

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, PickledObject):
            target.elements.extend(items)
        elif isinstance(target, list):
            target.extend(items)
        else:
            raise RefusedPickle(f"elements for a {type(target).__name__}")

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        target = target.items if isinstance(target, PickledObject) else target
        if not isinstance(target, dict):
            raise RefusedPickle(f"items for a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def dictionary(self, _: Any) -> None:
        items = self.marked()
        self.stack.append({})
        self.set_items(items)

    def pop(self, _: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.marked()  # the mark itself

    def pop_mark(self, _: Any) -> None:
        self.marked()

    def push(self, value: Any) -> None:
        # Called with what `marked` gave: by then `stack` is the one below the mark.
        self.stack.append(value)

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise RefusedPickle("a tuple of more than there is")
        cut = len(self.stack) - count
        self.stack[cut:] = [tuple(self.stack[cut:])]

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]


# Instructions that push their argument: numbers, text, bytes.
_PUSHES = frozenset(
    {
        *("INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)

# All others that are understood. What is missing here is refused: OBJ, EXT1 (a registry of this process), PERSID, ...
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "STOP": lambda m, _: None,
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "DUP": lambda m, _: m.push(m.stack[-1]),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_SET": lambda m, _: m.push([]),
    "TUPLE": lambda m, _: m.push(tuple(m.marked())),
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "LIST": lambda m, _: m.push(m.marked()),
    "FROZENSET": lambda m, _: m.push(m.marked()),
    "DICT": _Machine.dictionary,
    "APPEND": lambda m, _: m.append([m.stack.pop()]),
    "APPENDS": lambda m, _: m.append(m.marked()),
    "ADDITEMS": lambda m, _: m.append(m.marked()),
    "SETITEM": lambda m, _: m.set_items([m.stack.pop(), m.stack.pop()][::-1]),
    "SETITEMS": lambda m, _: m.set_items(m.marked()),
    "GET": lambda m, index: m.push(m.memo[index]),
    "BINGET": lambda m, index: m.push(m.memo[index]),
    "LONG_BINGET": lambda m, index: m.push(m.memo[index]),
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": lambda m, _: m.put(len(m.memo)),
    "GLOBAL": _Machine.global_,
    "STACK_GLOBAL": _Machine.stack_global,
    "INST": _Machine.inst,
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.reduce,
    "BUILD": _Machine.build,
    "NEWOBJ_EX": _Machine.new_object_with_keywords,
    "BINPERSID": lambda m, _: m.push(m.persistent(m.stack.pop())),
}
