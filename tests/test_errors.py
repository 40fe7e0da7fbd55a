import ast
import pickle
from pathlib import Path

import adlm
import adlm_studies
from adlm.errors import (
    ConfigError,
    DamagedData,
    DataError,
    MissingExtra,
    ModelError,
    TrainingError,
    UnknownName,
    optional_module,
)
from tests.errors import raises


def test_messages_have_three_parts():
    assert str(DataError("cannot", "this", "that")).splitlines() == ["cannot", "  found: this", "  to do: that"]


def test_unknown_names_offer_the_nearest():
    assert "did you mean 'wikitext2'" in str(UnknownName("data set", "wikitex2", ["kjv", "wikitext2"]))


def test_errors_cross_process_borders_whole():
    for error in (DataError("a", "b", "c"), UnknownName("kind", "x", ["y"])):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


def test_a_missing_extra_is_named():
    with raises(MissingExtra, subject="serve"):
        optional_module("no_such_module_anywhere", extra="serve", purpose="serving")
    assert optional_module("json", extra="serve", purpose="serving").__name__ == "json"


def test_every_error_that_is_raised_says_what_it_is_about():
    kinds = {kind.__name__ for kind in (ConfigError, DataError, DamagedData, MissingExtra, ModelError, TrainingError)}
    without = []
    for package in (adlm, adlm_studies):
        for path in Path(package.__file__).parent.rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            calls = (node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
            for call in calls:
                if call.func.id in kinds and not any(keyword.arg == "subject" for keyword in call.keywords):
                    without.append(f"{path.name}:{call.lineno}")
    assert without == []
