import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adlm.config import from_json, to_json
from adlm.errors import ConfigError, OutOfRange, UnknownName
from adlm.models.network import Vocabulary
from adlm.models.one_stage import OneStageConfig
from adlm.models.stack import StackConfig
from adlm.models.two_stage import TwoStageConfig
from adlm.randomness import Noise
from adlm.samplers import (
    Above,
    Allowed,
    Analytic,
    Ancestral,
    AnchorConfidence,
    AnyOrder,
    Banned,
    Blocks,
    ByConfidence,
    Canvas,
    Cap,
    Confidence,
    EntropyBound,
    FirstHitting,
    FlowCorrector,
    ForwardBackward,
    InSteps,
    LeastEntropy,
    LeftToRight,
    Loop,
    Margin,
    MinP,
    Ordered,
    PerStep,
    Remasking,
    RepetitionPenalty,
    Rescale,
    Sampler,
    Temperature,
    TopK,
    TopP,
)
from adlm.samplers.named import named_samplers, option_types, sampler_for
from tests.errors import raises

MASK = 5
VOCABULARY = Vocabulary(6, MASK)


def network(*, causal: bool = False, stages: int = 1, block_size: int = 0):
    torch.manual_seed(0)
    attention = "block" if block_size else "causal" if causal else "full"
    stack, shift = StackConfig(width=8, heads=2, layers=1, attention=attention), block_size > 0
    config = (
        OneStageConfig(stack, block_size=block_size, shift=shift)
        if stages == 1
        else TwoStageConfig(stack, denoiser_layers=1)
    )
    model = config.build(VOCABULARY).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


MASKED, CAUSAL, ANCHORED = network(), network(causal=True), network(stages=2)
SHIFTED = network(block_size=4)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("ancestral", Ancestral()),
        ("mdlm", Ancestral()),
        ("ddpm", Ancestral()),
        ("first-hitting", FirstHitting()),
        ("remdm-cap", Remasking(rule=Cap())),
        ("remdm-rescale", Remasking(rule=Rescale())),
        ("remdm-conf", Remasking(rule=ByConfidence())),
        ("remdm-loop", Remasking(rule=Loop())),
        ("forward-backward", Remasking(rule=ForwardBackward())),
        ("dfm", Remasking(rule=FlowCorrector())),
        ("analytic", Analytic()),
        ("confidence", Ordered(order=Confidence())),
        ("margin", Ordered(order=Margin())),
        ("entropy", Ordered(order=LeastEntropy())),
        ("entropy-bounded", Ordered(order=LeastEntropy(), pace=EntropyBound())),
        ("eb", Ordered(order=LeastEntropy(), pace=EntropyBound())),
        ("threshold", Ordered(order=Confidence(), pace=Above())),
        ("random", Ordered(order=AnyOrder())),
        ("anchor-first", Ordered(order=AnchorConfidence())),
        ("agreeing", Ordered(order=Confidence(), agreeing=True)),
        ("left-to-right", LeftToRight()),
        ("ar", LeftToRight()),
    ],
)
def test_a_name_is_a_sampler(name, made):
    assert sampler_for(MASKED, name, {}) == made


