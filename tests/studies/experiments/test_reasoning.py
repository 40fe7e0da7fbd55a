"""The reasoning study compares methods at one budget, and says no more than its intervals do."""

from pathlib import Path

import pytest

from adlm.config import from_json, to_json
from adlm.errors import UnknownName
from adlm.models.stack import StackConfig
from adlm_studies.experiments import reasoning
from adlm_studies.experiments.reasoning import METHODS, Budget, Lesson, Reasoning
from adlm_studies.experiments.study import StepOutcome, Study, check_steps, read_results, run_study
from adlm_studies.report.sections import Chart, ReportTable, Texts
from tests.errors import raises


def outcome(task, method, seed, right, tokens, base="ar"):
    shown = {"question": "?", "answer": "a", "written": "#### a", "thoughts": [[["a", 0.5]]]}
    right = "".join("01"[each] for each in right)
    result = {"right": right, "tokens_written": tokens, "thoughts": 1, "steps": 100, "shown": shown}
    return StepOutcome("x", {"task": task, "base": base, "method": method, "seed": seed}, result)


def test_every_method_is_tried_on_every_task_with_every_seed():
    study = Reasoning(seeds=2, tasks=("graph", "arithmetic"), bases=("ar", "a2r", "adlm"))
    steps = study.steps()
    check_steps(steps)
    assert from_json(Study, to_json(study)) == study  # type: ignore[type-abstract]
    first = [step.labels["method"] for step in steps if step.labels["base"] == "ar" and step.labels["seed"] == 1]
    assert first == ["lesson-1", *METHODS, "lesson-1", *METHODS]
    assert {step.labels["method"] for step in steps if step.labels["base"] == "a2r"} == {"lesson-1", "anchored"}
    assert {step.labels["method"] for step in steps if step.labels["base"] == "adlm"} == {
        "lesson-1",
        "chain",
        "anchored",
    }
    assert {step.labels["task"] for step in steps if step.labels["base"] != "ar"} == {"graph"}
    budgets = {(work.curriculum.problems, work.curriculum.scale) for work in (step.work for step in steps[1:7])}
    assert len(budgets) == 1


def test_methods_begin_as_the_model_of_the_last_lesson_and_lessons_are_smaller():
    steps = {step.name: step for step in Reasoning(seeds=1, tasks=("prosqa",), bases=("ar",)).steps()}
    last, method = steps["prosqa/ar/lesson-2/seed-0"], steps["prosqa/ar/anchored/seed-0"]
    assert last.needs == ("prosqa/ar/lesson-1/seed-0",)
    assert method.needs == (method.work.after,) == ("prosqa/ar/lesson-2/seed-0",)
    sizes = [steps[f"prosqa/ar/{name}/seed-0"].work.curriculum.task for name in ("lesson-1", "lesson-2", "none")]
    assert [(task.least, task.most) for task in sizes] == [(6, 12), (8, 28), (28, 28)]


def test_a_task_without_a_budget_is_named():
    with raises(UnknownName, kind="task at nano scale"):
        Reasoning(tasks=("gsm8k",)).steps()


def test_gsm8k_is_left_out_where_its_files_are_not(tmp_path, monkeypatch):
    monkeypatch.delenv("ADLM_DATA", raising=False)
    assert "gsm8k-equations" not in {step.labels["task"] for step in Reasoning(seeds=1).steps()}
    monkeypatch.setenv("ADLM_DATA", str(tmp_path))
    (tmp_path / "gsm8k_aug").mkdir()
    for name in ("test.txt", "valid.txt", "train.txt"):
        assert "gsm8k-equations" not in {step.labels["task"] for step in Reasoning(seeds=1).steps()}
        (tmp_path / "gsm8k_aug" / name).touch()
    assert "gsm8k-equations" in {step.labels["task"] for step in Reasoning(seeds=1).steps()}


def test_a_small_study_runs_from_training_to_its_report(tmp_path, monkeypatch):
    lesson = Lesson({"nodes": 10, "least": 1, "most": 3}, 600, 0.001, 16)
    monkeypatch.setitem(reasoning._BUDGETS["nano"], "graph", Budget(600, 0.001, 16, 4, 0, (lesson,)))
    monkeypatch.setitem(reasoning._STACKS, "nano", StackConfig(width=16, heads=2, layers=2))
    study = Reasoning(seeds=1, tasks=("graph",), methods=("chain", "anchored"), bases=("ar", "adlm"))
    found = run_study(study, tmp_path)
    assert [each.labels["method"] for each in found] == 2 * ["lesson-1", "chain", "anchored"]
    assert found[2].result["thoughts"] == 6
    assert all(len(each.result["right"]) == 4 for each in found if each.labels["method"] != "lesson-1")
    assert [type(section) for section in study.report(found).sections] == [ReportTable, Texts, Chart]
    assert run_study(study, tmp_path) == found


