"""Ways to answer a question: with no steps, with steps, with thoughts in their place or before them.

    NoChain     question                              answer
    Chain       question                       steps  answer
    Pause       question <pause> ...                  answer
    Implicit    question                   fewer steps  answer    (arXiv 2405.14838)
    Coconut     question <bot> thoughts <eot> later steps  answer (arXiv 2412.06769)
    Anchored    question <boa> anchors <eoa>   steps  answer      (ACoT, arXiv 2505.18456)

A method that changes as it is trained has stages, from plain steps to its final form. Thoughts are positions without a
token of their own: `Coconut` and `Anchored` read there the state of the place before.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from adlm.errors import OutOfRange, UnknownName
from adlm_studies.reasoning.problem import Problem

ANSWER = "#### "  # before every answer, as in GSM8K


class ChainLayout(NamedTuple):
    """A problem as it is written.

    Args:
        thoughts: positions between question and trace, as many for every problem of a stage.
        anchors: what each thought is to predict, as written in the trace; there may be fewer than thoughts.
        important: all that matters in the trace, as written there.
    """

    question: str
    thoughts: int
    anchors: tuple[str, ...]
    trace: str
    answer: str
    important: tuple[str, ...] = ()


class ThoughtTokens(NamedTuple):
    """The tokens around the thoughts and in position; "" where there is none."""

    begin: str = ""
    thought: str = ""
    end: str = ""


@dataclass(frozen=True)
class ReasoningMethod(ABC):
    """A way to answer a question, in one or more training stages."""

    name: ClassVar[str]
    fed: ClassVar[bool] = False  # a thought is read as the state of the place before
    special_tokens: ClassVar[ThoughtTokens] = ThoughtTokens()

    @property
    def stages(self) -> int:
        """The number of stages; the last has number `stages - 1`."""
        return 1

    def layout(self, problem: Problem, stage: int) -> ChainLayout:
        if not 0 <= stage < self.stages:
            raise OutOfRange("stage", stage, f"0 to {self.stages - 1}")
        return ChainLayout(
            problem.question.rstrip() + "\n",
            self.thoughts(stage),
            self._anchors(problem, stage),
            "".join(step + "\n" for step in self._steps(problem, stage)),
            ANSWER + problem.answer,
            as_written(problem),
        )

    def thoughts(self, stage: int) -> int:
        """Positions for thoughts in this stage, the same for all problems."""
        return 0

    def _anchors(self, problem: Problem, stage: int) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def _steps(self, problem: Problem, stage: int) -> Sequence[str]:
        """The steps that are written out."""


@dataclass(frozen=True)
class NoChain(ReasoningMethod):
    """Writes the answer at once."""

    name = "none"

    def _steps(self, problem: Problem, stage: int) -> Sequence[str]:
        return ()


@dataclass(frozen=True)
class Chain(ReasoningMethod):
    """Writes all steps, then the answer."""

    name = "chain"

    def _steps(self, problem: Problem, stage: int) -> Sequence[str]:
        return problem.steps


@dataclass(frozen=True)
class Pause(NoChain):
    """Writes the answer after tokens without content (arXiv 2310.02226)."""

    name = "pause"
    special_tokens = ThoughtTokens(thought="<pause>")

    count: int = 6

    def __post_init__(self) -> None:
        _check_counts(self, count=self.count)

    def thoughts(self, stage: int) -> int:
        return self.count


@dataclass(frozen=True)
class Implicit(ReasoningMethod):
    """Leaves out the first s steps in stage s, and all in the last stage.

    Args:
        steps: left out one by one before the rest goes at once.
    """

    name = "implicit"

    steps: int = 6

    def __post_init__(self) -> None:
        _check_counts(self, steps=self.steps)

    @property
    def stages(self) -> int:
        return self.steps + 2

    def _steps(self, problem: Problem, stage: int) -> Sequence[str]:
        return problem.steps[stage:] if stage <= self.steps else ()


@dataclass(frozen=True)
class Coconut(Implicit):
    """As `Implicit`, with thoughts in the place of each step that is left out, up to `steps` times as many.

    Problems with fewer steps get as many thoughts as the others.
    """

    name = "coconut"
    fed = True
    special_tokens = ThoughtTokens("<bot>", "<ant>", "<eot>")

    thoughts_per_step: int = 1

    def __post_init__(self) -> None:
        _check_counts(self, steps=self.steps, thoughts_per_step=self.thoughts_per_step)

    def thoughts(self, stage: int) -> int:
        return min(stage, self.steps) * self.thoughts_per_step


@dataclass(frozen=True)
class Anchored(ReasoningMethod):
    """Stage s has s thoughts, and the state after each learns to predict the next important token of the trace.

    A thought beyond the important tokens there are learns nothing by itself; a trace with none has thoughts all the
    same.

    Args:
        most: thoughts in the last stage.
        drop_steps: one step is left out for each thought.
    """

    name = "anchored"
    fed = True
    special_tokens = ThoughtTokens("<boa>", "<ant>", "<eoa>")

    most: int = 6
    drop_steps: bool = False

    def __post_init__(self) -> None:
        _check_counts(self, most=self.most)

    @property
    def stages(self) -> int:
        return self.most + 1

    def thoughts(self, stage: int) -> int:
        return stage

    def _anchors(self, problem: Problem, stage: int) -> tuple[str, ...]:
        return as_written(problem)[:stage]

    def _steps(self, problem: Problem, stage: int) -> Sequence[str]:
        return problem.steps[stage:] if self.drop_steps else problem.steps


METHODS: dict[str, type[ReasoningMethod]] = {
    kind.name: kind for kind in (NoChain, Chain, Pause, Implicit, Coconut, Anchored)
}


def find_method(name: str) -> type[ReasoningMethod]:
    """A method by its name."""
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]


def as_written(problem: Problem) -> tuple[str, ...]:
    """The important tokens with the space before them, where the trace has one: to most tokenizers that is another
    token. One that the trace does not have is left as it is."""
    return tuple(_spaced(problem))


def _spaced(problem: Problem) -> Iterator[str]:
    trace, after = "\n".join([*problem.steps, problem.answer]), 0
    for piece in problem.important:
        # Not within a longer word or number: there is an impus in every brimpus.
        found = re.compile(rf"(?<![\w.]){re.escape(piece)}(?!\.?[0-9])").search(trace, after)
        after = found.end() if found else after
        yield " " + piece if found and found.start() > 0 and trace[found.start() - 1] == " " else piece


def _check_counts(method: ReasoningMethod, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise OutOfRange(name, count, "1 or more")
