"""Tasks that a small model learns in minutes, with exact answers: chains of sums, and reachability among letters."""

import re
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from string import ascii_lowercase

from adlm.errors import ConfigError
from adlm_studies.reasoning.answers import NumberAnswers
from adlm_studies.reasoning.gsm8k import numbers_along
from adlm_studies.reasoning.problem import GeneratedTask, Problem

_SIGNS = ("+", "-", "*")
_LETTER = re.compile(r"(?<![a-zA-Z])[a-z](?![a-zA-Z])")


@dataclass(frozen=True)
class Arithmetic(NumberAnswers, GeneratedTask):
    """Operations on numbers of one digit, one after the other: (3+5)*2=? with the steps <<3+5=8>> <<8*2=16>>.

    Signs are as frequent as each other wherever all three are possible; no result is below one or above `largest`.

    Args:
        least, most: how many operations; all numbers from least to most are as frequent.
        largest: no result, on the way or at the end, is above it.
    """

    name = "arithmetic"
    least: int = 2
    most: int = 4
    largest: int = 99

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.least <= self.most or self.largest < 9:
            raise ConfigError(
                f"arithmetic needs 1 <= least <= most and largest >= 9, got least={self.least}, most={self.most}, "
                f"largest={self.largest}",
                subject=self.name,
            )

    def draw(self, dice: Random) -> Problem:
        value = dice.randint(1, 9)
        written, steps, sum_last = str(value), [], False
        for _ in range(dice.randint(self.least, self.most)):
            operands = {sign: self._operands(value, sign) for sign in _SIGNS}
            sign = dice.choice([sign for sign in _SIGNS if operands[sign]])
            operand = dice.choice(operands[sign])
            result = _apply(value, sign, operand)
            steps.append(f"<<{value}{sign}{operand}={result}>>")
            # A product binds before a sum: brackets keep the order of the steps.
            written = f"({written}){sign}{operand}" if sign == "*" and sum_last else f"{written}{sign}{operand}"
            value, sum_last = result, sign != "*"
        return Problem(f"{written}=?", tuple(steps), str(value), numbers_along(steps))

    def _operands(self, value: int, sign: str) -> list[int]:
        return [number for number in range(1, 10) if 1 <= _apply(value, sign, number) <= self.largest]


def _apply(value: int, sign: str, operand: int) -> int:
    return {"+": value + operand, "-": value - operand, "*": value * operand}[sign]


@dataclass(frozen=True)
class LetterGraph(GeneratedTask):
    """ProsQA in miniature: which letter can be reached? "a>c b>d c>e. a>e or a>d?", steps a>c and c>e, answer e.

    Two ways of one length, from two beginnings, with further letters hanging on them: both letters that are asked for
    are ends, as deep as each other, so nothing but the way tells which it is. Every length is as frequent.

    Args:
        nodes: how many letters there are.
        least, most: how many edges the way has.
    """

    name = "graph"
    nodes: int = 14
    least: int = 2
    most: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.least <= self.most or not 2 * (self.most + 1) <= self.nodes <= len(ascii_lowercase):
            raise ConfigError(
                f"the task graph needs 1 <= least <= most and 2 most + 2 <= nodes <= 26, got least={self.least}, "
                f"most={self.most}, nodes={self.nodes}",
                subject=self.name,
            )

    def parse_answer(self, text: str) -> str | None:
        """The last letter that stands by itself or at an edge, after the mark of answers where there is one."""
        letters = _LETTER.findall(text.rpartition("####")[2])
        return letters[-1] if letters else None

    def draw(self, dice: Random) -> Problem:
        letters, length = dice.sample(ascii_lowercase, self.nodes), dice.randint(self.least, self.most)
        way, other, further = letters[: length + 1], letters[length + 1 : 2 * length + 2], letters[2 * length + 2 :]
        edges, above = [*pairwise(way), *pairwise(other)], way[:-1] + other[:-1]
        for letter in further:
            edges.append((dice.choice(above), letter))
            above.append(letter)
        dice.shuffle(edges)
        one, two = dice.sample((way[-1], other[-1]), 2)
        question = f"{' '.join(map('>'.join, edges))}. {way[0]}>{one} or {way[0]}>{two}?"
        return Problem(question, tuple(map(">".join, pairwise(way))), way[-1], tuple(way))
