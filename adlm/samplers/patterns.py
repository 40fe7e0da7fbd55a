"""Regular expressions as automata: over classes of characters, then over the bytes of UTF-8."""

import importlib
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlm.errors import ConfigError

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
Ranges = tuple[tuple[int, int], ...]  # of code points, both ends among them

_POINTS = 0x110000
_MOST_STATES = 10_000
# Python's own parser of patterns, so that they mean what they mean to `re`.
_re_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


_deadline: ContextVar[float] = ContextVar("deadline", default=float("inf"))


@contextmanager
def pattern_time(seconds: float) -> Iterator[None]:
    """Patterns whose automata take this thread longer than this, in all, are refused as too large."""
    before = _deadline.set(time.thread_time() + seconds)
    try:
        yield
    finally:
        _deadline.reset(before)


def check_time(regex: str) -> None:
    """Raise if the time for patterns is over."""
    if time.thread_time() > _deadline.get():
        raise too_large(regex)


def over_bytes(delta: Ints, accepts: Bools, classes: NDArray[Any]) -> tuple[Ints, Bools]:
    """An automaton over classes of characters [S, C] as one over bytes [S', 256]; -1 is nowhere.

    UTF-8 puts six bits of a code point into each byte after the first. So the last byte is read among 64 code points,
    the one before among 64 such blocks, and so on; blocks that lead to the same states are one state.
    """
    states = len(delta)
    classes = classes.copy()
    classes[0xD800:0xE000] = -1  # surrogates have no UTF-8
    rows = [np.full((states, 256), -1, np.int32)]

    def read(entries: NDArray[Any], targets: Ints) -> tuple[NDArray[Any], Ints]:
        """Blocks of 64 entries, each the number of a column of targets [S, K]: the kind of each block, and the
        state [S, kinds] in which it is read."""
        kinds, kind = _distinct(entries.reshape(-1, 64))
        after, number = _distinct(_column(targets, kinds).reshape(-1, 64))
        alive = (after >= 0).any(-1)
        numbers = np.where(alive, sum(map(len, rows)) + alive.cumsum() - 1, -1).astype(np.int32)
        rows.append(np.full((int(alive.sum()), 256), -1, np.int32))
        rows[-1][:, 0x80:0xC0] = after[alive]
        return kind, numbers[number.reshape(states, -1)]

    # What has a shorter form must not be written in a longer one.
    two, after_two = read(classes, delta)
    three, after_three = read(np.r_[[-1] * 32, two[32:]], after_two)
    four, after_four = read(np.r_[[-1] * 16, three[16:], [-1] * 48], after_three)
    rows[0][:, :0x80] = _column(delta, classes[:0x80])
    rows[0][:, 0xC2:0xE0] = after_two[:, two[2:32]]
    rows[0][:, 0xE0:0xF0] = after_three[:, three[:16]]
    rows[0][:, 0xF0:0xF5] = after_four[:, four]
    table = np.concatenate(rows)
    return table, np.pad(accepts, (0, len(table) - states))


