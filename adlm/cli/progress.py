"""Progress bars, the same for every long job."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from adlm.train.trainer import Report  # torch: `adlm prepare` does without


@cache
def console() -> Console:
    return Console()


class _TimeLeft(ProgressColumn):
    def render(self, task: Task) -> Text:
        left = task.time_remaining
        return Text("" if left is None else f"{int(left) // 60}:{int(left) % 60:02d} left", style="cyan")


@contextmanager
def bar(label: str, total: int | None) -> Iterator["Bar"]:
    """A bar with a label, a count, a note and the time left. When output is piped, one plain line at the end."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        _TimeLeft(),
    )
    with Progress(*columns, console=console(), transient=True, disable=not console().is_terminal) as progress:
        view = Bar(progress, progress.add_task(f"{label:<10}", total=total, note=""))
        yield view
    console().print(f"{label:<10} {view.note}", highlight=False)


class Bar:
    def __init__(self, progress: Progress, task: int) -> None:
        self.progress, self.task, self.note = progress, task, ""

    def update(self, completed: int | None, note: str) -> None:
        """Show a note, and how much is done if that has changed."""
        self.note = note
        self.progress.update(self.task, completed=completed, note=note)  # type: ignore[arg-type]


class TrainingBar:
    """Shows a training run: step, loss and bound smoothed over about 20 steps, tokens a second."""

    def __init__(self, view: Bar, steps: int) -> None:
        self.view, self.steps = view, steps
        self.loss = self.bound = self.tokens = 0.0

    def __call__(self, report: "Report") -> None:
        share = max(0.05, 1 / (report.step + 1))
        self.loss += share * (report.loss - self.loss)
        self.bound += share * (report.bound - self.bound)
        self.tokens += report.tokens
        speed = self.tokens / report.seconds
        note = (
            f"step {report.step + 1:>5}/{self.steps}  loss {self.loss:6.3f}  bound {self.bound:6.3f} nats/token"
            f"  {speed:,.0f} tokens/s"
        )
        self.view.update(report.step + 1, note)
