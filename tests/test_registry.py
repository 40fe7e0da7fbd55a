"""Every class that a configuration can name is in the registry, once; other people's get in by `--import`."""

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, is_dataclass

import pytest

import adlm
import adlm_studies
from adlm import registry
from adlm.anchors import AnchorRule, RareInSequence
from adlm.cli import main
from adlm.config import from_json, to_json
from adlm.errors import ConfigError, UnknownName
from adlm.objectives.nelbo import Nelbo
from tests.errors import raises
from tests.plugins import fresh_registry

STANDALONE = "adlm.hf.modeling_adlm"  # for people without this package; it has its own copies of some classes
MODULE = """
from dataclasses import dataclass
import adlm
from adlm.objectives.nelbo import Nelbo

@adlm.register("objective", "heavier")
@dataclass(frozen=True)
class {name}(Nelbo):
    '''The bound, times a weight.'''
    weight: float = 2.0
"""


def public_classes():
    """Every public class of both packages, with the module that defines it."""
    for package in (adlm, adlm_studies):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if info.name.endswith("__main__"):
                continue
            try:
                module = importlib.import_module(info.name)
            except adlm.AdlmError:  # of an extra that is not installed
                continue
            for name, value in vars(module).items():
                if inspect.isclass(value) and value.__module__ == info.name and not name.startswith("_"):
                    yield value


CLASSES = list(public_classes())


def test_no_two_public_classes_share_a_name():
    homes = defaultdict(set)
    for each in CLASSES:
        if each.__module__ != STANDALONE:
            homes[each.__name__].add(each.__module__)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_every_finished_class_of_a_group_is_in_the_table():
    missing = []
    for each in CLASSES:
        group = registry.group_of(each) if is_dataclass(each) and not inspect.isabstract(each) else None
        if group not in (None, "dataset") and registry.lookup(group, each.__name__) is not each:
            missing.append(f"{group}: {each.__module__}:{each.__name__}")
    assert missing == []


def test_every_line_of_the_table_leads_to_a_member_of_its_group():
    for group in registry.groups():
        base = registry._load(registry.groups()[group])
        for kind in registry.kinds(group):
            found = registry.find(group, kind)
            assert issubclass(found, base), kind
            assert not inspect.isabstract(found), kind
        for name in registry.names(group):
            assert registry.find(group, name) is not None
        for alias, name in registry.aliases(group).items():
            assert registry.find(group, alias) is registry.find(group, name)


def test_looking_names_up_imports_nothing_heavy():
    program = "import sys; from adlm import registry; registry.names('sampler'), registry.names('dataset'); "
    subprocess.run([sys.executable, "-c", program + "sys.exit('torch' in sys.modules)"], check=True)


@pytest.fixture
def own_registry(tmp_path):
    """What is registered in a test is forgotten after it."""
    with fresh_registry(tmp_path):
        yield


def test_a_class_is_registered_by_a_decorator_or_a_call(own_registry):
    @adlm.register("anchor_rule")
    @dataclass(frozen=True)
    class Third(RareInSequence):
        """Every third."""

    assert from_json(AnchorRule, to_json(Third())) == Third()
    assert adlm.register("anchor_rule", "third", Third) is Third
    assert from_json(AnchorRule, "third") == Third()
    assert "third" in registry.names("anchor_rule")


@dataclass(frozen=True)
class Anelbo(Nelbo):  # the name of another
    pass


class Undecorated(Nelbo):
    pass


@pytest.mark.parametrize(
    ("group", "name", "member", "subject"),
    [
        ("objective", "mine", Anelbo, "mine"),
        ("objective", "Nelbo", RareInSequence, "RareInSequence"),
        ("objective", None, Undecorated, "Undecorated"),
        ("objective", "f", lambda: None, "<lambda>"),
        ("anchor", None, RareInSequence, "anchor"),
    ],
)
def test_what_could_not_be_read_again_is_not_registered(own_registry, group, name, member, subject):
    with raises(ConfigError, subject=subject):
        adlm.register(group, name, member)


def test_a_name_that_nobody_has_is_answered_with_the_known_ones():
    with raises(UnknownName, name="ancestal", kind="sampler") as error:
        registry.find("sampler", "ancestal")
    assert {"ancestral", "mdlm", "left-to-right"} <= set(error.value.known)
    assert "Ordered" not in error.value.known


