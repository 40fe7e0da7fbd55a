"""ProsQA (Hao et al. 2024, arXiv 2412.06769, appendix): is Tom a lempus or a scrompus? One can be reached, one cannot.

A problem is a random graph. Nodes 0 and 1 are two entities; every further node draws some parents among those before
it, deep ones rather, either among what is under node 0 alone, or under node 1 alone, or anywhere:

    parents ~ Poisson(1.5), at most all candidates;    weight of a candidate = 1 + 1.5 depth.

Nodes that touch nothing are dropped. The question is about the entity that has the deeper leaf to itself: is it that
leaf, or some leaf that the other entity has to itself? The steps are a shortest way, of three to six edges. The numbers
(28 nodes, the mean, the weights, the probabilities of the three kinds of parents) and the choice of the two leaves fit
the published valid and test files, which `tests/reasoning/test_prosqa.py` compares with what is drawn here.
"""

import math
import re
from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import ClassVar, NamedTuple

from adlm.errors import ConfigError
from adlm_studies.reasoning.answers import last_sentence
from adlm_studies.reasoning.problem import (
    GeneratedTask,
    Problem,
    check_split,
    malformed,
    published_file,
    published_folder,
    records,
    text_of,
    texts_of,
)

_ENTITIES = """
Alex Bob Carol Davis Eva Fae Gabriel Jack Max Oliver Polly Rex Sally Sam Stella Tom Wren
"""
_CONCEPTS = """
bompus boompus brimpus chorpus dumpus felpus fompus gerpus gorpus grimpus gwompus hilpus impus jelpus jompus kerpus
lempus lorpus numpus quimpus rempus rompus rorpus scrompus shumpus sterpus storpus terpus timpus tumpus vumpus worpus
wumpus yerpus yimpus yumpus zhorpus zumpus
"""
ENTITIES, CONCEPTS = tuple(_ENTITIES.split()), tuple(_CONCEPTS.split())
NODES = 28
_LEAST_STEPS, _MOST_STEPS = 3, 6
_FURTHER_PARENTS = 1.5
_DEPTH_WEIGHT = 1.5
# Parents from under node 0 alone, under node 1 alone, or anywhere.
_UNDER = (0, 1, None)
_UNDER_CHANCES = (0.35, 0.45, 0.2)
_NAME = re.compile(r"\b(?:([a-z]*pus)(?:es)?|(?-i:([A-Z])[a-z]+))\b", re.IGNORECASE)
_QUANTIFIERS = ("Every", "Each")


class Graph(NamedTuple):
    """Parents of every node, all before it, and how many edges lead from node 0 and from node 1 to those under them."""

    parents: list[list[int]]
    under: tuple[dict[int, int], dict[int, int]]

    def alone(self, side: int) -> list[int]:
        """The nodes below one of the two roots and not below the other, including the root itself."""
        return [node for node in self.under[side] if node not in self.under[1 - side]]

    def leaves(self, side: int) -> list[int]:
        """The nodes of `alone` with nothing below them, without the root itself."""
        inner = {parent for parents in self.parents for parent in parents}
        return [node for node in self.alone(side) if node not in inner and node != side]

    def way(self, side: int, node: int, dice: Random) -> list[int]:
        """A shortest path from node 0 or 1 to a node; a random one if there are several."""
        steps, way = self.under[side], [node]
        while way[-1] != side:
            near = [parent for parent in self.parents[way[-1]] if steps.get(parent) == steps[way[-1]] - 1]
            way.append(dice.choice(near))
        return way[::-1]


def draw_graph(dice: Random, nodes: int = NODES) -> Graph:
    """A random graph, in which some nodes may touch nothing."""
    graph, depths = Graph([[], []], ({0: 0}, {1: 0})), [0, 0]
    for node in range(2, nodes):
        side = dice.choices(_UNDER, _UNDER_CHANCES)[0]
        candidates = range(node) if side is None else graph.alone(side)
        # The largest u^(1 / weight) are a weighted draw without replacement (Efraimidis and Spirakis 2006).
        keys = {parent: dice.random() ** (1 / (1 + _DEPTH_WEIGHT * depths[parent])) for parent in candidates}
        parents = sorted(keys, key=keys.__getitem__, reverse=True)[: _poisson(dice, _FURTHER_PARENTS)]
        graph.parents.append(parents)
        depths.append(1 + min(depths[parent] for parent in parents) if parents else 0)
        for steps in graph.under:
            above = [steps[parent] for parent in parents if parent in steps]
            if above:
                steps[node] = 1 + min(above)
    return graph


def names_along(steps: Sequence[str]) -> tuple[str, ...]:
    """Entities and concepts of a trace, each where it is first said: Tom, terpus, brimpus, lempus."""
    words = (match for step in steps for match in _NAME.finditer(step))
    names = (match[1].lower() if match[1] else match[0] for match in words)
    return tuple(dict.fromkeys(name for name in names if name not in _QUANTIFIERS))