@pytest.mark.parametrize(
    ("name", "options", "made"),
    [
        ("ancestral", {"steps": 9, "stale_anchors": 2}, Ancestral(steps=9, stale_anchors=2)),
        ("remdm-cap", {"eta": 0.1, "steps": 9}, Remasking(rule=Cap(0.1), steps=9)),
        (
            "remdm-loop",
            {"eta": 0.1, "t_on": 0.6, "t_off": 0.1, "alpha_on": 0.8},
            Remasking(rule=Loop(0.1, 0.6, 0.1, 0.8)),
        ),
        ("confidence", {"steps": 9}, Ordered(pace=InSteps(9))),
        ("confidence", {"k": 2}, Ordered(pace=PerStep(2))),
        ("confidence", {"threshold": 0.8}, Ordered(pace=Above(0.8))),
        ("margin", {"gamma": 1}, Ordered(order=Margin(), pace=EntropyBound(1.0))),
        ("eb", {"gamma": 0.5}, Ordered(order=LeastEntropy(), pace=EntropyBound(0.5))),
        (
            "random",
            {"block_length": 4, "window": 8, "steps": 3, "temperature": 0.5},
            Blocks(inner=Ordered((Temperature(0.5),), order=AnyOrder(), pace=InSteps(3)), size=4, window=8),
        ),
        (None, {"temperature": 0}, Ancestral((Temperature(0.0),))),
        (None, {"top_p": 0.9}, Ancestral((TopP(0.9),))),
        (None, {"top_p": 0.9, "keep_crossing": True}, Ancestral((TopP(0.9),))),
        (None, {"top_p": 0.9, "keep_crossing": False}, Ancestral((TopP(0.9, keep_crossing=False),))),
        (None, {"nucleus_p": 0.9}, Ancestral((TopP(0.9, keep_crossing=False),))),
        (None, {"remasking": "low_confidence", "steps": 9}, Ordered(pace=InSteps(9))),
        (None, {"remasking": "random"}, Ordered(order=AnyOrder())),
        (None, {"alg": "origin", "steps": 9}, Ancestral(steps=9)),
        (None, {"alg": "maskgit_plus"}, Ordered()),
        (None, {"alg": "topk_margin"}, Ordered(order=Margin())),
        (None, {"alg": "entropy"}, Ordered(order=LeastEntropy())),
        (None, {"predictor": "ddpm_cache"}, Ancestral()),
        (None, {"steps": None, "top_p": None, "alg": None}, Ancestral()),
    ],
)
def test_options_reach_their_positions(name, options, made):
    assert sampler_for(MASKED, name, options) == made


@pytest.mark.parametrize(
    "spelling", ["steps", "max_denoising_steps", "num_steps", "num_inference_steps", "diffusion_steps"]
)
def test_other_names_for_steps_mean_steps(spelling):
    assert sampler_for(MASKED, None, {spelling: 7}) == Ancestral(steps=7)


FILTERS = {
    "banned": ([1, 2], Banned((1, 2))),
    "allowed": ((0, 3), Allowed((0, 3))),
    "repetition_penalty": (1.2, RepetitionPenalty(1.2)),
    "temperature": (0.8, Temperature(0.8)),
    "top_k": (3, TopK(3)),
    "top_p": (0.9, TopP(0.9)),
    "min_p": (0.1, MinP(0.1)),
}


@given(st.lists(st.sampled_from(list(FILTERS)), unique=True))
def test_filters_come_in_their_usual_order_however_they_are_given(names):
    made = sampler_for(CAUSAL, None, {name: FILTERS[name][0] for name in names})
    assert made == LeftToRight(tuple(built for name, (_, built) in FILTERS.items() if name in names))


def test_without_a_name_the_models_kind_decides():
    assert sampler_for(MASKED, None, {}) == Ancestral()
    assert sampler_for(CAUSAL, None, {}) == LeftToRight()


@pytest.mark.parametrize("name", named_samplers())
def test_every_named_sampler_writes_and_can_be_stored(name):
    made = sampler_for(ANCHORED, name, {"temperature": 0.9})
    assert from_json(Sampler, to_json(sampler_for(ANCHORED, name, {}))) == sampler_for(ANCHORED, name, {})
    canvas = Canvas.continuing([[1, 2], [3, 4]], 8, MASK)
    model = {"left-to-right": CAUSAL, "draft-and-verify": SHIFTED}.get(name, ANCHORED)
    sample = made.sample(model, canvas, noise=Noise(0))
    assert MASK not in sample.tokens
    assert sample.tokens[:, :2].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("name", ["remdm_cap", "ancestal", "llada"])
def test_an_unknown_sampler_is_answered_with_the_known_ones(name):
    with raises(UnknownName, name=name) as error:
        sampler_for(MASKED, name, {})
    assert {*named_samplers(), "mdlm", "ar"} <= set(error.value.known)


@pytest.mark.parametrize("option", ["temprature", "max_tokens"])
def test_an_unknown_option_is_answered_with_the_known_ones(option):
    with raises(UnknownName, name=option) as error:
        sampler_for(MASKED, None, {option: 1})
    assert {"temperature", "max_new_tokens"} <= set(error.value.known)


