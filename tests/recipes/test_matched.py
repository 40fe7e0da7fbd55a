from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ConfigError
from adlm.models.costs import count_parameters, training_work
from adlm.models.hand_over import Continued, Hidden, Logits
from adlm.models.network import Vocabulary
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.objectives.nelbo import Anelbo, Nelbo
from adlm.objectives.objective import CrossEntropy
from adlm.recipes.matched import MATCHED_BASELINES, TOLERANCE, matched_baseline, mismatch, same_cost, same_parameters
from adlm.recipes.named import FAMILIES, matched, recipe
from tests.errors import raises

NETWORKS = st.builds(
    TwoStageConfig,
    st.builds(
        StackConfig,
        width=st.sampled_from([32, 48, 64]),
        heads=st.just(2),
        layers=st.integers(1, 6),
        condition=st.sampled_from([0, 8]),
    ),
    st.integers(1, 4),
    st.sampled_from([Logits(), Continued(), Hidden()]),
    tied=st.booleans(),
)
VOCABULARY = Vocabulary(200, 199)


def parameters(network):
    return count_parameters(network, VOCABULARY).total


def check_nearest(network, one, target, measure):
    """No other depth is nearer; and the width is the network's own, unless no depth there is near enough."""

    def off(one, layers):
        return abs(measure(replace(one, stack=replace(one.stack, layers=layers))) - target)

    layers = one.stack.layers
    assert all(off(one, layers) <= off(one, other) for other in (layers - 1, layers + 1) if other)
    own = replace(one, stack=replace(one.stack, width=network.anchor.width))
    if one.stack.width != network.anchor.width:
        assert min(off(own, other) for other in range(1, 20)) > TOLERANCE * target
        assert abs(one.stack.width / network.anchor.width - 1) <= 1 / 8


@settings(max_examples=10, deadline=None)
@given(NETWORKS)
def test_no_other_depth_has_a_more_equal_number_of_parameters(network):
    check_nearest(network, same_parameters(network, VOCABULARY), parameters(network), parameters)


@settings(max_examples=25, deadline=None)
@given(NETWORKS, st.floats(0, 1), st.sampled_from([8, 64]))
def test_no_other_depth_has_a_more_equal_cost(network, anchors, length):
    batch = {"length": length, "rows": 4, "scored": 0.5}
    target = training_work(network, VOCABULARY, anchors=anchors, **batch)
    one = same_cost(network, VOCABULARY, anchors=anchors, **batch)
    check_nearest(network, one, target, lambda one: training_work(one, VOCABULARY, **batch))


def test_a_stream_that_goes_on_has_the_parameters_of_one_stack():
    network = TwoStageConfig(StackConfig(width=64, heads=2, layers=4), 2, Continued(), tied=True)
    one = same_parameters(network, VOCABULARY)
    assert (one.stack.layers, one.stack.width, one.tied) == (6, 64, True)


PAIRS = [
    (f"{corpus}-{kind}{size}", field)
    for corpus, family in FAMILIES.items()
    for kind in MATCHED_BASELINES
    for field in ("parameters" if kind.endswith("parameters") else "work",)
    if kind in family.kinds
    for size in ("", *(f"-{size}" for size in family.sizes))
]


@pytest.mark.parametrize(("name", "field"), PAIRS)
def test_what_twins_have_in_common_they_have_to_a_few_percent(name, field):
    run, original = recipe(name), matched(name)
    off = mismatch(run, original)
    assert abs(getattr(off, field)) < 0.03
    width = original.network.width
    assert abs(off.width) <= width / 8
    if name.startswith(("lm1b", "openwebtext")) and not name.endswith("nano"):
        assert abs(getattr(off, field)) <= TOLERANCE
        assert off.width == 0 or "block" in name


def test_a_twin_differs_in_network_and_anchor_term_alone():
    run, original = recipe("lm1b-mdlm-same-cost"), recipe("lm1b-adlm")
    assert replace(run, name=original.name, network=original.network, objective=original.objective) == original
    assert run.objective == Nelbo(original.objective.corruption)
    assert not isinstance(run.objective, Anelbo)


def test_a_twin_of_a2r_is_a_left_to_right_model_that_reads_the_same():
    run, original = recipe("lm1b-ar-same-cost"), recipe("lm1b-a2r")
    assert replace(run, name=original.name, network=original.network, objective=original.objective) == original
    assert run.objective == CrossEntropy()
    assert run.network.stack.causal


@pytest.mark.parametrize("name", ["text8-block-same-cost", "lm1b-block8-same-cost"])
def test_a_twin_of_anchored_block_diffusion_reads_the_same_blocks(name):
    run, original = recipe(name), matched(name)
    assert replace(run, name=original.name, network=original.network, objective=original.objective) == original
    assert run.objective == Nelbo(original.objective.corruption)
    assert (run.network.attention, run.network.block_size) == ("block", original.network.block_size)
    assert run.network.shift == original.network.shift


def test_only_anchored_models_have_twins():
    with raises(ConfigError, subject="text8-mdlm"):
        matched_baseline(recipe("text8-mdlm"), "mdlm-same-cost", name="nothing")
