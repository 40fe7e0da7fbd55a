"""What a study leaves in its folder: results, charts, the report, and plans for other machines."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from adlm.config import to_json
from adlm.files import write_atomically
from adlm.train.plan import summary
from adlm_studies.experiments.study import (
    REPORT,
    StepOutcome,
    Study,
    StudyStep,
    descriptions,
    stored_result,
    write_results,
)
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.report.chart import save_svg
from adlm_studies.report.page import write_report
from adlm_studies.report.sections import Chart, Code, ReportPage


def write_study(study: Study, root: Path, outcomes: Sequence[StepOutcome], command: Sequence[str]) -> ReportPage:
    """Write the results, the charts and the report of a study. `command` repeats it all."""
    report = study.report(outcomes)
    write_results(study, root, outcomes)
    for number, chart in enumerate(section for section in report.sections if isinstance(section, Chart)):
        save_svg(chart, root / f"chart-{number + 1}.svg")
    settings = json.dumps(to_json(study), indent=1)
    more = (
        Code("To repeat it", "", shlex.join(command)),
        Code("Settings", "Every run is in results.json.", settings, folded=True),
    )
    write_report(ReportPage(report.title, report.lead, [*report.sections, *more]), root / REPORT)
    return report


class PlannedStep(NamedTuple):
    """A step of a study before it is run.

    Args:
        parameters, work: of a step that trains: weights and floating-point operations.
        command: trains it elsewhere; "" if the step trains nothing or is finished.
    """

    name: str
    finished: bool
    parameters: int | None = None
    work: float | None = None
    command: str = ""


def plan_study(study: Study, root: Path) -> list[PlannedStep]:
    """Every step with its cost. The runs are written to files, so that other machines can train them: a step that
    finds its model trained only scores it."""
    steps = study.steps()
    described = descriptions(steps)
    return [_planned(step, stored_result(root, step.name, described[step.name]) is not None, root) for step in steps]


def _planned(step: StudyStep, finished: bool, root: Path) -> PlannedStep:
    if not isinstance(step.work, TrainAndScore):
        return PlannedStep(step.name, finished)
    run = step.work.run
    file = root / "plan" / f"{step.name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(to_json(run), indent=1) + "\n")
    cost = summary(run)
    command = "" if finished else f"adlm train {file} --out {root / step.name}"
    return PlannedStep(step.name, finished, cost.parameters.total, cost.all_work, command)
