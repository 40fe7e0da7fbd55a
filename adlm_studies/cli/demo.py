"""`adlm demo`: train and compare four models in minutes."""

import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.panel import Panel
from rich.text import Text

from adlm.cli.progress import console
from adlm.data.catalog import open_source
from adlm.errors import OutOfRange
from adlm_studies.cli.experiment import print_tables, step_progress
from adlm_studies.experiments.demo import STEPS, Demo
from adlm_studies.experiments.demo_report import next_commands
from adlm_studies.experiments.output import write_study
from adlm_studies.experiments.side_by_side import run_side_by_side
from adlm_studies.experiments.study import REPORT
from adlm_studies.experiments.training import splits_of
from adlm_studies.report.sections import ReportTable, Texts


def command(
    *,
    corpus: str = "stories",
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    out: Path = Path("runs/demo"),
    steps: int | None = None,
    samples: int = 3,
    seed: int = 0,
    jobs: int | None = None,
) -> None:
    """Train AR, MDLM, ADLM, and ADLM in blocks started from AR; score them, write samples and a report.

    Args:
        corpus: stories (generated; its exact entropy is known), kjv, pydocs, pycode, or a file, folder or glob.
        quick: a tenth of the training: about a minute, with worse samples.
        out: where models, prepared data, results.json and report.html go.
        steps: training steps of AR; the other models train in proportion.
        samples: texts to print for each model.
        seed: seed of data order, noise and samples.
        jobs: models to train side by side, each in a process with one thread; by default as many as there are cores, or
            one with a GPU. 1: one after the other, with all threads.
    """
    for name, value in (("--steps", steps), ("--samples", samples), ("--jobs", jobs)):
        if value is not None and value < 1:
            raise OutOfRange(name, value, "1 or more")
    splits_of(open_source(corpus))  # refuses text of which nothing is held out, before any process is started
    began = time.perf_counter()
    words = ["adlm", "demo", "--corpus", corpus, "--seed", str(seed)]
    words += [*(["--quick"] if quick else []), *(["--steps", str(steps)] if steps else [])]
    study = Demo(corpus=corpus, training_steps=steps or 0, shown=samples, seed=seed)
    if quick:
        study = replace(study, training_steps=steps or STEPS["ar"] // 10, rows=100, texts=20)
    with step_progress() as callbacks:
        found = run_side_by_side(study, out, jobs=jobs, callbacks=callbacks)
    report = write_study(study, out, found, words)
    for section in report.sections:
        if isinstance(section, ReportTable):
            print_tables([section])
        elif isinstance(section, Texts):
            _print_texts(section)
    minutes = (time.perf_counter() - began) / 60
    _print(report.lead, f"\n{minutes:.1f} minutes. The page is {out / REPORT}: open it in a browser. Next, try:")
    _print(*(f"  {line}" for line in next_commands(_program(), out, corpus, found)))


def _program() -> str:
    """How to call `adlm` from here: in an environment that is not activated, by the path that was used."""
    if shutil.which("adlm"):
        return "adlm"
    called = Path(sys.argv[0])
    return str(called) if called.stem == "adlm" and called.is_file() else f"{sys.executable} -m adlm"


def _print(*lines: str) -> None:
    for line in lines:
        console().print(line, highlight=False, markup=False, soft_wrap=True)


def _print_texts(section: Texts) -> None:
    for name in dict.fromkeys(heading for heading, _ in section.texts):
        texts = [text for heading, text in section.texts if heading == name]
        console().print(Panel(Text("\n\n".join(texts)), title=name, title_align="left"))
