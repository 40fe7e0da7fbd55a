import dataclasses
import json
import string
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm.config import from_json, to_json, with_changes
from adlm.data.documents import DocumentRule, Lines
from adlm.data.packing import Packing, Padded, Wrapped
from adlm.errors import ConfigError, UnknownName
from adlm.models.hand_over import Continued
from adlm.models.network import NetworkConfig
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import Objective
from adlm.train.optimizers import AdamW
from adlm.train.run import TrainConfig
from tests.errors import raises


@dataclass(frozen=True)
class Leaf:
    number: int = 0


@dataclass(frozen=True)
class Everything:
    """A field of every type that a configuration may have."""

    integer: int
    number: float
    flag: bool
    text: str
    choice: Literal["low", "high", 3]
    maybe: int | None
    either: float | int | str
    leaf_or_text: Leaf | str | None
    pair: tuple[float, float]
    mixed: tuple[str, int]
    many: tuple[int, ...]
    listed: list[str]
    nested: tuple[tuple[int, ...], ...]
    by_name: dict[str, float]
    by_number: dict[int, Leaf]
    leaf: Leaf
    packing: Packing
    anything: Any = None


NUMBERS = st.integers(-(2**40), 2**40)
FLOATS = st.floats(allow_nan=False)
TEXTS = st.text(string.printable, max_size=6)
LEAVES = st.builds(Leaf, NUMBERS)
VALUES = st.builds(
    Everything,
    integer=NUMBERS,
    number=FLOATS,
    flag=st.booleans(),
    text=TEXTS,
    choice=st.sampled_from(["low", "high", 3]),
    maybe=st.none() | NUMBERS,
    either=FLOATS | NUMBERS | TEXTS,
    leaf_or_text=st.none() | LEAVES | TEXTS,
    pair=st.tuples(FLOATS, FLOATS),
    mixed=st.tuples(TEXTS, NUMBERS),
    many=st.lists(NUMBERS, max_size=3).map(tuple),
    listed=st.lists(TEXTS, max_size=3),
    nested=st.lists(st.lists(NUMBERS, max_size=2).map(tuple), max_size=2).map(tuple),
    by_name=st.dictionaries(TEXTS, FLOATS, max_size=2),
    by_number=st.dictionaries(NUMBERS, LEAVES, max_size=2),
    leaf=LEAVES,
    packing=st.builds(Wrapped, st.integers(4, 64)) | st.builds(Padded, st.integers(4, 64), crop=st.booleans()),
    anything=st.none() | NUMBERS | st.lists(TEXTS),
)
# Values of each JSON type, and which of them each field takes.
WRONG = {
    "integer": [None, 1.5, True, "1", [], {}],
    "number": [None, True, "1", [], {}],
    "flag": [None, 1, 0.0, "true", [], {}],
    "text": [None, 1, 1.5, True, [], {}],
    "choice": [None, "middle", 4, 3.0, True, ["low"]],
    "maybe": [1.5, True, "1", [], {}],
    "either": [None, True, [], {}],
    "leaf_or_text": [1, True, [], {"kind": "Leaf", "numbers": 1}, {"kind": "Tree"}, {"number": "1"}],
    "pair": [None, 1.0, [], [1.0], [1.0, 2.0, 3.0], ["no", 1], ["no", 1, 2, 3], {}],
    "mixed": [["a"], [1, "a"], ["a", 1, 1], ["a", 1.5], "ab"],
    "many": [1, [1, "2"], [1.5], [True], None, "12", {}],
    "listed": ["ab", [1], [None], None, {}],
    "nested": [[1], [[1.5]], [["1"]], 1],
    "by_name": [[], {"a": "1"}, {"a": None}, None],
    "by_number": [{"a": {}}, {"1.5": {}}, {"1": 1}, {"1": {"number": 1.5}}, {"true": {}}],
    "leaf": [None, 1, [], {"number": 1.5}, {"number": None}, {"nombre": 1}, {"kind": "Wrapped", "length": 4}, "Tree"],
    "packing": [None, 1, {}, {"kind": "Packing"}, {"kind": "Leaf"}, {"kind": "Wrapped"}, {"kind": 3}, "Lines"],
}


@given(VALUES)
def test_every_value_survives_json(value):
    again = from_json(Everything, json.loads(json.dumps(to_json(value))))
    assert again == value
    # 3 == 3.0 and True == 1: types are compared too.
    assert repr(again) == repr(value)


