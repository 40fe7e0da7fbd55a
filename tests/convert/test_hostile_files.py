"""Files that would run something if anybody unpickled them. Each is first shown to work on Python's own unpickler."""

import builtins
import contextlib
import copyreg
import functools
import os
import pickle
import struct
import subprocess
import sys
import threading
import zipfile
from collections import OrderedDict

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adlm.convert.checkpoint import StoredTensor, opened
from adlm.convert.description import Options
from adlm.convert.from_official import from_official
from adlm.convert.pickle_data import LARGEST, Name, PickledObject, admitted
from adlm.errors import ModelError
from tests.convert.official_files import ar_weights, save_checkpoint, tokenizer_json
from tests.errors import raises


def archive(path, data, *, extra=(), folder="archive", compression=zipfile.ZIP_STORED):
    """A file as torch writes it, around any pickle."""
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr(f"{folder}/data.pkl", data)
        file.writestr(f"{folder}/byteorder", b"little")
        for name, content in extra:
            file.writestr(name, content)
    return path


def read(path):
    with opened(path) as content:
        return content


class Calls:
    """An object that pickles as a call."""

    def __init__(self, function, *arguments, state=None):
        self.call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.call


def text(value):
    """A string as protocol 2 writes it."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def attacks(marker):
    """Name of the attack -> the pickle, and what its refusal has to name."""
    touch, write = f"touch {marker}", f"open({str(marker)!r}, 'w').close()"
    imported = Calls(getattr, Calls(builtins.__import__, "os"), "system")
    held = [Calls(exec, write)]
    return {
        "a call of os.system": (pickle.dumps(Calls(os.system, touch), 2), "posix.system"),
        "a call of os.system, protocol 4": (pickle.dumps(Calls(os.system, touch), 4), "posix.system"),
        "eval": (pickle.dumps(Calls(eval, write), 2), "__builtin__.eval"),
        "exec": (pickle.dumps(Calls(exec, write), 5), "builtins.exec"),
        "a process": (pickle.dumps(Calls(subprocess.Popen, ["touch", str(marker)]), 4), "subprocess.Popen"),
        "a call of what a call returned": (
            pickle.dumps(imported, 2)[:-1] + text(touch) + b"\x85R.",
            "__builtin__.getattr",
        ),
        "a partial function": (
            pickle.dumps(Calls(functools.partial, os.system, touch), 2)[:-1] + b")R.",
            "functools.partial",
        ),
        "inside a state_dict": (pickle.dumps({"state_dict": OrderedDict(a=held)}, 2), "__builtin__.exec"),
        "as the state of an object": (
            pickle.dumps(Calls(OrderedDict, state={"_metadata": Calls(eval, write)}), 2),
            "__builtin__.eval",
        ),
        "as a key": (b"\x80\x02}cposix\nsystem\n" + text(touch) + b"\x85RK\x01s.", "posix.system"),
        "a name from the stack": (b"\x80\x04" + text("posix") + text("system") + b"\x93" + text(touch) + b"\x85R.",
                                  "posix.system"),
        "a name from the memo": (
            b"\x80\x04" + text("system") + b"q\x07" + text("posix") + b"q\x08h\x08h\x07\x93" + text(touch) + b"\x85R.",
            "posix.system",
        ),
        "a dotted name that reaches out of torch": (
            b"\x80\x04" + text("torch.serialization") + text("os.system") + b"\x93" + text(touch) + b"\x85R.",
            "torch.serialization.os.system",
        ),
        "a dotted name of an admitted module": (
            b"\x80\x04" + text("collections") + text("_sys.modules.__class__.__base__.__subclasses__") + b"\x93)R0"
            b"cposix\nsystem\n" + text(touch) + b"\x85R.",
            "collections._sys.modules.__class__.__base__.__subclasses__",
        ),
        "the instruction INST": (b"(S'" + touch.encode() + b"'\niposix\nsystem\n.", "posix.system"),
        "the instruction OBJ": (b"(cposix\nsystem\nS'" + touch.encode() + b"'\no.", "posix.system"),
        "the instruction EXT1": (b"\x80\x02\x82\xf0" + text(touch) + b"\x85R.", "EXT1"),
        "hidden behind a pop": (pickle.dumps(Calls(os.system, touch), 2)[:-1] + b"0N.", "posix.system"),
    }  # fmt: skip


@pytest.fixture
def extension():
    """os.system as number 0xf0 of the registry that EXT1 reads."""
    copyreg.add_extension("os", "system", 0xF0)
    yield
    copyreg.remove_extension("os", "system", 0xF0)


@pytest.mark.skipif(os.name != "posix", reason="the commands are those of a POSIX shell")
@pytest.mark.parametrize("attack", attacks("m"))
def test_an_attack_is_refused_by_name_and_does_nothing(attack, tmp_path, extension):
    marker = tmp_path / "marker"
    payload, name = attacks(marker)[attack]
    try:
        made = pickle.loads(payload)
    except TypeError:
        made = None  # after the deed
    if isinstance(made, subprocess.Popen):
        made.wait()
    assert marker.exists(), "the attack itself does not work"
    marker.unlink()
    file = archive(tmp_path / "bad.ckpt", payload)
    with raises(ModelError, subject=name):
        read(file)
    with raises(ModelError, subject=name):
        from_official(file)
    assert not marker.exists()


def test_torch_saves_of_an_attack_are_refused(tmp_path):
    marker = tmp_path / "marker"
    content = {"state_dict": {"a": torch.zeros(2)}, "callbacks": Calls(os.system, f"touch {marker}")}
    torch.save(content, tmp_path / "new.ckpt")
    torch.save(content, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.ckpt").write_bytes(pickle.dumps(content["callbacks"]))
    (tmp_path / "bare0.ckpt").write_bytes(pickle.dumps(content["callbacks"], 0))
    with raises(ModelError, subject="posix.system"):
        read(tmp_path / "new.ckpt")
    for name in ("old.ckpt", "bare.ckpt", "bare0.ckpt"):
        with raises(ModelError, subject=name):
            read(tmp_path / name)
    assert not marker.exists()


def test_a_harmless_file_in_the_old_format_is_refused_too(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    with raises(ModelError, subject="old.ckpt"):
        read(tmp_path / "old.ckpt")


@pytest.mark.parametrize(
    "name",
    [
        *("torch.load", "torch.hub.load", "torch.storage._load_from_bytes", "torch.serialization.load", "torch.os"),
        *("torch._utils._rebuild_device_tensor_from_numpy", "torch.jit.load", "torch.utils.data.DataLoader"),
        *("numpy.load", "numpy.testing._private.utils.runstring", "numpy.ndarray.tofile", "numpy.f2py.os"),
        *("omegaconf.omegaconf.OmegaConf", "omegaconf._utils.OmegaConfDumper", "omegaconf.base.yaml"),
        *("transformers.pipelines.Pipeline", "transformers.AutoModel", "transformers.tokenization_utils_base.os"),
        *("tokenizers.Tokenizer.from_file", "tokenizers.implementations.BertWordPieceTokenizer"),
        *("lightning.pytorch.cli.LightningCLI", "pytorch_lightning.utilities.os", "lightning.Trainer"),
        *("collections.namedtuple", "collections.abc.Callable", "typing.get_type_hints", "pathlib.os", "_codecs.open"),
        *("builtins.getattr", "builtins.__import__", "builtins.open", "__builtin__.apply", "builtins.type"),
        *("copyreg._reconstructor", "operator.attrgetter", "functools.partial", "importlib.import_module", "os.system"),
        *("omegaconfx.base.Metadata", "xomegaconf.base.Metadata", "dataloader.get_dataset", "sys.modules", "."),
        *("torch\n.FloatStorage", "omegaconf.base\n.Metadata", "omegaconf.base.Metadata\n", "types.CodeType"),
    ],
)
def test_a_name_that_could_do_something_is_not_admitted(name):
    assert not admitted(Name(*name.rsplit(".", 1)))
    module, _, rest = name.partition(".")
    assert not admitted(Name(module, rest))


def test_admitted_functions_are_recorded_and_nothing_is_imported(tmp_path):
    """Modules that are not there cannot have been imported, and an object's state stays as it was written."""
    payload = b"\x80\x02}(" + text("a") + b"clightning.pytorch.callbacks.none\nThing\n)\x81}" + text("x") + b"K\x05sb"
    payload += text("b") + b"cnumpy.core.multiarray\nscalar\n" + text("any") + b"\x85R"
    payload += text("c") + b"comegaconf.listconfig\nListConfig\n)\x81]K\x01a\x85bu."
    before = set(sys.modules)
    content = read(archive(tmp_path / "a.ckpt", payload))
    new = {
        name for name in set(sys.modules) - before if not name.startswith("encodings.")
    }  # zipfile reads names by one
    assert not new
    assert isinstance(content["a"], PickledObject)
    assert content["a"].state == {"x": 5}
    assert content["b"].arguments == ("any",)
    assert str(content["b"].name) == "numpy.core.multiarray.scalar"
    assert content["c"].state == ([1],)


