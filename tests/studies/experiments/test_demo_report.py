"""The page of the demo says what was found, and its commands name what exists."""

import itertools
import shlex
from pathlib import Path

import pytest

from adlm.data.stories import Stories
from adlm_studies.experiments.demo import MODELS, STEPS, Demo
from adlm_studies.experiments.demo_report import TAKE_HOME, demo_report, next_commands
from adlm_studies.experiments.study import StepOutcome
from adlm_studies.experiments.writing_speed import median_rate
from adlm_studies.report.sections import ReportTable, Texts

STORIES = list(itertools.islice(Stories().documents("test"), 4))


def trained(name, nats, texts):
    estimate = {"mean": nats, "error": 0.5, "draws": 0 if name == "ar" else 8}
    score = {"rows": 10, "data": "", "nats_per_row": estimate, "nats_per_token": estimate}
    result = {
        "parameters": 5e5,
        "seconds": 60.0,
        "threads": 1,
        "scores": {"stories": score},
        "texts": texts,
        "curve": [],
    }
    return StepOutcome(name, {"corpus": "stories", "model": MODELS[name], "seed": 0}, result)


@pytest.fixture
def outcomes():
    broken = [text.replace(".", " banana .", 1) for text in STORIES[:3]]
    return [
        trained("ar", 25.0, STORIES),
        trained(TAKE_HOME, 29.0, [*STORIES[:1], *broken]),
        StepOutcome("speed", {}, {"tokens_per_second": {"ar": 170.4, TAKE_HOME: 160.0}}),
    ]


def test_the_table_counts_flawless_stories_and_nats_above_the_floor(outcomes):
    table = next(
        section for section in demo_report("stories", outcomes, shown=1).sections if isinstance(section, ReportTable)
    )
    ar, blocks, floor = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (ar["flawless, %"].value, blocks["flawless, %"].value) == (100, 25)
    assert blocks["above the floor"].bound
    assert ar["above the floor"].value == pytest.approx(25.0 - floor["nats per story"])
    assert (ar["tokens per second"], blocks["tokens per second"]) == (170, 160)
    assert (ar["minutes"], blocks["minutes"]) == ("1.0", "2.0")  # it begins with AR's weights


def test_the_lead_has_the_figures_of_the_model_to_take_home(outcomes):
    lead = demo_report("stories", outcomes, shown=1).lead
    assert all(part in lead for part in ("25 nats", "at most 29 nats", "25 % flawless", "Masked models"))
    assert "nats" not in demo_report("stories", [], shown=1).lead


def test_samples_are_marked(outcomes):
    texts = next(
        section for section in demo_report("stories", outcomes, shown=2).sections if isinstance(section, Texts)
    )
    assert [text[0] for _, text in texts.texts] == ["✓", "✓", "✓", "·"]


def test_three_commands_name_the_model_and_a_hole(outcomes):
    words = [shlex.split(line) for line in next_commands("adlm", Path("a folder"), "stories", outcomes)]
    assert [each[1] for each in words] == ["sample", "infill", "evaluate"]
    assert [f"a folder/{TAKE_HOME}" in each for each in words] == [True, False, True]
    assert words[1][2] == "a folder/adlm"
    assert words[1][3].split().count("[MASK]") == 1


def test_other_steps_are_in_proportion():
    assert {name: step.work.run.train.steps for name, step in zip(STEPS, Demo().steps(), strict=False)} == STEPS
    few = [step.work.run.train.steps for step in Demo(training_steps=1).steps()[: len(STEPS)]]
    assert few == [max(1, round(steps / STEPS["ar"])) for steps in STEPS.values()]


def test_a_rate_is_the_median_over_rounds():
    assert median_rate([10, 10, 10], [1.0, 2.0, 100.0]) == 5.0
