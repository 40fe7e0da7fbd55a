import io
import math
import re
import subprocess
import sys

import pytest
from rich.console import Console

from adlm.cli import progress
from adlm.cli.progress import TrainingBar, bar, bars
from adlm.train.metrics import StepMetrics, ValidationMetrics
from adlm.types import Estimate


def report(step: int, steps: int = 1000, **changes) -> StepMetrics:
    """A thousand tokens per step, one step a second."""
    whole = StepMetrics(step, steps, 3.0, 2.5, 1.0, 1e-3, 1000 * step, float(step), 1000.0, 2 * 10**9, 0)
    return whole._replace(**changes)


@pytest.fixture
def screen(monkeypatch):
    """Makes a console that is a terminal of some width, or a pipe; returns what was written to it."""

    def make(width: int | None) -> io.StringIO:
        written = io.StringIO()
        console = Console(file=written, force_terminal=width is not None, width=width or 80, color_system=None)
        monkeypatch.setattr(progress, "console", lambda: console)
        return written

    return make


def shown(view) -> str:
    """The bar as it stands."""
    console = Console(file=io.StringIO(), width=view.progress.console.width, color_system=None)
    console.print(view.progress.get_renderable())
    return console.file.getvalue()


def test_a_step_shows_loss_bound_speed_memory_and_the_time_left(screen):
    screen(160)
    with bar("tiny", 1000) as view:
        TrainingBar(view).on_step(report(400))
        line = shown(view)
    for part in ("step 400/1,000", "loss 3.000", "bound 2.500", "1,000 tokens/s", "2.0 GB", "10:00 left"):
        assert part in line
    assert "skipped" not in line


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_the_bar_is_one_line_that_ends_with_the_time_left_at_any_width(screen, width):
    screen(width)
    with bar("adlm-stories", 10**6) as view:
        TrainingBar(view).on_step(report(123_456, 10**6, skipped=12, speed=10**6))
        line = shown(view)
    assert line.count("\n") == 1
    assert "step 123,456/1,000,000" in line
    assert line.rstrip().endswith("14:36 left")


def test_the_time_left_after_a_resumption_goes_by_the_present_speed(screen):
    screen(160)
    with bar("tiny", 1000) as view:
        train = TrainingBar(view)
        train.on_step(report(901, seconds=0.1, speed=100.0))
        assert "16:30 left" in shown(view)  # 99 steps of 1,000 tokens
        train.on_step(report(902, seconds=0.2, speed=50_000.0))
        assert "0:01 left" in shown(view)


def test_long_times_are_told_in_hours(screen):
    screen(160)
    with bar("tiny", 10**6) as view:
        TrainingBar(view).on_step(report(1, 10**6))
        assert "277:46:39 left" in shown(view)


def test_the_first_loss_after_a_resumption_is_shown_as_it_is(screen):
    screen(160)
    with bar("tiny", 1000) as view:
        train = TrainingBar(view)
        train.on_step(report(900, loss=7.0, bound=6.0))
        assert "loss 7.000  bound 6.000" in shown(view)
        for step in range(901, 1000):
            train.on_step(report(step, loss=3.0, bound=2.0))
        assert re.search(r"loss 3\.0\d\d  bound 2\.0\d\d", shown(view))


def test_numbers_that_are_not_finite_do_not_spoil_the_ones_that_are(screen):
    screen(160)
    with bar("tiny", 1000) as view:
        train = TrainingBar(view)
        train.on_step(report(1, bound=math.nan))
        assert "bound" not in shown(view)
        train.on_step(report(2, loss=math.inf, skipped=1))
        assert "loss 3.000  bound 2.500" in shown(view)
        assert "1 skipped" in shown(view)


def test_an_unknown_speed_shows_no_time(screen):
    screen(160)
    with bar("tiny", 1000) as view:
        TrainingBar(view).on_step(report(1, speed=0.0))
        assert "left" not in shown(view)


@pytest.mark.parametrize("width", [None, 100])
def test_a_validation_is_a_line_that_stays(screen, width):
    written = screen(width)
    with bar("tiny", 1000) as view:
        train = TrainingBar(view)
        train.on_step(report(500))
        train.on_validation(ValidationMetrics(500, Estimate(3.2144, 0.012, 4), 24.9, True, 1.0))
        train.on_validation(ValidationMetrics(600, Estimate(3.3, math.nan, 4), 27.1, False, 1.0))
    lines = [re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]|\r", "", line).strip() for line in written.getvalue().splitlines()]
    assert "validation at step 500: 3.214 ± 0.012 nats per token (best)" in lines
    assert "validation at step 600: 3.300 nats per token" in lines


def piped_lines(written: io.StringIO) -> list[str]:
    return [line for line in written.getvalue().splitlines() if " left" in line]


def test_piped_output_has_a_line_at_the_beginning_and_at_each_tenth(screen):
    written = screen(None)
    with bar("tiny", 1000) as view:
        train = TrainingBar(view)
        for step in range(1, 1001):
            train.on_step(report(step, seconds=step / 100))
    steps = [int(re.search(r"step ([\d,]+)/", line)[1].replace(",", "")) for line in piped_lines(written)]
    assert steps == [1, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]
    assert piped_lines(written)[1] == (
        "tiny       step 100/1,000  loss 3.000  bound 2.500  1,000 tokens/s  2.0 GB  15:00 left"
    )
    assert "\x1b" not in written.getvalue()


def test_piped_output_of_a_slow_run_has_a_line_a_minute_and_of_a_long_one_hundreds(screen):
    written = screen(None)
    with bar("tiny", 10**6) as view:
        train = TrainingBar(view)
        for step in range(1, 20 * 60 + 1):
            train.on_step(report(step, 10**6))
        assert 19 <= len(piped_lines(written)) <= 21
        for step in range(20 * 60, 3 * 86_400, 5):  # three days
            train.on_step(report(step, 10**6))
    assert len(piped_lines(written)) < 600


def test_progress_bars_do_without_torch():
    program = "import sys, adlm.cli.progress; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("width", [None, 100])
def test_of_several_bars_each_has_a_line_and_messages_say_whose_they_are(screen, width):
    written = screen(width)
    with bars() as show:
        with show("one", 1000) as one, show("two", None) as two:
            TrainingBar(one).on_step(report(400))
            TrainingBar(one).log("slow")
            two.update(None, "almost")
            if width:
                assert [line.split()[1] for line in shown(one).splitlines()] == ["one", "two"]
        with show("three", None) as three:
            three.note = "done"
            if width:
                assert [line.split()[1] for line in shown(three).splitlines()] == ["three"]
    lines = [re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]|\r", "", line).strip() for line in written.getvalue().splitlines()]
    for line in ("one        slow", "two        almost", "three      done"):
        assert line in lines
