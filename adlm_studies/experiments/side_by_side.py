"""The steps of a study side by side, each in a process with one thread."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from adlm.errors import AdlmError, Interrupted
from adlm.train.callbacks import Callback
from adlm.train.metrics import StepMetrics, ValidationMetrics
from adlm_studies.experiments.study import (
    DATA,
    StepCallbacks,
    StepContext,
    StepOutcome,
    Study,
    StudyStep,
    check_steps,
    claimed_step,
    descriptions,
    execute_step,
    finished_outcomes,
    no_callbacks,
    run_study,
    step_file,
    stored_result,
)
from adlm_studies.jobs import JobWatcher, default_workers, run_jobs
from adlm_studies.worker_processes import ProcessJob


def run_side_by_side(
    study: Study,
    root: Path,
    *,
    jobs: int | None = None,
    cache: Path | None = None,
    callbacks: StepCallbacks = no_callbacks,
) -> list[StepOutcome]:
    """`run_study`, with several steps at once. If one fails, those that do not need it are run all the same.

    What a step writes to its output is in FOLDER/steps/NAME.log. Steps that measure time run alone.

    Args:
        jobs: steps at once, by default as many as there are cores, or one with a GPU. 1: in this process, all threads.
    """
    jobs = jobs or default_workers()
    if jobs == 1:
        return run_study(study, root, cache=cache, callbacks=callbacks)
    steps = study.steps()
    check_steps(steps)
    described = descriptions(steps)
    left = {step.name: step for step in steps if stored_result(root, step.name, described[step.name]) is None}
    work = [
        ProcessJob(
            step.name,
            _carry_out,
            (step, {name: described[name] for name in (step.name, *step.needs)}, root, cache or root / DATA),
            needs=tuple(need for need in step.needs if need in left),
            cost=step.work.cost,
            alone=step.work.alone,
            log=step_file(root, step.name, ".log"),
        )
        for step in left.values()
    ]
    with _StepWatcher(left, len(steps), callbacks) as watcher:
        run_jobs(work, workers=jobs, watcher=watcher)
    return finished_outcomes(study, root)


def _carry_out(
    tell: Callable[[tuple[str, Any]], None],
    step: StudyStep,
    described: Mapping[str, Mapping[str, Any]],
    root: Path,
    cache: Path,
) -> None:
    """Run a step, unless another process holds it or one that it needs."""
    with claimed_step(root, [step]) as held:
        unfinished = {name for name, each in described.items() if stored_result(root, name, each) is None}
        if held is not None and unfinished == {step.name}:
            execute_step(step, described[step.name], StepContext(root, step.name, cache, _TellCallback(tell)))


class _TellCallback(Callback):
    """Hands what a training run reports to the process that shows it; messages are in the log too."""

    def __init__(self, tell: Callable[[tuple[str, Any]], None]) -> None:
        self.tell = tell

    def on_step(self, metrics: StepMetrics) -> None:
        self.tell(("on_step", metrics))

    def on_validation(self, metrics: ValidationMetrics) -> None:
        self.tell(("on_validation", metrics))

    def log(self, message: str) -> None:
        print(message, flush=True)
        self.tell(("log", message))


class _StepWatcher(JobWatcher):
    """Calls the callbacks of each step with what its process tells."""

    def __init__(self, steps: Mapping[str, StudyStep], count: int, callbacks: StepCallbacks) -> None:
        self.steps, self.count, self.callbacks = steps, count, callbacks
        self.begun = count - len(steps)
        self.shown: dict[str, tuple[ExitStack, Callback]] = {}

    def __enter__(self) -> "_StepWatcher":
        return self

    def __exit__(self, *error: Any) -> None:
        for stack, _ in self.shown.values():
            stack.__exit__(*error)

    def on_start(self, job: ProcessJob) -> None:
        stack = ExitStack()
        callback = stack.enter_context(self.callbacks(self.steps[job.name], self.begun, self.count))
        self.begun += 1
        self.shown[job.name] = stack, callback

    def on_event(self, job: ProcessJob, event: tuple[str, Any]) -> None:
        method, content = event
        getattr(self.shown[job.name][1], method)(content)

    def on_end(self, job: ProcessJob, error: AdlmError | None) -> None:
        stack, callback = self.shown.pop(job.name)
        if error is None:
            stack.close()
            return
        if not isinstance(error, Interrupted):
            callback.log(f"failed: {error}")
        stack.__exit__(type(error), error, None)
