"""`adlm experiment`: a study from the first model to the report."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.table import Table

from adlm.cli.progress import BarMessages, TrainingBar, bar, console
from adlm.config import with_changes
from adlm.errors import OutOfRange, TrainingError
from adlm.train.callbacks import Callback
from adlm_studies.experiments.named import STUDIES, find_study
from adlm_studies.experiments.output import plan_study, write_study
from adlm_studies.experiments.study import REPORT, StepOutcome, Study, StudyStep, run_study
from adlm_studies.experiments.training import TrainAndScore
from adlm_studies.report.sections import ReportTable


def command(
    name: Annotated[str, tyro.conf.Positional],
    /,
    *,
    scale: str = "nano",
    seeds: int = 3,
    out: Path | None = None,
    jobs: int = 1,
    plan: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """Run a study: train what it compares, measure, and write a report.

    An interrupted study resumes; finished steps are not run again. Several processes may work in one folder.

    Args:
        name: of the study; `adlm experiment list` prints all studies.
        scale: nano (minutes per model on one core), small (an hour or two) or paper (a cluster).
        seeds: of everything that is trained; intervals need 2 or more.
        out: where models, results.json and report.html go; by default runs/NAME.
        jobs: processes that share the work, with one thread each if there are several.
        plan: only print the steps, write each run to a file and print the commands that train it elsewhere.
        set: a field of the study, as in --set corpora='["kjv"]'.
    """
    if name == "list":
        _print_studies()
        return
    if jobs < 1:
        raise OutOfRange("--jobs", jobs, "1 or more")
    study = with_changes(find_study(name, scale=scale, seeds=seeds), set)
    root = out or Path("runs") / name
    if plan:
        _print_plan(study, root)
        return
    words = [name, "--scale", scale, "--seeds", str(seeds), "--out", str(root)]
    words += [word for change in set for word in ("--set", change)]
    began = time.perf_counter()
    found = _run(study, root, jobs, words)
    report = write_study(study, root, found, ["adlm", "experiment", *words])
    print_tables([section for section in report.sections if isinstance(section, ReportTable)])
    left = len(study.steps()) - len(found)
    state = f"{left} steps are held by other processes. " if left else ""
    minutes = (time.perf_counter() - began) / 60
    console().print(f"{state}{minutes:.1f} minutes. The report is {root}/{REPORT}.", highlight=False, soft_wrap=True)


def _run(study: Study, root: Path, jobs: int, words: list[str]) -> list[StepOutcome]:
    if jobs > 1:
        torch.set_num_threads(1)
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(words, root, number)) for number in range(1, jobs)]
        run_study(study, root, callbacks=step_progress)
        failed = [worker for worker in workers if worker.wait()]
    found = run_study(study, root, callbacks=step_progress)  # steps that waited for another process
    if failed and len(found) < len(study.steps()):
        raise TrainingError(
            f"{len(failed)} of {jobs} jobs of the study {study.name} stopped early",
            f"see {root}/worker-*.log",
            "fix the cause and run the same command again: finished steps are kept",
            subject=study.name,
        )
    return found


@contextmanager
def _worker(words: list[str], root: Path, number: int) -> Iterator[subprocess.Popen[bytes]]:
    """Another process in the same folder, which ends when this one does."""
    root.mkdir(parents=True, exist_ok=True)
    command, environment = [sys.executable, "-m", "adlm", "experiment", *words], {**os.environ, "OMP_NUM_THREADS": "1"}
    with (root / f"worker-{number}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


@contextmanager
def step_progress(step: StudyStep, finished: int, count: int) -> Iterator[Callback]:
    """A progress bar while a step runs."""
    total = step.work.run.train.steps if isinstance(step.work, TrainAndScore) else None
    with bar(f"{finished + 1}/{count} {step.name}", total) as view:
        yield TrainingBar(view) if total else BarMessages(view)
        view.note = "done"


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
