"""Independent jobs side by side: each in a process with one thread, as many at once as there are cores.

Threads that share the small operations of a small model mostly wait for each other: two runs of one thread each are
much faster than two runs in turn with two threads. The figures of a job are those of the job run alone with one thread.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adlm.distributed import device_for
from adlm.errors import AdlmError, ConfigError, Interrupted, JobsFailed, OutOfRange
from adlm.train.stop_signal import stop_signal
from adlm_studies.worker_processes import ProcessJob, UnexpectedError, WorkerPool, pickled


class JobWatcher:
    """Follows the jobs, in the process that runs them. Override the methods you need."""

    def on_start(self, job: ProcessJob) -> None:
        """Called when a job is started."""

    def on_event(self, job: ProcessJob, event: Any) -> None:
        """Called with what the job tells."""

    def on_end(self, job: ProcessJob, error: AdlmError | None) -> None:
        """Called when a job has ended."""


def default_workers() -> int:
    """The number of cores that this process may use; 1 if there is a GPU, or if torchrun started several processes."""
    if device_for("auto").type != "cpu" or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    jobs: Sequence[ProcessJob], *, workers: int | None = None, watcher: JobWatcher | None = None
) -> dict[str, Any]:
    """Run all jobs; returns their values by name.

    If a job fails, the others finish, except those that need it; then an error is raised: `JobsFailed`, or the jobs'
    own if all failed with the same one. Ctrl-C and SIGTERM stop all jobs as they stop a training run, which saves, and
    raise `Interrupted`; a second Ctrl-C stops at once.

    Args:
        jobs: those that a job needs come before it.
        workers: jobs at once, by default `default_workers()`. Several have one thread each. The last jobs are started
            together, up to twice as many, and share the cores: three jobs on two cores take one and a half times as
            long as one, not twice.
    """
    _check(jobs)
    if workers is not None and workers < 1:
        raise OutOfRange("workers", workers, "1 or more")
    count = workers or default_workers()
    watcher, queue, told = watcher or JobWatcher(), _Queue(jobs), False
    with stop_signal() as stopped_by, WorkerPool(one_thread=count > 1) as pool:
        while True:
            if stopped_by() and not told:
                told = True
                pool.terminate()
            while not stopped_by() and (job := queue.take(pool.running, count)):
                pool.start(job)
                watcher.on_start(job)
            if not pool.running:
                break
            for job, kind, content in pool.messages():
                if kind == "event":
                    watcher.on_event(job, content)
                else:
                    error = content if kind == "error" else None
                    queue.end(job, content, error)
                    watcher.on_end(job, error)
    if number := stopped_by():
        raise Interrupted(
            "the work was interrupted",
            f"{len(queue.values)} of {len(jobs)} jobs are finished",
            "run the same command again to resume",
            number,
        )
    if queue.errors:
        raise _failure(queue, {job.name: job.log for job in jobs})
    return {job.name: queue.values[job.name] for job in jobs}


def _check(jobs: Sequence[ProcessJob]) -> None:
    """Refuse what cannot be run before anything is."""
    seen: set[str] = set()
    for job in jobs:
        missing = [need for need in job.needs if need not in seen]
        if job.name in seen or missing:
            found = f"is not preceded by {', '.join(missing)}" if missing else "is there twice"
            raise ConfigError(f"the job {job.name} {found}", subject=job.name)
        try:
            pickled(job)
        except Exception as error:
            fix = "give it functions and classes that a module defines at its top level"
            raise ConfigError(
                f"the job {job.name} cannot be sent to another process: {error}; {fix}", subject=job.name
            ) from error
        seen.add(job.name)


def _failure(queue: "_Queue", logs: Mapping[str, Path | None]) -> AdlmError:
    """One error for all that failed."""
    errors = queue.errors
    first = next(iter(errors.values()))
    if not isinstance(first, UnexpectedError) and len({(type(error), str(error)) for error in errors.values()}) == 1:
        return first
    left_out = f"; {', '.join(queue.left_out)} not run" if queue.left_out else ""
    files = ", ".join(str(log) for name in errors if (log := logs[name]))
    return JobsFailed(
        f"{len(errors)} of {len(logs)} jobs failed{left_out}",
        "\n    ".join(f"{name}: {error}" for name, error in errors.items()),
        f"{'see ' if files else ''}{files}{'; ' if files else ''}run the same command again: finished work is kept",
        errors=errors,
        values=queue.values,
    )


class _Queue:
    """Which job is next: of those whose needs are met, the one at the head of the longest chain of work."""

    def __init__(self, jobs: Sequence[ProcessJob]) -> None:
        self.values: dict[str, Any] = {}
        self.errors: dict[str, AdlmError] = {}
        self.left_out: list[str] = []
        chain: dict[str, float] = {}
        for job in reversed(jobs):
            chain[job.name] = job.cost + max((chain[each.name] for each in jobs if job.name in each.needs), default=0)
        self.waiting = sorted(jobs, key=lambda job: -chain[job.name])

    def take(self, running: Sequence[ProcessJob], workers: int) -> ProcessJob | None:
        """The next job that may run beside those that are running."""
        if any(job.alone for job in running) or (len(running) >= workers and not self._are_last(running, workers)):
            return None
        ready = [job for job in self.waiting if self._is_ready(job)]
        together = [job for job in ready if not job.alone]
        job = next(iter(together if together or running else ready), None)
        if job is not None:
            self.waiting.remove(job)
        return job

    def _is_ready(self, job: ProcessJob) -> bool:
        return self.values.keys() >= set(job.needs)

    def _are_last(self, running: Sequence[ProcessJob], workers: int) -> bool:
        """Whether all that is left is less than two jobs of the longest kind for each worker, and nothing of weight
        waits for another job, which sharing a core would slow down."""
        if workers == 1 or len(running) >= 2 * workers:
            return False
        if any(job.cost > 0 and not self._is_ready(job) for job in self.waiting):
            return False
        costs = [job.cost for job in (*running, *self.waiting)]
        return sum(costs) < 2 * workers * max(costs)

    def end(self, job: ProcessJob, value: Any, error: AdlmError | None) -> None:
        """Keep what came of a job; what needs a job that failed is left out."""
        if error is None:
            self.values[job.name] = value
            return
        self.errors[job.name] = error
        lost = {job.name}
        for other in self.waiting:  # in an order in which nothing precedes what it needs
            if lost.intersection(other.needs):
                lost.add(other.name)
        self.left_out += [other.name for other in self.waiting if other.name in lost]
        self.waiting = [other for other in self.waiting if other.name not in lost]