def _distinct(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The different rows, and the number among them of each. Hashed: `np.unique` sorts, which is slow on long rows."""
    numbers: dict[bytes, int] = {}
    number = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows])
    _, first = np.unique(number, return_index=True)
    return rows[first], number


def _column(targets: Ints, numbers: NDArray[Any]) -> Ints:
    """Columns of [S, K] by number, where -1 is a column that leads nowhere."""
    return np.pad(targets, ((0, 0), (0, 1)), constant_values=-1)[:, numbers]


def over_characters(regex: str, space: bool) -> tuple[Ints, Bools, NDArray[Any]]:
    """The smallest automaton of a pattern: delta [S, C], accepts [S], and the class [code points] of each character."""
    paths = _Paths(regex, space)
    edges = sorted({0, _POINTS} | {edge for atom in paths.atoms for low, high in atom for edge in (low, high + 1)})
    starts = np.array(edges[:-1])
    member = np.array([_inside(starts, atom) for atom in paths.atoms], bool).reshape(-1, len(starts))
    kinds, kind = _distinct(member.T)
    sets = [paths.closure([0])]
    numbers = {sets[0]: 0}
    table: list[list[int]] = []
    for states in sets:
        arcs = [arc for state in states for arc in paths.arcs[state]]
        table.append([])
        for column in kinds:
            reached = paths.closure([target for atom, target in arcs if column[atom]])
            if reached not in numbers:
                numbers[reached] = len(sets)
                sets.append(reached)
            table[-1].append(numbers[reached])
        if len(sets) > _MOST_STATES:
            raise too_large(regex)
        check_time(regex)
    accepts = np.array([paths.end in states for states in sets])
    return *_smallest(np.array(table, np.int32), accepts), np.repeat(kind.astype(np.int32), np.diff(edges))


def _smallest(delta: Ints, accepts: Bools) -> tuple[Ints, Bools]:
    """Equivalent states made one (Moore): those that accept the same continuations. The first stays the first."""
    part, count = accepts.astype(np.int64), 0
    while (found := int(part.max()) + 1) > count:
        count = found
        _, part = _distinct(np.column_stack([part, part[delta]]))
    _, member, part = np.unique(part, return_index=True, return_inverse=True)
    delta, accepts = part[delta[member]].astype(np.int32), accepts[member]
    # States that never end well lead nowhere.
    useful = accepts.copy()
    while not np.array_equal(useful, grown := useful | useful[delta].any(-1)):
        useful = grown
    first = int(part[0])
    useful[first] = True
    order = np.r_[first, np.flatnonzero(useful & (np.arange(len(useful)) != first))]
    numbers = np.full(len(useful), -1, np.int32)
    numbers[order] = np.arange(len(order))
    return numbers[delta[order]], accepts[order]


def _inside(points: NDArray[Any], ranges: Ranges) -> Bools:
    lows, highs = np.array(ranges, np.int64).reshape(-1, 2).T
    at = np.searchsorted(lows, points, "right") - 1
    return (at >= 0) & (points <= np.append(highs, -1)[at])


class _Paths:
    """A pattern as arcs between numbered states, from 0 to `end`: `arcs` take a character of an atom, `jumps` none."""

    def __init__(self, regex: str, space: bool) -> None:
        self.regex = regex
        self.arcs: list[list[tuple[int, int]]] = []
        self.jumps: list[list[int]] = []
        self._numbers: dict[Ranges, int] = {}
        start = self._state()
        self.end = self._tree(_parsed(regex), self._atom(start, ((32, 32),)) if space else start)
        self.atoms = list(self._numbers)

    def closure(self, states: list[int]) -> frozenset[int]:
        """With all that jumps lead to."""
        seen, todo = set(states), list(states)
        while todo:
            new = [state for state in self.jumps[todo.pop()] if state not in seen]
            seen.update(new)
            todo += new
        return frozenset(seen)

    def _state(self) -> int:
        if len(self.arcs) >= _MOST_STATES:
            raise too_large(self.regex)
        self.arcs.append([])
        self.jumps.append([])
        return len(self.arcs) - 1

    def _atom(self, start: int, ranges: Ranges) -> int:
        end = self._state()
        self.arcs[start].append((self._numbers.setdefault(ranges, len(self._numbers)), end))
        return end

    def _join(self, ends: list[int]) -> int:
        end = self._state()
        for each in ends:
            self.jumps[each].append(end)
        return end

    def _tree(self, tree: Iterable[tuple[Any, Any]], at: int) -> int:
        """Go on from a state by a part of the pattern; returns where it ends."""
        for op, value in tree:
            name = op.name
            if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
                at = self._atom(at, self._ranges(name, value))
            elif name == "BRANCH":
                at = self._join([self._tree(part, at) for part in value[1]])
            elif name == "SUBPATTERN" and not value[1] and not value[2]:
                at = self._tree(value[3], at)
            elif name in ("MAX_REPEAT", "MIN_REPEAT"):
                least, most, repeated = value
                at = self._repeat(least, most, repeated, at)
            else:
                raise self._refused("flags in a group" if name == "SUBPATTERN" else name)
        return at

    def _repeat(self, least: int, most: int, tree: Any, at: int) -> int:
        for _ in range(least):
            at = self._tree(tree, at)
        if most == _re_parser.MAXREPEAT:
            at = self._join([at])
            self.jumps[self._tree(tree, at)].append(at)
            return at
        ends = [at]
        for _ in range(most - least):
            ends.append(self._tree(tree, ends[-1]))
        return self._join(ends)

    def _ranges(self, name: str, value: Any) -> Ranges:
        """The characters of one place."""
        if name == "LITERAL":
            return ((value, value),)
        if name == "RANGE":
            return (value,)
        if name == "CATEGORY":
            return _category(value.name)
        if name == "NOT_LITERAL":
            return _negated(((value, value),))
        if name == "ANY":
            return _negated(((10, 10),))
        if name != "IN":
            raise self._refused(name)
        negated = value[0][0].name == "NEGATE"
        union = _union(part for op, each in value[negated:] for part in self._ranges(op.name, each))
        return _negated(union) if negated else union

    def _refused(self, name: str) -> ConfigError:
        return ConfigError(
            f"{self.regex!r} has {name.lower().replace('_', ' ')}, which is not supported; use literals, classes, "
            "alternatives, groups and repetition",
            subject=self.regex,
        )


def _parsed(regex: str) -> list[tuple[Any, Any]]:
    try:
        tree = _re_parser.parse(regex)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{regex!r} is not a regular expression: {error}", subject=regex) from error
    if flags := re.RegexFlag(tree.state.flags) & ~(re.UNICODE | re.VERBOSE):
        raise ConfigError(
            f"{regex!r} has flags, which are not supported ({flags!r}); spell the characters out, as in [Aa]",
            subject=regex,
        )
    items = list(tree)
    # A hole is matched as a whole anyway.
    if items and items[0][0].name == "AT" and items[0][1].name in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        items = items[1:]
    if items and items[-1][0].name == "AT" and items[-1][1].name in ("AT_END", "AT_END_STRING"):
        items = items[:-1]
    return items


def _union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, without overlaps."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def _negated(ranges: Ranges) -> Ranges:
    """All other code points."""
    lows, highs = [0, *(high + 1 for _, high in ranges)], [*(low - 1 for low, _ in ranges), _POINTS - 1]
    return tuple((low, high) for low, high in zip(lows, highs, strict=True) if low <= high)


@cache
def _category(name: str) -> Ranges:
    """\\d, \\s and \\w as this Python has them, and their opposites."""
    kind = name.removeprefix("CATEGORY_").removeprefix("NOT_")
    run = {"DIGIT": r"\d+", "SPACE": r"\s+", "WORD": r"\w+"}[kind]
    found = re.finditer(run, "".join(map(chr, range(_POINTS))))
    ranges = tuple((match.start(), match.end() - 1) for match in found)
    return _negated(ranges) if "NOT_" in name else ranges


def too_large(regex: str) -> ConfigError:
    """The error for a pattern that is too large."""
    return ConfigError(
        f"the pattern {regex!r} has too many states",
        fix="use + or * where counts do not matter, and narrow classes such as [a-z]",
        subject=regex,
    )