@pytest.mark.slow
def test_models_are_asked_problems_of_other_sizes_too(tmp_path, monkeypatch):
    monkeypatch.delenv("ADLM_DATA", raising=False)
    lesson = Lesson({"least": 6, "most": 8}, 600, 0.001, 16)
    monkeypatch.setitem(reasoning._BUDGETS["nano"], "prosqa", Budget(32, 0.001, 16, 4, 0, (lesson,), (6, 8)))
    monkeypatch.setitem(reasoning._STACKS, "nano", StackConfig(width=16, heads=2, layers=2))
    study = Reasoning(seeds=1, tasks=("prosqa",), methods=("anchored",), bases=("ar",))
    *_, sized = found = run_study(study, tmp_path)
    assert sized.labels["by"] == "size"
    assert [len(right) for right in sized.result["right"].values()] == [200, 200]
    chart = next(section for section in study.report(found).sections if section.title == "prosqa: by size")
    assert [(each.name, each.x) for each in chart.series] == [("anchored chain of thought", [6, 8])]


def test_the_lead_says_more_only_beyond_the_interval():
    half = [True, False] * 20

    def lead(ours):
        chain = [outcome("prosqa", "chain", seed, half, 40.0) for seed in range(3)]
        return Reasoning().report([*chain, *ours]).lead

    always = [outcome("prosqa", "anchored", seed, [True] * 40, 20.0) for seed in range(3)]
    assert "solves more than a plain one" in lead(always)
    assert "20 tokens written, compared with 40" in lead(always)
    sometimes = [outcome("prosqa", "anchored", seed, [True] * 40 if seed == 0 else half, 20.0) for seed in range(3)]
    assert "neither significantly more nor fewer" in lead(sometimes)
    never = [outcome("prosqa", "anchored", seed, [False] * 40, 20.0) for seed in range(3)]
    assert "solves fewer than a plain one" in lead(never)


def test_seeds_that_agree_by_chance_do_not_make_a_difference_sure():
    one_more = [True, True, *[True, False] * 19]
    outcomes = [outcome("prosqa", "chain", seed, [True, False] * 20, 40.0) for seed in range(2)]
    outcomes += [outcome("prosqa", "anchored", seed, one_more, 20.0) for seed in range(2)]
    report = Reasoning().report(outcomes)
    assert "neither significantly more nor fewer" in report.lead
    difference = report.sections[0].rows[1][3]
    assert difference.value == pytest.approx(2.5)
    assert difference.low < 0 < difference.high


def test_intervals_are_never_beyond_what_there_can_be_nor_of_no_width():
    outcomes = [outcome("prosqa", "chain", seed, [True] * 40, 40.0) for seed in range(3)]
    unlike = ([True] * 40, [False] * 40, [True, False] * 20)
    outcomes += [outcome("prosqa", "anchored", seed, right, 40.0) for seed, right in enumerate(unlike)]
    chain, anchored = Reasoning().report(outcomes).sections[0].rows
    assert (chain[2].value, chain[2].high) == (100, 100)
    assert 90 < chain[2].low < 98
    assert (anchored[2].low, anchored[2].high) == (0, 100)
    assert (anchored[3].low, anchored[3].value) == (-100, pytest.approx(-50))


def test_the_note_of_a_table_says_how_many_seeds_its_rows_have():
    outcomes = [outcome("graph", "chain", seed, [True, False], 4.0) for seed in range(3)]
    assert "3 seeds per row" in Reasoning().report(outcomes).sections[0].note
    outcomes.append(outcome("graph", "anchored", 0, [True, False], 4.0, base="a2r"))
    assert "1 to 3 seeds per row" in Reasoning().report(outcomes).sections[0].note


def test_results_as_they_are_published_make_the_report_again():
    published = Path(__file__).resolve().parents[3] / "docs" / "results" / "reasoning.json"
    report = Reasoning().report(read_results(published))
    assert any(isinstance(section, ReportTable) and section.title.startswith("graph") for section in report.sections)


def test_the_papers_figures_stand_beside_tasks_that_it_has():
    outcomes = [outcome("prosqa", "anchored", 0, [True], 3.0), outcome("graph", "anchored", 0, [True], 3.0)]
    tables = [section for section in Reasoning().report(outcomes).sections if isinstance(section, ReportTable)]
    assert [table.rows[0][6:] for table in tables] == [[97.3], []]
