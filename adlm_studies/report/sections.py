"""What a report is made of: sections as values, which JSON can hold. How they look is decided in `page`."""

import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval; `low` and `high` are equal to it where nothing is known of its error.

    Args:
        bound: the truth is at most this.
        runs: independent runs it is the mean of.
    """

    value: float
    low: float
    high: float
    bound: bool = False
    runs: int = 1

    def __str__(self) -> str:
        sign = "≤ " if self.bound else ""
        half = (self.high - self.low) / 2
        if not math.isfinite(half) or half <= 0 or not math.isfinite(self.value):
            return f"{sign}{self.value:.4g}"
        positions = max(0, 1 - math.floor(math.log10(half)))
        return f"{sign}{self.value:.{positions}f} ± {half:.{positions}f}"


Cell = Interval | str | float | int | None


@dataclass(frozen=True)
class Section(ABC):
    """A section of a report.

    Args:
        title: a heading, in words a reader of the paper knows.
        note: a line or two below: how it was measured, what to see in it.
    """

    title: str
    note: str = ""


@dataclass(frozen=True)
class ReportTable(Section):
    """A table of a report.

    Args:
        best: for each column, whether the "low"est or "high"est figure is to be marked; "" marks none.
    """

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    best: Sequence[str] = ()


@dataclass(frozen=True)
class Series:
    """A line, or points where `line` is false. `low` and `high` span a band or bars; `labels` stand at points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    labels: Sequence[str] = ()
    line: bool = True

    @classmethod
    def of(cls, name: str, points: Sequence[tuple[float, Interval]], **rest: Any) -> "Series":
        """A series of figures with their intervals."""
        x, y = [x for x, _ in points], [y for _, y in points]
        return cls(name, x, [each.value for each in y], [each.low for each in y], [each.high for each in y], **rest)


@dataclass(frozen=True)
class Chart(Section):
    """A chart of a report.

    Args:
        levels: (name, y): level lines across, as an exact entropy.
    """

    x_label: str = ""
    y_label: str = ""
    series: Sequence[Series] = ()
    x_log: bool = False
    y_log: bool = False
    levels: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True)
class Texts(Section):
    """Sample texts in a report.

    Args:
        texts: (heading, text): samples beside each other.
    """

    texts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Frame:
    """One step of a recording: changes since the last one, by position.

    Args:
        tokens: (position, token, or None where it is masked again).
        predictions: (position, likeliest tokens of the anchor stage with their probabilities, those of the final
            stage) at positions that are masked after this step; a few decimals are enough.
    """

    tokens: Sequence[tuple[int, str | None]]
    predictions: Sequence[tuple[int, Sequence[tuple[str, float]], Sequence[tuple[str, float]]]] = ()


@dataclass(frozen=True)
class Player(Section):
    """Text as it appeared: a canvas of `length` masks to which frames are applied one after another.

    Args:
        given: positions that were there from the start, with their tokens.
        anchors: positions whose final token is an anchor by the model's rule.
    """

    name: str = ""
    length: int = 0
    given: Sequence[tuple[int, str]] = ()
    frames: Sequence[Frame] = ()
    anchors: Sequence[int] = ()


@dataclass(frozen=True)
class Code(Section):
    """Commands or a configuration, to copy. Long ones are folded."""

    text: str = ""
    folded: bool = False


@dataclass(frozen=True)
class ReportPage:
    """A report: a title, a summary and sections.

    Args:
        lead: what was asked and found, in a sentence or two.
    """

    title: str
    lead: str
    sections: Sequence[Section]