@pytest.fixture
def workspace(own_registry, tmp_path, monkeypatch):
    """A folder to work in, as a user has one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADLM_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_module_of_the_working_folder_is_imported(workspace):
    (workspace / "own_objectives.py").write_text(MODULE.format(name="Heavier"))
    registry.import_module("own_objectives")
    assert registry.imported() == ("own_objectives",)
    assert registry.find("objective", "heavier").__name__ == "Heavier"


@pytest.mark.parametrize(
    ("module", "text"),
    [("nowhere_at_all", None), ("./own.py", None), ("", None), ("broken", "1 / 0"), ("needy", "import nowhere_at_all")],
)
def test_a_module_that_cannot_be_imported_is_named(workspace, module, text, capsys):
    if text:
        (workspace / f"{module}.py").write_text(text)
    with raises(ConfigError, subject=module):
        registry.import_module(module)
    assert main(["recipes", "--import", module]) == 2
    assert "--import" in capsys.readouterr().err


def test_a_stored_import_happens_only_when_a_class_is_not_found(workspace):
    (workspace / "own_objectives.py").write_text(MODULE.format(name="Heavier"))
    registry.offer_imports(["own_objectives"], workspace / "run")
    registry.find("objective", "Nelbo")
    assert "own_objectives" not in sys.modules
    assert registry.find("objective", "Heavier").__module__ == "own_objectives"


@pytest.mark.parametrize("module", ["run.own_objectives", "own_objectives"])
def test_code_inside_a_model_folder_is_never_imported(workspace, module, monkeypatch):
    run = workspace / "run"
    run.mkdir()
    (run / "own_objectives.py").write_text("raise SystemExit('run')")
    if "." not in module:
        monkeypatch.chdir(run)
    registry.offer_imports([module], run)
    with raises(ConfigError, subject=module):
        registry.find("objective", "Heavier")
    assert module not in sys.modules


def test_a_package_inside_a_model_folder_is_not_run_on_the_way_to_its_module(workspace):
    run = workspace / "run"
    run.mkdir()
    (run / "__init__.py").write_text("raise SystemExit('run')")
    (run / "own.py").write_text("")
    registry.offer_imports(["run.own"], run)
    with raises(ConfigError, subject="run.own"):
        registry.find("objective", "Heavier")


def test_imports_of_models_from_the_hub_are_not_remembered(workspace):
    folder = workspace / "hub" / "models--a--b" / "snapshots" / "1"
    folder.mkdir(parents=True)
    registry.offer_imports(["this"], folder)
    assert registry._stored == []


def test_a_stored_import_that_is_gone_is_named(workspace):
    registry.offer_imports(["gone_since"], workspace / "run")
    for _ in range(2):
        with raises(ConfigError, subject="gone_since"):
            registry.find("objective", "Heavier")


def test_what_is_not_a_list_of_names_is_no_import(workspace):
    for wrong in (None, "os", {"os": 1}, [1, None, ["os"]]):
        registry.offer_imports(wrong, workspace)
    assert registry._stored == []
    registry.offer_imports(["os; import sys", "../os"], workspace)
    with pytest.raises(ConfigError):
        registry.find("objective", "Heavier")


def tiny(folder, *changes):
    """Words that train a recipe in seconds."""
    small = (
        "train.steps=2", "data.source=stories:300", "validation.num_rows=4", "validation.draws=1", "checkpoint.every=1",
        *changes,
    )  # fmt: skip
    return ["train", "demo-adlm", "--out", str(folder), *(word for each in small for word in ("--set", each))]


SCORE = ["evaluate", "perplexity", "run", "stories:300", "--limit", "4", "--draws", "1", "--out", "result.json"]


def test_an_objective_of_ones_own_is_trained_resumed_and_evaluated(workspace):
    (workspace / "own_objectives.py").write_text(MODULE.format(name="Heavier"))
    with fresh_registry(workspace):
        assert main(["--import", "own_objectives", *tiny("run", "objective=heavier")]) == 0
    stored = json.loads((workspace / "run" / "config.json").read_text())["run"]
    assert stored["imports"] == ["own_objectives"]
    assert stored["objective"]["kind"] == "Heavier"
    # Without --import from here on.
    for words in (["train", "run", "--set", "train.steps=3", "--allow-change"], SCORE):
        with fresh_registry(workspace):
            assert main(words) == 0
    assert json.loads((workspace / "result.json").read_text())["figures"]
    (workspace / "own_objectives.py").unlink()
    with fresh_registry(workspace):
        assert main(["train", "run"]) == 2


def test_a_degraded_bound_is_trained_and_evaluated(workspace):
    assert main(tiny("run", "objective=DegradedAnelbo")) == 0
    assert main(SCORE) == 0
    assert json.loads((workspace / "result.json").read_text())["figures"]
