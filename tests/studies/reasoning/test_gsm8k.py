import json
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import DataError, OutOfRange, UnknownName
from adlm_studies.reasoning.gsm8k import Gsm8k, Gsm8kEquations, numbers_along
from tests.errors import raises

WORKED = "He has <<16-3-4=9>>9 eggs.\n\nHe makes $<<9*2=18>>18.\n#### 1,018"


def folder_with(tmp_path, lines, file="test.jsonl"):
    (tmp_path / file).write_text("\n".join(lines), encoding="utf-8")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("steps", "numbers"),
    [
        (["<<16-3-4=9>><<9*2=18>>"], "16 3 4 9 2 18"),
        (["<<48/2=24>>", "<<48+24=72>>"], "48 2 24 48 72"),
        (["<<1+1=2>>", "<<2*2=4>>"], "1 1 2 2 4"),
        (["<<2/.5=4>>", "<<12.50*4=50>>"], "2 .5 4 12.50 50"),
        (["<<1+1=2>>", "<<3+4=7>>", "<<2*7=14>>"], "1 1 2 3 4 7 2 14"),
        (["no equation, 3 apples"], ""),
        ([], ""),
    ],
)
def test_numbers_are_operands_and_results_and_a_result_gone_on_with_is_said_once(steps, numbers):
    assert " ".join(numbers_along(steps)) == numbers


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=4), max_size=4))
def test_every_number_of_a_trace_is_important_but_results_that_are_gone_on_with(equations):
    steps = [f"<<{'+'.join(map(str, numbers))}={sum(numbers)}>>" for numbers in equations]
    repeated = sum(sum(a) in b for a, b in pairwise(equations))
    assert len(numbers_along(steps)) == sum(len(numbers) + 1 for numbers in equations) - repeated


def test_an_original_problem_is_read_line_by_line(tmp_path):
    folder = folder_with(tmp_path, [json.dumps({"question": " How much? ", "answer": WORKED})])
    (problem,) = Gsm8k(folder).problems("test")
    assert problem.question == "How much?"
    assert problem.steps == ("He has <<16-3-4=9>>9 eggs.", "He makes $<<9*2=18>>18.")
    assert problem.answer == "1018"
    assert problem.important == ("16", "3", "4", "9", "2", "18")


def test_a_problem_without_equations_is_kept_without_important_tokens(tmp_path):
    folder = folder_with(tmp_path, [json.dumps({"question": "How much?", "answer": "It is ten.\n#### 10"})])
    assert Gsm8k(folder).problems("test")[0].important == ()
    folder_with(tmp_path, ["How much?|| #### 10", ""], "test.txt")
    assert Gsm8kEquations(folder).problems("test")[0].steps == ()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ({"question": "How much?"}, "no answer among question"),
        ({"answer": WORKED}, "question"),
        ({"question": " ", "answer": WORKED}, "question"),
        ({"question": 5, "answer": WORKED}, "question"),
        ({"question": "How much?", "answer": "It is 10."}, "####"),
        ({"question": "How much?", "answer": "It is 10.\n#### ten"}, "####"),
        (["How much?"], ""),
        ('{"question": "How', ""),
    ],
)
def test_a_malformed_original_problem_is_named_with_file_and_line(tmp_path, line, named):
    good = json.dumps({"question": "How much?", "answer": WORKED})
    folder = folder_with(tmp_path, [good, line if isinstance(line, str) else json.dumps(line)])
    with raises(DataError, subject=f"{folder}/test.jsonl, line 2") as caught:
        Gsm8k(folder).problems("test")
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "line", ["How much? <<1+1=2>> #### 2", "||<<1+1=2>> #### 2", "How?||<<1+1=2>> 2", "How?||####"]
)
def test_a_malformed_equation_line_is_named_with_file_and_line(tmp_path, line):
    folder = folder_with(tmp_path, ["How?||<<1+1=2>> #### 2", "", line], "valid.txt")
    with raises(DataError, subject=f"{folder}/valid.txt, line 3"):
        Gsm8kEquations(folder).problems("valid")


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "test.jsonl").write_bytes(data)
    (folder / "test.txt").write_bytes(data)
    for task in (Gsm8k(str(folder)), Gsm8kEquations(str(folder))):
        with suppress(DataError):
            assert all(problem.question for problem in task.problems("test"))


def test_validation_is_the_end_of_the_training_file(tmp_path):
    lines = [json.dumps({"question": f"How much is {n}?", "answer": f"#### {n}"}) for n in range(10)]
    task = Gsm8k(folder_with(tmp_path, lines, "train.jsonl"), held_out=3)
    assert [problem.answer for problem in task.problems("train")] == list("0123456")
    assert [problem.answer for problem in task.problems("valid")] == list("789")
    assert "last 3" in task.origin("valid")
    with raises(OutOfRange, subject="held_out"):
        Gsm8k(held_out=-1)


def test_training_equations_come_from_the_original_file_without_those_of_validation(tmp_path):
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k_aug").mkdir()
    lines = [json.dumps({"question": f"How  much is {n}?", "answer": WORKED}) for n in range(3)]
    folder_with(tmp_path / "gsm8k", lines, "train.jsonl")
    task = Gsm8kEquations(folder_with(tmp_path / "gsm8k_aug", ["How much is 1?||<<1+1=2>> #### 2"], "valid.txt"))
    train = task.problems("train")
    assert [problem.question for problem in train] == ["How much is 0?", "How much is 2?"]
    assert train[0].steps == ("<<16-3-4=9>>", "<<9*2=18>>")
    assert "original training file" in task.origin("train")
    folder_with(tmp_path / "gsm8k_aug", ["How many?||<<2+1=3>> #### 3"], "train.txt")
    assert [problem.answer for problem in task.problems("train")] == ["3"]
    assert task.origin("train") == "published: train.txt"


def test_files_are_looked_for_in_the_folder_of_all_data(tmp_path, monkeypatch):
    monkeypatch.delenv("ADLM_DATA", raising=False)
    with raises(DataError, subject="gsm8k"):
        Gsm8k().problems("test")
    (tmp_path / "gsm8k").mkdir()
    folder_with(tmp_path / "gsm8k", [json.dumps({"question": "How much?", "answer": WORKED})])
    monkeypatch.setenv("ADLM_DATA", str(tmp_path))
    assert len(Gsm8k().problems("test")) == 1
    with raises(DataError, subject="train.jsonl"):
        Gsm8k().problems("train")
    with raises(DataError, subject=str(tmp_path / "elsewhere")):
        Gsm8k(str(tmp_path / "elsewhere")).problems("test")
    with raises(UnknownName, name="dev"):
        Gsm8k().problems("dev")


def test_the_published_files_are_read_whole_and_their_traces_give_their_answers(shared):
    original, equations = Gsm8k(str(shared / "data/gsm8k")), Gsm8kEquations(str(shared / "data/gsm8k_aug"))
    sizes = {"train": 6973, "valid": 500, "test": 1319}
    for task in (original, equations):
        for split, size in sizes.items():
            problems = task.problems(split)
            assert len(problems) == size
            assert all(
                task.is_correct(task.parse_answer(f"{problem.question}\n#### {problem.answer}"), problem)
                for problem in problems
            )
            assert sum(not problem.important for problem in problems) < size / 70
    pairs = [*zip(original.problems("test"), equations.problems("test"), strict=True)]
    assert all(first.important == second.important and first.answer == second.answer for first, second in pairs)
    held_out = {problem.question for problem in equations.problems("valid")}
    assert not held_out & {problem.question for problem in equations.problems("train")}