def test_functions_of_this_process_cannot_be_changed_by_a_state(tmp_path):
    """BUILD sets attributes: on torch's own function, with Python's unpickler, its defaults."""
    payload = b"\x80\x02ctorch._utils\n_rebuild_parameter\nN}" + text("__defaults__") + b"K\x01\x85s\x86b."
    with raises(ModelError, subject="BUILD"):
        read(archive(tmp_path / "a.ckpt", payload))
    assert torch._utils._rebuild_parameter.__defaults__ is None


@pytest.mark.parametrize(
    ("payload", "subject"),
    [
        (b"\x80\x02c_codecs\nencode\n" + text("x") + text("rot13") + b"\x86R.", "_codecs.encode"),
        (b"\x80\x02K\x01)R.", "REDUCE"),
        (b"\x80\x02ccollections\nOrderedDict\n]R.", "REDUCE"),
        (b"\x80\x02comegaconf.base\nMetadata\n)\x81)R.", "REDUCE"),
        (b"\x80\x02]}b.", "BUILD"),
        (b"\x80\x02K\x01K\x02a.", "APPEND"),
        (b"\x80\x02]K\x01K\x02s.", "SETITEM"),
        (b"\x80\x02}]K\x02s.", "SETITEM"),
        (b"\x80\x02h\x05.", "data.pkl"),
        (b"\x80\x020.", "data.pkl"),
        (b"\x80\x02\x85.", "TUPLE1"),
        (b"\x80\x02((.", "STOP"),
        (b"\x80\x02N.rest", "STOP"),
        (b"\x80\x02N", "data.pkl"),
        (b"", "data.pkl"),
        (b"\x80\x02Pname\n.", "PERSID"),
        (b"\x80\x04\x93.", "data.pkl"),
        (b"\x80\x04K\x01K\x02\x93.", "STACK_GLOBAL"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (b"\x80\x02X\xff\xff\xff\x7fshort.", "data.pkl"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fshort.", "data.pkl"),
        (b"\x80\x02c\x1b[31mred\nname\n.", r"'\x1b[31mred.name'"),
    ],
)
def test_a_pickle_that_makes_no_sense_is_answered(payload, subject, tmp_path):
    with raises(ModelError, subject=subject) as refused:
        read(archive(tmp_path / "bad.ckpt", payload))
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("nest", [b"]", b"\x85", b"comegaconf.base\nMetadata\n"])
def test_deep_nesting_does_not_overrun_the_stack(nest, tmp_path):
    """Also not on the small stack of a thread, and not as the key of a dictionary."""
    levels = 300_000 if len(nest) == 1 else 100_000
    close = {b"]": b"a", b"\x85": b""}.get(nest, b"b")
    inner = b"N" + nest * levels if nest == b"\x85" else nest * levels + close * (levels - 1)
    if len(nest) > 1:
        inner = (nest + b")\x81") * levels + b"b" * (levels - 1)
    files = [
        archive(tmp_path / "value.ckpt", b"\x80\x02" + inner + b"."),
        archive(tmp_path / "key.ckpt", b"\x80\x02}" + inner + b"Ns."),
    ]
    answers = []

    def work():
        for file in files:
            try:
                read(file)
                answers.append("read")
            except ModelError as error:
                answers.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers[0] == "read"
    assert "as the key of a dictionary" in answers[1]


def storage(kind=b"ctorch\nFloatStorage\n", key="0", device="cpu", elements=b"K\x04"):
    return b"(" + text("storage") + kind + text(key) + text(device) + elements + b"tQ"


def tensor(stored, offset=b"K\x00", shape=b"K\x04\x85", stride=b"K\x01\x85"):
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + stored + offset + shape + stride + b"\x89}tR."


NUMBERS = [("archive/data/0", struct.pack("<4f", 1, 2, 3, 4))]


def test_tensors_are_made_of_the_stored_bytes(tmp_path):
    whole, part = tensor(storage()), tensor(storage(), b"K\x01", b"K\x02\x85", b"K\x02\x85")
    empty = tensor(storage(), shape=b"K\x00\x85")
    for data, expected in ((whole, [1, 2, 3, 4]), (part, [2, 4]), (empty, [])):
        with opened(archive(tmp_path / "a.ckpt", data, extra=NUMBERS)) as stored:
            assert isinstance(stored, StoredTensor)
            assert stored.load().tolist() == expected


@pytest.mark.parametrize(
    ("data", "subject"),
    [
        (b"\x80\x02" + text("posix.system") + b"Q.", "storage"),
        (b"\x80\x02(" + text("module") + b"NNNNtQ.", "storage"),
        (tensor(storage(kind=b"cposix\nsystem\n")), "posix.system"),
        (tensor(storage(kind=b"ctorch\nSize\n")), "storage type torch.Size"),
        (tensor(storage(kind=text("FloatStorage"))), "storage type str"),
        (tensor(storage(key="../../../etc/passwd")), "data/../../../etc/passwd"),
        (tensor(storage(key="٣")), "data/٣"),
        (tensor(storage(key="1" * 30)), "data/" + "1" * 30),
        (tensor(storage(elements=b"J\xff\xff\xff\xff")), "data/0"),
        (tensor(storage(elements=b"\x88")), "data/0"),
        (tensor(storage(elements=b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f")), "data/0"),
        (tensor(b"N"), "tensor"),
        (tensor(storage(), shape=b"K\x04\x85", stride=b"K\x02\x85"), "data/0"),
        (tensor(storage(), offset=b"K\x01"), "data/0"),
        (tensor(storage(), shape=b"J\xff\xff\xff\x7f\x85", stride=b"K\x00\x85"), "data/0"),
        (tensor(storage(), shape=b"J\xff\xff\xff\xff\x85"), "tensor"),
        (tensor(storage(), stride=b")"), "tensor"),
        (tensor(storage(key="7")), "data/7"),
        (tensor(storage(elements=b"K\x08"), shape=b"K\x08\x85"), "data/0"),
        (tensor(storage(elements=b"K\x02"), shape=b"K\x02\x85"), "data/0"),
    ],
)
def test_storages_and_tensors_that_lie_are_refused(data, subject, tmp_path):
    with (
        raises(ModelError, subject=subject),
        opened(archive(tmp_path / "bad.ckpt", data, extra=NUMBERS)) as stored,
    ):
        stored.load()


def test_zip_files_that_are_not_from_torch_are_refused(tmp_path):
    bad, fine = tmp_path / "bad.ckpt", b"\x80\x02N."
    cases = {
        "../../evil": {"extra": [("../../evil", b"x")]},
        "/abs": {"extra": [("/abs", b"x")]},
        "archive/../evil": {"extra": [("archive/../evil", b"x")]},
        "data.pkl": {"extra": [("other/data.pkl", b"x")]},
        "archive/data.pkl": {"compression": zipfile.ZIP_DEFLATED},
    }
    for subject, options in cases.items():
        with raises(ModelError, subject=subject):
            read(archive(bad, fine, **options))
    assert not (tmp_path.parent / "evil").exists()
    with zipfile.ZipFile(bad, "w") as file:
        file.writestr("archive/other", b"x")
    with raises(ModelError, subject="data.pkl"):
        read(bad)
    with pytest.warns(UserWarning, match="Duplicate"):
        archive(bad, fine, extra=[("archive/data/0", b"x"), ("archive/data/0", b"y")])
    with raises(ModelError, subject="archive/data/0"):
        read(bad)


def test_a_bomb_is_refused_before_it_grows(tmp_path):
    """A gigabyte of zeros in a megabyte; and a pickle that is only large."""
    bomb = tmp_path / "bomb.ckpt"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file, file.open("archive/data.pkl", "w") as entry:
        for _ in range(64):
            entry.write(bytes(2**20))
    with raises(ModelError, subject="archive/data.pkl"):
        read(bomb)
    large = archive(tmp_path / "large.ckpt", b"\x80\x02" + b"N0" * (LARGEST // 2) + b"N.")
    with raises(ModelError, subject="data.pkl"):
        read(large)


def test_entries_that_share_bytes_are_refused(tmp_path):
    """All names of a directory may point at one entry: a small file that unpacks without end."""
    small = archive(tmp_path / "a.ckpt", b"\x80\x02N.", extra=[("archive/data/0", bytes(1000))]).read_bytes()
    start = small.index(b"PK\x01\x02")
    end = small.index(b"PK\x05\x06")
    directory, last = small[start:end], small[start:end].rindex(b"PK\x01\x02")
    copies = [directory[last:].replace(b"data/0", b"data/%d" % n) for n in range(1, 10)]
    directory += b"".join(copies)
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 12, 12, len(directory), start, 0)
    (tmp_path / "b.ckpt").write_bytes(small[:start] + directory + tail)
    with raises(ModelError, subject="b.ckpt"):
        read(tmp_path / "b.ckpt")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A small AR checkpoint, and what it converts to."""
    path = tmp_path_factory.mktemp("fuzz") / "tiny.ckpt"
    weights = ar_weights(layers=1, width=8, heads=2)
    averaged = [value + 1 for key, value in weights.items() if not key.endswith("inv_freq")]
    settings = {"model.n_heads": 2, "model.length": 16, "data.wrap": True, "parameterization": "ar"}
    save_checkpoint(path, weights, settings=settings, averaged=averaged, tokenizer=tokenizer_json())
    return path, outcome(path)


def outcome(path):
    made = from_official(path)
    return made.config, made.tokenizer.fingerprint, {k: v.tolist() for k, v in made.model.state_dict().items()}


def answered(data, tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("case") / "case.ckpt"
    path.write_bytes(data)
    try:
        found = outcome(path)
    except ModelError:
        return
    assert found == tiny[1]


FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(data=st.data())
def test_flipped_bytes_are_found_or_do_not_matter(data, tiny, tmp_path_factory):
    content = bytearray(tiny[0].read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    answered(content, tiny, tmp_path_factory)


@FUZZ
@given(data=st.data())
def test_cut_files_are_found(data, tiny, tmp_path_factory):
    content = tiny[0].read_bytes()
    answered(content[: data.draw(st.integers(0, len(content) - 1))], tiny, tmp_path_factory)


@FUZZ
@given(data=st.data())
def test_a_rewritten_pickle_is_answered_or_read(data, tiny, tmp_path_factory):
    """The zip's checksums would hide the machine from damage: here they fit the damaged pickle."""
    path = tmp_path_factory.mktemp("case") / "case.ckpt"
    with zipfile.ZipFile(tiny[0]) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            content = bytearray(old.read(entry))
            if entry.filename.endswith("data.pkl"):
                for _ in range(data.draw(st.integers(1, 4))):
                    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
            new.writestr(entry.filename, bytes(content))
    with contextlib.suppress(ModelError):
        from_official(path, Options(heads=2, length=16))
