"""`adlm experiment`: a study from the first model to the report."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from adlm.cli.progress import BarMessages, TrainingBar, bars, console
from adlm.config import with_changes
from adlm.errors import ConfigError, OutOfRange
from adlm.train.callbacks import Callback
from adlm_studies.experiments.named import STUDIES, find_study
from adlm_studies.experiments.outcomes import Exchanged, exchange
from adlm_studies.experiments.output import plan_study, write_study
from adlm_studies.experiments.side_by_side import run_side_by_side
from adlm_studies.experiments.study import REPORT, StepCallbacks, Study, StudyStep, finished_outcomes
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.report.sections import ReportTable


def command(
    name: Annotated[str, tyro.conf.Positional],
    /,
    *,
    scale: str | None = None,
    seeds: int | None = None,
    out: Path | None = None,
    outcomes: Path | None = None,
    jobs: int | None = None,
    plan: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    report: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """Run a study: train what it compares, measure, and write a report.

    An interrupted study resumes; finished steps are not run again. Several processes may work in one folder.

    Args:
        name: the study; `adlm experiment list` prints all.
        scale: nano (minutes per model on one core), small (an hour or two) or paper (a cluster); by default the
            study's own, which is nano for most.
        seeds: number of training seeds; intervals need 2 or more. By default the study's own.
        out: where models, results.json and report.html go; by default runs/NAME.
        outcomes: a folder for the outcomes of finished steps, as in docs/results/NAME/outcomes. Steps
            whose outcome is there are not run again, and each finished step is added. With --plan nothing is run.
        jobs: steps to run side by side, each in a process with one thread; by default as many as there are cores, or
            one with a GPU. 1: one after the other, with all threads.
        plan: only print the steps, write each run to a file and print the commands that train it elsewhere.
        report: only write the report of the steps that are finished, of a study that is still running or was stopped.
        set: a field of the study, as in --set corpora='["kjv"]'.
    """
    if name == "list":
        _print_studies()
        return
    if jobs is not None and jobs < 1:
        raise OutOfRange("--jobs", jobs, "1 or more")
    if plan and report:
        message = "--plan and --report exclude each other: one shows what is left, the other what is finished"
        raise ConfigError(message, subject="report")
    study = with_changes(find_study(name, scale=scale, seeds=seeds), set)
    root = out or Path("runs") / name
    if outcomes is not None:
        _print_exchanged(exchange(study, root, outcomes))
    if plan:
        _print_plan(study, root)
        return
    words = [name, "--scale", study.scale, "--seeds", str(study.seeds), "--out", str(root)]
    words += [word for change in set for word in ("--set", change)]
    began = time.perf_counter()
    if report:
        found = finished_outcomes(study, root)
        if not found:
            raise ConfigError(f"no step of {name} is finished in {root}", subject=str(root))
    else:
        with step_progress() as callbacks:
            shown = callbacks if outcomes is None else exporting(callbacks, study, root, outcomes)
            found = run_side_by_side(study, root, jobs=jobs, callbacks=shown)
    page = write_study(study, root, found, ["adlm", "experiment", *words])
    print_tables([section for section in page.sections if isinstance(section, ReportTable)])
    left = len(study.steps()) - len(found)
    why = "not finished" if report else "held by other processes"
    state = f"{left} steps are {why}. " if left else ""
    minutes = "" if report else f"{(time.perf_counter() - began) / 60:.1f} minutes. "
    console().print(f"{state}{minutes}The report is {root}/{REPORT}.", highlight=False, soft_wrap=True)


@contextmanager
def step_progress() -> Iterator[StepCallbacks]:
    """Progress bars, one for each step that is running."""
    with bars() as show:

        @contextmanager
        def callbacks(step: StudyStep, finished: int, count: int) -> Iterator[Callback]:
            total = step.work.run.train.steps if isinstance(step.work, TrainAndScore) else None
            with show(f"{finished + 1}/{count} {step.name}", total) as view:
                yield TrainingBar(view) if total else BarMessages(view)
                view.note = "done"

        yield callbacks


def exporting(callbacks: StepCallbacks, study: Study, root: Path, outcomes: Path) -> StepCallbacks:
    """The same callbacks; each step that is finished is exported."""

    @contextmanager
    def both(step: StudyStep, finished: int, count: int) -> Iterator[Callback]:
        with callbacks(step, finished, count) as callback:
            yield callback
        exchange(study, root, outcomes)

    return both


def _print_exchanged(found: Exchanged) -> None:
    changed = f" Other steps of the same name, left alone: {', '.join(found.changed)}." if found.changed else ""
    told = f"Outcomes: {len(found.imported)} imported, {len(found.exported)} exported.{changed}"
    console().print(told, highlight=False, soft_wrap=True)


def _print_studies() -> None:
    table = Table("study", "question")
    for name, study in STUDIES.items():
        table.add_row(name, study.question)
    console().print(table)


def _print_plan(study: Study, root: Path) -> None:
    table = Table("step", "parameters", "TFLOP", "state")
    steps = plan_study(study, root)
    for step in steps:
        parameters = "" if step.parameters is None else f"{step.parameters / 1e6:.2f} M"
        work = "" if step.work is None else f"{step.work / 1e12:,.0f}"
        table.add_row(step.name, parameters, work, "done" if step.finished else "to do")
    console().print(table)
    console().print(*(step.command for step in steps if step.command), sep="\n", highlight=False, soft_wrap=True)


def print_tables(sections: Sequence[ReportTable]) -> None:
    """The tables of a report on the terminal."""
    for section in sections:
        table = Table(*section.columns, title=section.title, caption=section.note)
        for row in section.rows:
            cells = ("" if cell is None else cell for cell in row)
            table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
        console().print(table)