@given(VALUES, st.sampled_from([(name, wrong) for name, values in WRONG.items() for wrong in values]))
def test_every_value_of_a_wrong_type_is_refused_with_its_place(value, change):
    name, wrong = change
    with pytest.raises(ConfigError) as caught:
        from_json(Everything, {**to_json(value), name: wrong})
    error = caught.value
    place = error.where if isinstance(error, UnknownName) else error.subject
    assert f"config.{name}" in place


def test_every_field_is_tried_with_wrong_values():
    assert {*WRONG, "anything"} == {field.name for field in dataclasses.fields(Everything)}


@given(VALUES, st.sampled_from(sorted(WRONG)))
def test_a_missing_field_is_named(value, name):
    data = to_json(value)
    del data[name]
    with raises(ConfigError, subject=f"config.{name}"):
        from_json(Everything, data)


@pytest.mark.parametrize(
    ("base", "value"),
    [
        (NetworkConfig, OneStageConfig()),
        (NetworkConfig, TwoStageConfig(hand_over=Continued(), tied=True)),
        (Packing, Padded(16, crop=True)),
        (Objective, Anelbo(gamma=0.1)),
        (Nelbo, Anelbo(gamma=0.1)),
        (DocumentRule | None, Lines()),
        (DocumentRule | None, None),
        (TrainConfig, TrainConfig(optimizer=AdamW(lr=1e-3))),
    ],
)
def test_a_class_of_the_group_is_read_where_its_base_is_expected(base, value):
    assert from_json(base, to_json(value)) == value


def test_mistakes_are_named_with_their_place():
    good = to_json(TrainConfig())
    with raises(UnknownName, kind="field", where="in config", name="stepps"):
        from_json(TrainConfig, {**good, "stepps": 3})
    with raises(
        UnknownName, kind="OptimizerConfig", where="for config.optimizer", name="Adam", known=["AdamW", "Muon"]
    ):
        from_json(TrainConfig, {**good, "optimizer": {"kind": "Adam"}})
    with raises(ConfigError, subject="config.optimizer.betas[0]"):
        from_json(TrainConfig, {**good, "optimizer": {"kind": "AdamW", "betas": ["no", 1]}})
    with raises(UnknownName, name="Anelbo"):  # another group's
        from_json(TrainConfig, {**good, "optimizer": {"kind": "Anelbo"}})
    with raises(UnknownName, name="D3pm"):  # of the group, but not below what is expected
        from_json(Nelbo, {"kind": "D3pm"})
    with raises(ConfigError, subject="config.length"):
        from_json(Packing, {"kind": "Wrapped"})


def test_fields_are_changed_by_their_path():
    config = TwoStageConfig(StackConfig(width=32, heads=2))
    changed = with_changes(config, ["anchor.width=64", "anchor.dropout=0.1", "tied=true", "hand_over=Continued"])
    assert changed == TwoStageConfig(StackConfig(width=64, heads=2, dropout=0.1), hand_over=Continued(), tied=True)
    assert config.anchor.width == 32
    whole = with_changes(config, ['anchor={"kind": "StackConfig", "width": 16, "heads": 2}'])
    assert whole.anchor == StackConfig(width=16, heads=2)
    assert with_changes(config, []) == config


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ("anchor.widht=64", "widht"),
        ("ancor.width=64", "ancor"),
        ("anchor.width=wide", "config.anchor.width"),
        ("anchor.width.more=1", "anchor.width.more"),
        ("anchor.width", "anchor.width"),
        ("=3", "=3"),
        ("hand_over=Logit", "Logit"),
        ("anchor.kind=Other", "kind"),
    ],
)
def test_changes_that_mean_nothing_are_refused(change, subject):
    with raises(ConfigError, subject=subject):
        with_changes(TwoStageConfig(StackConfig(width=32, heads=2)), [change])


def test_names_of_0_1_can_be_set():
    assert with_changes(TrainConfig(), ["ema=0.5", "clip=2", "rate=Constant"]) == with_changes(
        TrainConfig(), ["ema_decay=0.5", "grad_clip=2.0", "lr_schedule=Constant"]
    )


def test_a_change_may_reach_into_what_the_one_before_it_put_there():
    changed = with_changes(TrainConfig(), ["optimizer=AdamW", "optimizer.lr=0.01"])
    assert changed.optimizer == AdamW(lr=0.01)
