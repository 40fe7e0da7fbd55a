from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm.config import from_json, to_json
from adlm.errors import OutOfRange, UnknownName
from adlm_studies.reasoning.methods import (
    METHODS,
    Anchored,
    Chain,
    Coconut,
    Implicit,
    NoChain,
    Pause,
    ReasoningMethod,
    as_written,
    find_method,
)
from adlm_studies.reasoning.problem import Problem
from tests.errors import raises

TOM = Problem(
    "Is Tom a lempus or a zumpus?",
    ("Tom is a terpus.", "Every terpus is a brimpus.", "Every brimpus is a lempus."),
    "Tom is a lempus.",
    ("Tom", "terpus", "brimpus", "lempus"),
)
EGGS = Problem("How much?", ("<<16-3-4=9>>", "<<9*2=18>>"), "18", ("16", "3", "4", "9", "2", "18"))
ALL = (NoChain(), Chain(), Pause(4), Implicit(2), Coconut(2, 2), Anchored(3), Anchored(3, drop_steps=True))

problems = st.builds(
    lambda steps: Problem("Why?", tuple(f"step {n}." for n in range(steps)), "so", tuple(map(str, range(steps)))),
    st.integers(0, 6),
)


def test_layouts_are_what_the_methods_promise():
    question, answer = "Is Tom a lempus or a zumpus?\n", "#### Tom is a lempus."
    steps = [step + "\n" for step in TOM.steps]
    assert NoChain().layout(TOM, 0)[:5] == (question, 0, (), "", answer)
    assert Chain().layout(TOM, 0)[:5] == (question, 0, (), "".join(steps), answer)
    assert Pause(4).layout(TOM, 0)[:5] == (question, 4, (), "", answer)
    assert Implicit(2).layout(TOM, 1)[:5] == (question, 0, (), "".join(steps[1:]), answer)
    assert Coconut(2, 3).layout(TOM, 2)[:5] == (question, 6, (), steps[2], answer)
    assert Coconut(2, 3).layout(TOM, 3)[:5] == (question, 6, (), "", answer)
    assert Anchored(3).layout(TOM, 2)[:5] == (question, 2, ("Tom", " terpus"), "".join(steps), answer)
    assert Anchored(3, drop_steps=True).layout(TOM, 2)[:5] == (question, 2, ("Tom", " terpus"), steps[2], answer)
    assert {method.layout(TOM, 0).important for method in ALL} == {as_written(TOM)}


def test_important_tokens_are_not_found_within_longer_ones():
    steps = ("Tom is a brimpus.", "Every brimpus is an impus.", "32 - 2 = 30")
    problem = Problem("?", steps, "30", ("brimpus", "impus", "2", "30"))
    assert as_written(problem) == (" brimpus", " impus", " 2", " 30")


@given(problems, st.sampled_from(ALL))
def test_thoughts_are_as_many_for_every_problem_and_anchors_never_more(problem, method):
    for stage in range(method.stages):
        layout = method.layout(problem, stage)
        assert layout.thoughts == method.thoughts(stage)
        assert layout.anchors == as_written(problem)[: len(layout.anchors)]
        assert len(layout.anchors) <= layout.thoughts


@given(problems, st.sampled_from([Implicit(3), Coconut(3, 2), Anchored(3), Anchored(3, drop_steps=True)]))
def test_training_begins_with_the_plain_chain_and_steps_only_ever_vanish_from_the_front(problem, method):
    whole = Chain().layout(problem, 0).trace
    traces = [method.layout(problem, stage).trace for stage in range(method.stages)]
    assert traces[0] == whole
    for before, after in pairwise(traces):
        assert before.endswith(after)
    if isinstance(method, Implicit):
        assert traces[-1] == ""


def test_an_important_token_has_the_space_that_the_trace_has_before_it():
    assert as_written(TOM) == ("Tom", " terpus", " brimpus", " lempus")
    assert as_written(EGGS) == EGGS.important
    absent = Problem("?", ("a b",), "b", ("zebra", "b"))
    assert as_written(absent) == ("zebra", " b")


def test_a_trace_without_important_tokens_has_thoughts_all_the_same():
    layout = Anchored(2).layout(Problem("?", ("so it is",), "yes", ()), 2)
    assert (layout.thoughts, layout.anchors) == (2, ())


@pytest.mark.parametrize("stage", [-1, 4])
def test_a_stage_that_there_is_not_is_refused(stage):
    with raises(OutOfRange, subject="stage", rule="0 to 3"):
        Anchored(3).layout(TOM, stage)


@pytest.mark.parametrize(
    "make", [lambda: Anchored(0), lambda: Coconut(1, 0), lambda: Implicit(-1), lambda: Pause(0)], ids="acip"
)
def test_methods_without_a_single_place_are_refused(make):
    with raises(OutOfRange, rule="1 or more"):
        make()


def test_an_unknown_method_is_answered_with_the_nearest():
    with raises(UnknownName, kind="method"):
        find_method("anchord")
    assert {find_method(name) for name in METHODS} == {type(method) for method in ALL}


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_a_method_comes_back_from_json(method):
    assert from_json(ReasoningMethod, to_json(method)) == method
