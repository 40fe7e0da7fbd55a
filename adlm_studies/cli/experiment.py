"""`adlm experiment`: a study from the first model to the report."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.table import Table as Printed

from adlm.cli.progress import BarMessages, TrainingBar, bar, console
from adlm.config import to_json, with_changes
from adlm.data.shards import write_atomically
from adlm.errors import ConfigError, TrainingError
from adlm.train.callbacks import Callback
from adlm.train.plan import summary
from adlm_studies.experiments.named import study_of
from adlm_studies.experiments.study import (
    REPORT,
    StepOutcome,
    Study,
    StudyStep,
    carry_out,
    descriptions,
    stored_result,
    write_results,
)
from adlm_studies.experiments.training import Train
from adlm_studies.report.chart import save_svg
from adlm_studies.report.page import write_report
from adlm_studies.report.sections import Chart, Code, Interval, ReportPage, ReportTable


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
    """Carry out a study: train what it compares, measure, and write a report to look at.

    Stopped and called again, it goes on; what is done is not done again. Several calls may work in one folder.

    Args:
        name: of the study; `adlm experiment list` prints what there is.
        scale: nano (minutes a model on one core), small (an hour or two) or paper (a cluster).
        seeds: of everything that is trained; intervals need 2 or more.
        out: where models, results.json and report.html go; by default runs/NAME.
        jobs: processes that share the work, with one thread each where there are several.
        plan: only say what there is to do, write each run to a file and give the commands that train it elsewhere.
        set: a field of the study, as in --set corpora='["kjv"]'.
    """
    if name == "list":
        _list()
        return
    if jobs < 1:
        raise ConfigError(f"asked for --jobs {jobs}", "fewer than 1", "give 1 or more")
    study = with_changes(study_of(name, scale=scale, seeds=seeds), set)
    root = out or Path("runs") / name
    if plan:
        _plan(study, root)
        return
    began = time.perf_counter()
    words = [name, "--scale", scale, "--seeds", str(seeds), "--out", str(root)]
    words += [word for change in set for word in ("--set", change)]
    if jobs > 1:
        torch.set_num_threads(1)
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(words, root, number)) for number in range(1, jobs)]
        carry_out(study, root, around=shown)
        failed = [worker for worker in workers if worker.wait()]
    found = carry_out(study, root, around=shown)  # what waited for work of another process
    if failed and len(found) < len(study.steps()):
        raise TrainingError(
            f"asked for the study {name} with {jobs} jobs",
            f"{len(failed)} of them stopped early: see {root}/worker-*.log",
            "put that right and run the same command again: what is done stays",
        )
    report = study.report(found)
    write_all(study, root, found, report, ["adlm", "experiment", *words])
    for section in report.sections:
        if isinstance(section, ReportTable):
            console().print(printed(section))
    left = len(study.steps()) - len(found)
    state = f"{left} steps are with other processes. " if left else ""
    minutes = (time.perf_counter() - began) / 60
    console().print(f"{state}{minutes:.1f} minutes. {root}/{REPORT} shows it all.", highlight=False, soft_wrap=True)


def _list() -> None:
    from adlm_studies.experiments.named import STUDIES

    table = Printed("study", "asks")
    for name, study in STUDIES.items():
        table.add_row(name, study.question)
    console().print(table)


@contextmanager
def shown(step: StudyStep, done: int, count: int) -> Iterator[Callback]:
    total = step.work.run.train.steps if isinstance(step.work, Train) else None
    with bar(f"{done + 1}/{count} {step.name}", total) as view:
        yield TrainingBar(view) if total else BarMessages(view)
        view.note = "done"


@contextmanager
def _worker(words: list[str], root: Path, number: int) -> Iterator[subprocess.Popen[bytes]]:
    """Another process in the same folder. Whatever ends this one ends it too."""
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


def _plan(study: Study, root: Path) -> None:
    """What there is to do, and how to have it done by other machines: a step that finds its model trained goes on."""
    table = Printed("step", "parameters", "TFLOP", "state")
    commands = []
    steps = study.steps()
    described = descriptions(steps)
    for step in steps:
        state = "to do" if stored_result(root, step.name, described[step.name]) is None else "done"
        if not isinstance(step.work, Train):
            table.add_row(step.name, "", "", state)
            continue
        run = step.work.run
        what = summary(run)
        table.add_row(step.name, f"{what.parameters.total / 1e6:.2f} M", f"{what.all_work / 1e12:,.0f}", state)
        file = root / "plan" / f"{step.name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(to_json(run), indent=1) + "\n")
        if state == "to do":
            commands.append(f"adlm train {file} --out {root / step.name}")
    console().print(table)
    console().print(*commands, sep="\n", highlight=False, soft_wrap=True)


def write_all(study: Study, root: Path, found: Sequence[StepOutcome], report: ReportPage, words: Sequence[str]) -> None:
    """The results, the charts and the page. `words` repeat it all."""
    write_results(study, root, found)
    for number, chart in enumerate(section for section in report.sections if isinstance(section, Chart)):
        save_svg(chart, root / f"chart-{number + 1}.svg")
    settings = json.dumps(to_json(study), indent=1)
    more = (
        Code("To repeat it", "", shlex.join(words)),
        Code("Settings", "Every run is in results.json.", settings, folded=True),
    )
    write_report(ReportPage(report.title, report.lead, [*report.sections, *more]), root / REPORT)


def printed(section: ReportTable) -> Printed:
    """For a terminal."""
    table = Printed(*section.columns, title=section.title, caption=section.note)
    for row in section.rows:
        table.add_row(*("" if cell is None else _text(cell) for cell in row))
    return table


def _text(cell: Interval | str | float) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
