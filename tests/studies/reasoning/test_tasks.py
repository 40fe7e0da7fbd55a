import pytest

from adlm.config import from_json, to_json
from adlm.errors import ConfigError, UnknownName
from adlm_studies.reasoning.problem import Task
from adlm_studies.reasoning.tasks import TASKS, make_task
from tests.errors import raises


def test_every_task_has_its_name_and_is_a_value_that_can_be_stored():
    assert [*TASKS] == ["gsm8k", "gsm8k-equations", "prosqa", "prontoqa", "arithmetic", "graph"]
    for name in TASKS:
        task = make_task(name)
        assert task.name == name
        assert task == make_task(name)
        assert from_json(Task, to_json(task)) == task


def test_options_are_fields_of_the_task():
    assert make_task("arithmetic", most=3, seed=5).problems("train")[0] == TASKS["arithmetic"](seed=5, most=3).problem(
        "train", 0
    )


def test_unknown_names_folders_and_options_are_refused():
    with raises(UnknownName, kind="task"):
        make_task("prosq")
    with raises(ConfigError, subject="folder"):
        make_task("arithmetic", "somewhere")
    with raises(ConfigError, subject="depth"):
        make_task("prosqa", depth=3)


@pytest.mark.parametrize("name", ["prosqa", "prontoqa", "arithmetic", "graph"])
def test_generated_problems_are_a_sequence(name):
    problems = TASKS[name]().drawn("valid")
    assert problems[2:5][1] == problems[3] == problems[-(len(problems) - 3)]
    assert len(problems[::100]) == len(range(0, len(problems), 100))
    with pytest.raises(IndexError):
        problems[len(problems)]
    with raises(UnknownName, kind="split"):
        TASKS[name]().problems("dev")