@dataclass(frozen=True)
class PublishedTask(GeneratedTask, ABC):
    """Problems about entities and concepts in files NAME_{train,valid,test}.json; what is not there is generated.

    With a folder, the valid and test files have to be in it: only the training problems are generated then.

    Args:
        folder: where the files are; "" looks in $ADLM_DATA/NAME.
        least, most: the size of problems; all sizes from least to most are as frequent. Of another size than the
            published one, all problems are generated.
    """

    published_size: ClassVar[int]
    smallest: ClassVar[int]
    largest: ClassVar[int]

    folder: str = ""
    least: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.smallest <= self.least <= self.most <= self.largest:
            raise ConfigError(
                f"{self.name} has sizes from {self.smallest} to {self.largest}, got {self.least} to {self.most}",
                subject="least, most",
            )
        if self.folder and not self._as_published:
            raise ConfigError(
                f"the published files of {self.name} have problems of {self.published_size}, got sizes {self.least} to "
                f"{self.most}; leave out the folder",
                subject="folder",
            )

    def problems(self, split: str) -> Sequence[Problem]:
        path = self._file(split)
        return self.drawn(split) if path is None else [*read_named(path)]

    def origin(self, split: str) -> str:
        path = self._file(split)
        return super().origin(split) if path is None else f"published: {path.name}"

    def size(self, dice: Random) -> int:
        """The size of the next problem."""
        return self.least if self.least == self.most else dice.randint(self.least, self.most)

    @property
    def _as_published(self) -> bool:
        return self.least == self.most == self.published_size

    def _file(self, split: str) -> Path | None:
        return published_or_none(self.folder, self.name, split) if self._as_published else None


@dataclass(frozen=True)
class ProsQA(PublishedTask):
    """The task ProsQA, with as many training problems as the paper's. The size is the number of nodes."""

    name = "prosqa"
    published_size, smallest, largest = NODES, 6, NODES
    train: int = 17_886
    valid: int = 300
    test: int = 500
    least: int = NODES
    most: int = NODES

    def parse_answer(self, text: str) -> str | None:
        return last_sentence(text)

    def draw(self, dice: Random) -> Problem:
        nodes = self.size(dice)
        least_steps = min(_LEAST_STEPS, max(1, nodes // 6))
        while True:
            graph = draw_graph(dice, nodes)
            leaves = graph.leaves(0), graph.leaves(1)
            deepest = [max((graph.under[side][leaf] for leaf in leaves[side]), default=0) for side in (0, 1)]
            if min(deepest) > 0 and least_steps <= max(deepest) <= _MOST_STEPS:
                break
        root = dice.randrange(2) if deepest[0] == deepest[1] else deepest.index(max(deepest))
        target = dice.choice([leaf for leaf in leaves[root] if graph.under[root][leaf] == deepest[root]])
        other = dice.choice(leaves[1 - root])
        way = graph.way(root, target, dice)
        return _write(graph, way, other, dice)


def published_or_none(folder: str, name: str, split: str) -> Path | None:
    """NAME_SPLIT.json; None where the split is to be generated: no folder, or a folder without a training file."""
    check_split(split)
    where, file = published_folder(folder, name), f"{name}_{split}.json"
    if where is None or (split == "train" and not (where / file).is_file()):
        return None
    return published_file(where, file, name)


def read_named(path: Path) -> Iterator[Problem]:
    """Problems of a published file about entities and concepts."""
    for where, record in records(path):
        question, answer = text_of(record, "question", where), text_of(record, "answer", where)
        steps = texts_of(record, "steps", where)
        important = names_along(steps)
        if not important:
            raise malformed(where, f"steps without a name: {steps[0][:40]!r}", "give steps like 'Tom is a terpus.'")
        yield Problem(question, steps, answer, important)


def _write(graph: Graph, way: list[int], other: int, dice: Random) -> Problem:
    edges = [(parent, node) for node, parents in enumerate(graph.parents) for parent in parents]
    touched = sorted({node for edge in edges for node in edge})
    entities = [node for node in touched if not graph.parents[node]]
    concepts = [node for node in touched if graph.parents[node]]
    names = dict(zip(entities, dice.sample(ENTITIES, len(entities)), strict=True))
    names |= dict(zip(concepts, dice.sample(CONCEPTS, len(concepts)), strict=True))

    def sentence(parent: int, node: int) -> str:
        return f"{'Every ' if graph.parents[parent] else ''}{names[parent]} is a {names[node]}."

    dice.shuffle(edges)
    choice = [way[-1], other]
    dice.shuffle(choice)
    who, first, second = names[way[0]], names[choice[0]], names[choice[1]]
    question = " ".join([*(sentence(*edge) for edge in edges), f"Is {who} a {first} or {second}?"])
    steps = tuple(sentence(*edge) for edge in pairwise(way))
    return Problem(question, steps, f"{who} is a {names[way[-1]]}.", names_along(steps))


def _poisson(dice: Random, mean: float) -> int:
    """By inversion: how many uniform numbers can be multiplied before the product falls under exp(-mean)."""
    count, product = 0, dice.random()
    while product > math.exp(-mean):
        count, product = count + 1, product * dice.random()
    return count
