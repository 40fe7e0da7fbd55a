"""Progress bars, the same for every long job."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from adlm.train.callbacks import Callback

if TYPE_CHECKING:
    from adlm.train.metrics import StepMetrics, ValidationMetrics  # torch: `adlm prepare` does without


@cache
def console() -> Console:
    """The console of all commands."""
    return Console()


class _TimeLeft(ProgressColumn):
    """The time left as the job reports it, or as its pace so far suggests."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining if task.fields["left"] is None else task.fields["left"]
        return Text("" if left is None else f"{_clock(left)} left", style="cyan")


@contextmanager
def bar(label: str, total: int | None) -> Iterator["Bar"]:
    """A bar with a label, a count, a note and the time left. When output is piped, one plain line at the end."""
    with _progress() as progress, _shown(Bar(progress, label, total)) as view:
        yield view


@contextmanager
def bars() -> Iterator[Callable[[str, int | None], AbstractContextManager["Bar"]]]:
    """Several bars at the same time, one line each: yields a function that shows one, as `bar` does."""
    with _progress() as progress:
        yield lambda label, total: _shown(Bar(progress, label, total, one_of_several=True))


def _progress() -> Progress:
    wide = console().width >= 140
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24 if wide else 8),
        # The note takes the room the others leave, and is cut at its end.
        TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        *([TimeElapsedColumn(Column(no_wrap=True))] if wide else []),
        _TimeLeft(Column(no_wrap=True)),
    )
    return Progress(*columns, console=console(), transient=True, expand=True, disable=not console().is_terminal)


@contextmanager
def _shown(view: "Bar") -> Iterator["Bar"]:
    try:
        yield view
        view.print(f"{view.label:<10} {view.note}")
    finally:
        view.progress.remove_task(view.task)


class Bar:
    """A progress bar that is being shown."""

    def __init__(self, progress: Progress, label: str, total: int | None, *, one_of_several: bool = False) -> None:
        self.progress, self.label, self.note = progress, label, ""
        self.task = progress.add_task(f"{label:<10}", total=total, note="", left=None)
        self.one_of_several = one_of_several

    def update(self, completed: int | None, note: str, left: float | None = None) -> None:
        """Show a note, how much is done if that has changed, and the seconds left if they are known."""
        self.note = note
        self.progress.update(self.task, completed=completed, note=note, left=left)

    def message(self, line: str) -> None:
        """A line that stays, with the label if there are bars to confuse this one with."""
        self.print(f"{self.label:<10} {line}" if self.one_of_several else line)

    def print(self, line: str) -> None:
        """A line that stays, above the bar."""
        self.progress.console.print(line, highlight=False, markup=False, soft_wrap=True)


class BarMessages(Callback):
    """Prints the messages of a run above a bar."""

    def __init__(self, view: Bar) -> None:
        self.view = view

    def log(self, message: str) -> None:
        self.view.message(message)


class TrainingBar(BarMessages):
    """Shows a training run: loss and bound smoothed over about 20 steps, tokens per second, memory, the time left.

    When output is piped, it prints a plain line at each tenth of the run and each minute, later every ten minutes.
    """

    def __init__(self, view: Bar) -> None:
        super().__init__(view)
        self.loss, self.bound = _Smooth(), _Smooth()
        self.tenth, self.printed = -1, 0.0

    def on_step(self, metrics: "StepMetrics") -> None:
        loss, bound = self.loss(metrics.loss), self.bound(metrics.bound)
        parts = [
            f"step {metrics.step:,}/{metrics.steps:,}",
            f"loss {loss:.3f}",
            "" if math.isnan(bound) else f"bound {bound:.3f}",
            f"{metrics.speed:,.0f} tokens/s",
            f"{metrics.skipped} skipped" if metrics.skipped else "",
            f"{metrics.memory / 1e9:.1f} GB",
        ]
        note, left = "  ".join(filter(None, parts)), self._left(metrics)
        self.view.update(metrics.step, note, left)
        if self.view.progress.disable and self._is_due(metrics):
            self.view.print(f"{self.view.label:<10} {note}  {'' if left is None else f'{_clock(left)} left'}".rstrip())

    def on_validation(self, metrics: "ValidationMetrics") -> None:
        """Print a line above the bar."""
        nats, best = metrics.nats, " (best)" if metrics.best else ""
        error = f" ± {nats.error:.3f}" if math.isfinite(nats.error) else ""
        self.view.message(f"validation at step {metrics.step:,}: {nats.mean:.3f}{error} nats per token{best}")
        for text in metrics.samples:
            self.view.print(f"  {' '.join(text.split())}")

    def _left(self, metrics: "StepMetrics") -> float | None:
        """Seconds left at the speed of recent steps."""
        if not (metrics.speed > 0 and metrics.step):
            return None
        return (metrics.steps - metrics.step) * metrics.tokens / metrics.step / metrics.speed

    def _is_due(self, metrics: "StepMetrics") -> bool:
        tenth, pause = 10 * metrics.step // metrics.steps, min(600.0, max(60.0, metrics.seconds / 20))
        if tenth == self.tenth and metrics.seconds - self.printed < pause:
            return False
        self.tenth, self.printed = tenth, metrics.seconds
        return True


class _Smooth:
    """A running mean over about 20 values; values that are not finite are left out."""

    def __init__(self) -> None:
        self.mean, self.count = math.nan, 0

    def __call__(self, value: float) -> float:
        if math.isfinite(value):
            self.count += 1
            self.mean = value if self.count == 1 else self.mean + max(0.05, 1 / self.count) * (value - self.mean)
        return self.mean


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