@pytest.mark.parametrize(
    ("name", "options", "subject"),
    [
        ("ancestral", {"eta": 0.1}, "eta"),
        ("first-hitting", {"steps": 9}, "steps"),
        ("remdm-cap", {"t_on": 0.5}, "t_on"),
        ("entropy", {"threshold": 0.9}, "threshold"),
        ("left-to-right", {"block_size": 4}, "block_size"),
        ("left-to-right", {"stale_anchors": 2}, "stale_anchors"),
        ("confidence", {"steps": 9, "k": 2}, "steps and tokens_per_step"),
        (None, {"steps": 9, "num_steps": 9}, "steps and num_steps"),
        (None, {"top_p": 0.9, "nucleus_p": 0.9}, "top_p and nucleus_p"),
        (None, {"keep_crossing": True}, "keep_crossing"),
        (None, {"nucleus_p": 0.9, "keep_crossing": True}, "keep_crossing"),
        ("margin", {"alg": "entropy"}, "sampler and alg"),
        (None, {"alg": "entropy", "remasking": "random"}, "remasking and alg"),
        (None, {"alg": "entropyy"}, "entropyy"),
        (None, {"window": 8}, "window"),
        (None, {"n": 2}, "n"),
        (None, {"gen_length": 2}, "max_new_tokens"),
        (Ancestral(), {"steps": 9}, "steps"),
    ],
)
def test_nothing_is_ignored(name, options, subject):
    with raises(ConfigError, subject=subject):
        sampler_for(MASKED, name, options)


def test_an_option_of_another_sampler_is_answered_with_those_that_have_it():
    with raises(ConfigError, subject="eta") as error:
        sampler_for(MASKED, "ancestral", {"eta": 0.1})
    assert all(name in error.value.fix for name in ("remdm-cap", "remdm-rescale", "remdm-loop"))


@pytest.mark.parametrize("options", [{"temperature": -1}, {"top_k": 0}])
def test_values_out_of_range_are_refused(options):
    with raises(OutOfRange, subject=next(iter(options))):
        sampler_for(MASKED, None, options)


def test_a_sampler_is_taken_as_it_is():
    made = Remasking((TopP(0.9),), steps=3)
    assert sampler_for(MASKED, made, {"steps": None}) is made


WRONG = {int: (True, 1.0, "1", [1]), float: (True, "0.5", [0.5]), bool: (1, "yes"), tuple: (1, "12", [True], [0.5]),
         str: (1, True, ["entropy"])}  # fmt: skip


@given(st.sampled_from([(name, value) for name, kind in option_types().items() for value in WRONG[kind]]))
def test_a_value_of_a_wrong_type_is_refused(option):
    with raises(ConfigError, subject=option[0]):
        sampler_for(MASKED, None, dict([option]))


def test_a_number_that_is_not_one_is_refused():
    with raises(OutOfRange, subject="temperature"):
        sampler_for(MASKED, None, {"temperature": math.nan})


def test_what_is_said_of_a_sampler_holds():
    for name, sampler in named_samplers().items():
        assert sampler.summary.endswith("."), name
        assert len(sampler.summary) < 120, name
        assert "temperature" in sampler.options
        made = sampler.make(**({"steps": 2} if "steps" in sampler.options else {}))
        for model in (MASKED, CAUSAL, ANCHORED):
            canvas = Canvas.continuing([[1, 2]], 6, MASK)
            if sampler.suits(model):
                made.sample(model, canvas, noise=Noise(0))
            else:
                subject = (
                    "anchor confidence" if sampler.needs == "two-stage" and model is MASKED else type(made).__name__
                )
                with raises(ConfigError, subject=subject):
                    made.sample(model, canvas, noise=Noise(0))


def test_options_have_the_defaults_that_the_sampler_takes():
    assert named_samplers()["remdm-loop"].options["t_on"] == (float, Loop().t_on)
    assert named_samplers()["ancestral"].options["steps"] == (int, Ancestral().steps)
    assert named_samplers()["threshold"].options["threshold"] == (float, Above().score)
    assert named_samplers()["entropy-bounded"].aliases == ("eb",)
