"""What a text answers, and how sure one can be of a fraction of right answers, or of the difference of two.

Intervals are closed forms: Wilson's (1927) of a fraction; Bonett and Price's (2012) of the difference of two fractions
that were measured on the same problems. McNemar's test is the exact one.
"""

import math
import re
from abc import ABC
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

from adlm.errors import ConfigError
from adlm_studies.reasoning.problem import Problem, Task

_Z = 1.959963984540054  # the normal law has 95 % within
# A minus after a digit, a letter or a bracket takes something away or joins two words; it is no sign.
_SIGN = r"(?:(?<![0-9.)\]%a-zA-Z])([-−])\$?)?"
_NUMBER = re.compile(_SIGN + r"((?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)")
_TRUTH = re.compile(r"\b(true|false)\b", re.IGNORECASE)


class NumberAnswers(Task, ABC):
    """A task whose answers are numbers."""

    def parse_answer(self, text: str) -> str | None:
        return number_in(text)

    def is_correct(self, found: str | None, problem: Problem) -> bool:
        return same_number(found, problem.answer)


def number_in(text: str) -> str | None:
    """The first number after `####`; where there is no such mark, the last number. "-$1,234.50" is given as -1234.50.

    A percent sign or a unit after it does not count. Where nothing follows the mark, nothing was answered.
    """
    _, mark, after = text.partition("####")
    found = [*_NUMBER.finditer(after if mark else text)]
    if not found:
        return None
    sign, digits = (found[0] if mark else found[-1]).groups()
    return ("-" if sign else "") + digits.replace(",", "")


def same_number(first: str | None, second: str) -> bool:
    """Whether two numbers as `number_in` gives them are equal as decimals: "18.0" is "18", "0.1" is ".1"."""
    return first is not None and Decimal(first) == Decimal(second)


def truth_in(text: str) -> str | None:
    """The last "True" or "False" of a text."""
    found = _TRUTH.findall(text)
    return found[-1].capitalize() if found else None


def last_sentence(text: str) -> str | None:
    """The last sentence, with one full stop, single spaces and no marks before it."""
    sentences = [" ".join(part.split()).lstrip("# ") for part in text.split(".")]
    kept = [sentence for sentence in sentences if sentence]
    return f"{kept[-1]}." if kept else None


class Accuracy(NamedTuple):
    """The number of problems that were answered correctly, out of how many."""

    correct: int
    count: int  # type: ignore[assignment] # a tuple's method of that name is of no use here

    @property
    def fraction(self) -> float:
        return self.correct / self.count if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval: all p with |fraction - p| <= z sqrt(p (1 - p) / count). No problems tell nothing."""
        if not self.count:
            return 0.0, 1.0
        n, fraction, z = self.count, self.fraction, _Z
        middle = (fraction + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(fraction * (1 - fraction) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        low = max(0.0, middle - half) if self.correct else 0.0
        return low, min(1.0, middle + half) if self.correct < n else 1.0


class PairedOutcomes(NamedTuple):
    """Two methods on the same problems: how many both got right, one alone, or neither."""

    both: int
    first: int
    second: int
    neither: int

    @property
    def difference(self) -> float:
        """Fraction of the first minus fraction of the second."""
        return (self.first - self.second) / sum(self) if sum(self) else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the difference: the normal one after one problem more was given to each method alone."""
        count = sum(self) + 2
        one, two = (self.first + 1) / count, (self.second + 1) / count
        half = _Z * math.sqrt((one + two - (one - two) ** 2) / count)
        return max(-1.0, one - two - half), min(1.0, one - two + half)

    @property
    def p(self) -> float:
        """McNemar's exact test, two-sided: is what one got right alone as often the first's as the second's?"""
        alone = self.first + self.second
        tail = sum(math.comb(alone, k) for k in range(min(self.first, self.second) + 1))
        return min(1.0, 2 * tail / 2**alone)


def marks(task: Task, texts: Sequence[str], problems: Sequence[Problem]) -> list[bool]:
    """Which of some writings answer their problem."""
    _same_length(texts, problems, "texts", "problems")
    return [task.is_correct(task.parse_answer(text), problem) for text, problem in zip(texts, problems, strict=True)]


def accuracy(right: Sequence[bool]) -> Accuracy:
    """The accuracy of a list of right and wrong answers."""
    return Accuracy(sum(right), len(right))


def paired(first: Sequence[bool], second: Sequence[bool]) -> PairedOutcomes:
    """Two lists of marks for the same problems in the same order, compared."""
    _same_length(first, second, "marks of the first", "of the second")
    pairs = [*zip(first, second, strict=True)]
    return PairedOutcomes(*(pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))))


def _same_length(first: Sequence[object], second: Sequence[object], one: str, other: str) -> None:
    if len(first) != len(second):
        found = f"{len(first)} {one} and {len(second)} {other}"
        raise ConfigError(f"one answer per problem is needed, got {found}", subject=one)
