import ast
import math
import operator
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ConfigError
from adlm_studies.reasoning.small_tasks import Arithmetic, LetterGraph
from tests.errors import raises

_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def value(text):
    """By the rules of Python, which are the usual ones."""

    def of(node):
        return (
            node.value if isinstance(node, ast.Constant) else _OPERATIONS[type(node.op)](of(node.left), of(node.right))
        )

    return of(ast.parse(text, mode="eval").body)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 3), st.integers(0, 4), st.sampled_from([9, 30, 99, 500]))
def test_the_question_the_steps_and_the_answer_of_a_sum_agree(number, least, more, largest):
    task = Arithmetic(least=least, most=least + more, largest=largest)
    problem = task.problem("train", number)
    assert value(problem.question.removesuffix("=?")) == int(problem.answer)
    assert least <= len(problem.steps) <= least + more
    before = None
    for step in problem.steps:
        left, right = step.strip("<>").split("=")
        assert value(left) == int(right)
        assert 1 <= int(right) <= largest
        assert before is None or left.startswith(before)
        before = right
    assert before == problem.answer
    # Two numbers of the first step, one more for each further one, and each result once.
    assert len(problem.important) == 2 * len(problem.steps) + 1


def test_the_form_of_a_sum_is_as_documented():
    texts = [problem.question for problem in Arithmetic(least=2, most=2).problems("train")[:100]]
    assert all(re.fullmatch(r"[1-9][-+*][1-9][-+*][1-9]=\?|\([1-9][-+][1-9]\)\*[1-9]=\?", text) for text in texts)


def test_levels_and_signs_of_sums_are_balanced():
    problems = Arithmetic().problems("train")[:1500]
    lengths = Counter(len(problem.steps) for problem in problems)
    assert all(abs(lengths[n] - 500) < 3 * math.sqrt(500) for n in (2, 3, 4))
    signs = Counter("".join(problem.question for problem in problems))
    assert max(signs[sign] for sign in "+-*") < 1.3 * min(signs[sign] for sign in "+-*")
    answers = Counter(problem.answer for problem in problems)
    assert answers.most_common(1)[0][1] < 0.08 * 1500


@pytest.mark.parametrize("task", [Arithmetic(least=1, most=1), Arithmetic(), LetterGraph()])
def test_no_question_is_in_two_splits(task):
    train, valid, test = (
        {problem.question for problem in task.problems(split)[:count]}
        for split, count in (("train", 600), ("valid", 100), ("test", 100))
    )
    assert not train & valid
    assert not train & test
    assert not valid & test


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 3), st.integers(0, 3), st.integers(14, 26))
def test_one_letter_can_be_reached_and_the_other_is_as_deep_elsewhere(number, least, more, nodes):
    problem = LetterGraph(nodes=nodes, least=least, most=least + more).problem("train", number)
    facts, asked = problem.question.split(". ")
    above = {edge[2]: edge[0] for edge in facts.split()}
    assert len(above) == len(facts.split()) == nodes - 2
    root, one, two = re.fullmatch(r"(.)>(.) or \1>(.)\?", asked).groups()
    ways = {}
    for letter in (one, two):
        ways[letter] = [letter]
        while ways[letter][0] in above:
            ways[letter].insert(0, above[ways[letter][0]])
        assert letter not in above.values(), "an end"
    (other,) = {one, two} - {problem.answer}
    assert tuple(ways[problem.answer]) == problem.important
    assert problem.important[0] == root != ways[other][0]
    assert len(ways[problem.answer]) == len(ways[other])
    assert problem.steps == tuple(map(">".join, zip(problem.important, problem.important[1:], strict=False)))
    assert least <= len(problem.steps) <= least + more


def test_lengths_and_positions_of_answers_are_balanced_among_letters():
    problems = LetterGraph().problems("train")[:1500]
    lengths = Counter(len(problem.steps) for problem in problems)
    assert all(abs(lengths[n] - 500) < 3 * math.sqrt(500) for n in (2, 3, 4))
    last = sum(problem.question[-2] == problem.answer for problem in problems)
    assert abs(last - 750) < 3 * math.sqrt(375)


def test_answers_are_read_from_what_a_model_writes():
    task = LetterGraph()
    assert task.parse_answer("a>c c>e e") == "e"
    assert task.parse_answer("a>c c>e") == "e"
    assert task.parse_answer("a>c c>e\n#### e") == "e"
    assert task.parse_answer("a>c c>e\n#### ") is None  # steps are no answer once one was begun
    assert task.parse_answer("The end") is None
    problem = task.problem("test", 0)
    assert task.is_correct(task.parse_answer(" ".join([*problem.steps, problem.answer])), problem)
    arithmetic = Arithmetic()
    problem = arithmetic.problem("test", 0)
    assert arithmetic.is_correct(arithmetic.parse_answer(" ".join(problem.steps)), problem)
    assert not arithmetic.is_correct(arithmetic.parse_answer(problem.answer + "1"), problem)


def test_settings_that_mean_nothing_are_refused():
    for change in ({"least": 0}, {"least": 3, "most": 2}, {"largest": 8}):
        with raises(ConfigError, subject="arithmetic"):
            Arithmetic(**change)
    for change in ({"nodes": 9}, {"nodes": 27}, {"least": 0}, {"least": 5}):
        with raises(ConfigError, subject="graph"):
            LetterGraph(**change)
