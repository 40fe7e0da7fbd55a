import pytest

from adlm.config import from_json, to_json, with_changes
from adlm.data.packing import Packing, Padded, Wrapped
from adlm.errors import ConfigError, UnknownName
from adlm.models.hand_over import Continued
from adlm.models.network import NetworkConfig
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo
from adlm.objectives.objective import Objective
from adlm.train.optimizer import AdamW
from adlm.train.run import TrainConfig


@pytest.mark.parametrize(
    ("base", "value"),
    [
        (NetworkConfig, OneStageConfig()),
        (NetworkConfig, TwoStageConfig(hand_over=Continued(), tied=True)),
        (Packing, Wrapped(16)),
        (Packing, Padded(16, crop=True)),
        (Objective, Anelbo(gamma=0.1)),
        (TrainConfig, TrainConfig(optimizer=AdamW(lr=1e-3))),
    ],
)
def test_values_survive_json(base, value):
    assert from_json(base, to_json(value)) == value


def test_mistakes_are_named_with_the_place_and_the_remedy():
    good = to_json(TrainConfig())
    with pytest.raises(UnknownName, match="field of TrainConfig at config 'stepps'") as caught:
        from_json(TrainConfig, {**good, "stepps": 3})
    assert "did you mean 'steps'" in str(caught.value)
    with pytest.raises(UnknownName, match=r"kind of OptimizerConfig at config\.optimizer 'Adam'"):
        from_json(TrainConfig, {**good, "optimizer": {"kind": "Adam"}})
    for wrong in ("many", 1.5, True, None):
        with pytest.raises(ConfigError, match=r"asked to read config\.steps"):
            from_json(TrainConfig, {**good, "steps": wrong})
    with pytest.raises(ConfigError, match="no length"):
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
    ("change", "message"),
    [
        ("anchor.widht=64", "did you mean 'width'"),
        ("ancor.width=64", "did you mean 'anchor'"),
        ("anchor.width=wide", "give a value of type int"),
        ("anchor.width.more=1", "has no fields of its own"),
        ("anchor.width", "write as in train.steps=1000"),
        ("=3", "write as in train.steps=1000"),
        ("hand_over=Logit", "did you mean 'Logits'"),
        ("anchor.kind=Other", "no field"),
        ("anchor.width=31", "rotary positions"),
    ],
)
def test_changes_that_mean_nothing_are_answered_with_what_would(change, message):
    with pytest.raises(ConfigError, match=message):
        with_changes(TwoStageConfig(StackConfig(width=32, heads=2)), [change])


def test_a_change_may_reach_into_what_the_one_before_it_put_there():
    changed = with_changes(TrainConfig(), ["optimizer=AdamW", "optimizer.lr=0.01"])
    assert changed.optimizer == AdamW(lr=0.01)
