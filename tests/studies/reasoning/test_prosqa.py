import json
import math
import re
from collections import Counter
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.errors import ConfigError, DataError, OutOfRange
from adlm_studies.reasoning.prosqa import CONCEPTS, ENTITIES, ProsQA, names_along
from tests.errors import raises

_FACT = re.compile(r"(?:Every )?(\w+) is a (\w+)")
_ASKED = re.compile(r"Is (\w+) a (\w+) or (\w+)\?$")


class Read(NamedTuple):
    """A problem as its text says it."""

    edges: list[tuple[str, str]]
    root: str
    target: str
    other: str

    @property
    def nodes(self):
        return {node for edge in self.edges for node in edge}

    def distances(self, start):
        """By the definition: neighbours of neighbours, until there are none."""
        found, frontier = {start: 0}, [start]
        while frontier:
            frontier = [b for a, b in self.edges if a in frontier and b not in found]
            found |= dict.fromkeys(frontier, max(found.values()) + 1)
        return found


def read(problem):
    *facts, asked = problem.question.split(". ")
    root, *pair = _ASKED.match(asked).groups()
    target = problem.answer.rstrip(".").split()[-1]
    pair.remove(target)
    return Read([_FACT.fullmatch(fact).groups() for fact in facts], root, target, pair[0])


@cache
def drawn():
    return [*ProsQA(seed=1).drawn("train")[:800]]


@cache
def published(shared):
    task = ProsQA(folder=str(shared / "data/prosqa"))
    return [*task.problems("valid"), *task.problems("test")]


def means(problems):
    """The statistics that are compared, by name: a list of one number a problem."""
    graphs = [read(problem) for problem in problems]
    inner = [Counter(a for a, _ in graph.edges) for graph in graphs]
    into = [Counter(b for _, b in graph.edges) for graph in graphs]
    roots = [[node for node in graph.nodes if node in ENTITIES] for graph in graphs]
    return {
        "nodes": [len(graph.nodes) for graph in graphs],
        "edges": [len(graph.edges) for graph in graphs],
        "entities": [len(each) for each in roots],
        "leaves": [len(graph.nodes - out.keys()) for graph, out in zip(graphs, inner, strict=True)],
        "largest out-degree": [max(out.values()) for out in inner],
        "largest in-degree": [max(each.values()) for each in into],
        "steps": [len(problem.steps) for problem in problems],
        "words of the question": [len(problem.question.split()) for problem in problems],
        "reached from the root": [len(graph.distances(graph.root)) for graph in graphs],
        "depth of the other": [
            min(d[graph.other] for d in map(graph.distances, each) if graph.other in d)
            for graph, each in zip(graphs, roots, strict=True)
        ],
    }


def degrees(problems, side):
    """Fractions of nodes with 0, 1, ... 6 edges out of them (side 0) or into them (side 1)."""
    counts = Counter()
    for graph in map(read, problems):
        each = Counter(edge[side] for edge in graph.edges)
        counts.update(each[node] for node in graph.nodes)
    return [counts[degree] / sum(counts.values()) for degree in range(7)]


def distance(first, second):
    """Kolmogorov and Smirnov's: the largest difference of the two distribution functions."""
    positions = sorted({*first, *second})
    return max(
        abs(sum(x <= at for x in first) / len(first) - sum(x <= at for x in second) / len(second)) for at in positions
    )


def test_drawn_problems_have_the_statistics_of_the_published_ones(shared):
    ours, theirs = means(drawn()), means(published(shared))
    for name, values in theirs.items():
        mean, own = sum(values) / len(values), sum(ours[name]) / len(ours[name])
        assert own == pytest.approx(mean, rel=0.04), name
        # Two samples of 800 from one law are further apart in one case of a hundred: 1.63 sqrt(2 / 800).
        assert distance(values, ours[name]) < 1.63 * math.sqrt(2 / 800), name


def test_ways_are_as_long_as_the_published_ones_by_a_chi_square_test(shared):
    ours, theirs = (Counter(len(problem.steps) for problem in each) for each in (drawn(), published(shared)))
    assert sorted(ours) == sorted(theirs) == [3, 4, 5, 6]
    statistic = sum((ours[n] - theirs[n]) ** 2 / (ours[n] + theirs[n]) for n in (3, 4, 5, 6))
    assert statistic < 11.34  # 99 % of the law with 3 degrees of freedom


def test_nodes_have_the_degrees_of_the_published_ones(shared):
    for side in (0, 1):
        assert degrees(drawn(), side) == pytest.approx(degrees(published(shared), side), abs=0.015)


def test_names_are_those_of_the_published_problems(shared):
    nodes = {node for problem in published(shared) for node in read(problem).nodes}
    assert nodes == {*ENTITIES, *CONCEPTS}


@pytest.mark.parametrize("kind", ["drawn", "smaller", "published"])
def test_the_answer_can_be_reached_by_the_steps_and_the_other_cannot(kind, request):
    if kind == "published":
        problems = published(request.getfixturevalue("shared"))
    else:
        problems = drawn() if kind == "drawn" else ProsQA(least=6, most=14).drawn("train")[:300]
    for problem in problems:
        graph = read(problem)
        reached = graph.distances(graph.root)
        assert reached[graph.target] == len(problem.steps)
        assert graph.other not in reached
        way = [_FACT.fullmatch(step.rstrip(".")).groups() for step in problem.steps]
        assert way[0][0] == graph.root
        assert way[-1][1] == graph.target
        assert all(edge in graph.edges for edge in way)
        assert all(first[1] == second[0] for first, second in pairwise(way))
        assert problem.important == (graph.root, *(node for _, node in way))
        assert problem.answer == f"{graph.root} is a {graph.target}."


def test_an_entity_is_where_nothing_leads_to():
    for graph in map(read, drawn()[:100]):
        below = {b for _, b in graph.edges}
        assert all((node in ENTITIES) == (node not in below) for node in graph.nodes)
        assert len(set(graph.edges)) == len(graph.edges)


def test_the_place_of_the_answer_in_the_question_tells_nothing():
    first = sum(_ASKED.search(problem.question)[2] == read(problem).target for problem in drawn())
    assert abs(first - 400) < 2.58 * math.sqrt(200)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 50))
def test_a_problem_is_a_function_of_seed_split_and_number(seed, number, further):
    small, large = ProsQA(seed=seed, train=number + 1), ProsQA(seed=seed, train=number + 1 + further)
    problem = small.drawn("train")[number]
    assert problem == large.drawn("train")[number] == small.drawn("train")[-1]
    assert problem != ProsQA(seed=seed + 1).problem("train", number)
    assert problem != small.problem("train", number + 1)


def test_the_drawing_stays_the_same():
    problem = ProsQA().drawn("train")[0]
    assert problem.steps == ("Carol is a chorpus.", "Every chorpus is a kerpus.", "Every kerpus is a boompus.")


def test_no_file_means_generated_problems_and_one_file_missing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.delenv("ADLM_DATA", raising=False)
    assert [len(ProsQA().problems(split)) for split in ("train", "valid", "test")] == [17_886, 300, 500]
    assert "generated with seed 0" in ProsQA().origin("valid")
    entry = {"question": "Tom is a terpus. Is Tom a terpus or lempus?", "steps": ["Tom is a terpus."]}
    (tmp_path / "prosqa_test.json").write_text(json.dumps([entry | {"answer": "Tom is a terpus."}]))
    task = ProsQA(folder=str(tmp_path), train=7)
    assert len(task.problems("train")) == 7
    assert "generated" in task.origin("train")
    assert task.problems("test")[0].important == ("Tom", "terpus")
    assert task.origin("test") == "published: prosqa_test.json"
    with raises(DataError, subject="prosqa_valid.json"):
        task.problems("valid")


GOOD = {"question": "Is Tom a terpus or lempus?", "steps": ["Tom is a terpus."], "answer": "Tom is a terpus."}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"question": ""}, "question is ''"),
        ({"answer": None}, "answer is None"),
        ({"steps": []}, "steps is []"),
        ({"steps": "Tom is a terpus."}, "steps is Tom"),
        ({"steps": ["Tom is a terpus.", 5]}, "steps is ["),
        ({"steps": ["it is so."]}, "steps without a name"),
    ],
)
def test_a_malformed_problem_is_named_with_file_and_entry(tmp_path, change, found):
    (tmp_path / "prosqa_test.json").write_text(json.dumps([GOOD, GOOD | change]))
    with raises(DataError, subject=f"{tmp_path}/prosqa_test.json, element 2") as caught:
        ProsQA(folder=str(tmp_path)).problems("test")
    assert found in caught.value.found
    assert caught.value.fix


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*GOOD, "more"]), st.none() | st.text() | st.integers() | st.lists(st.text())))
def test_any_object_is_read_or_refused(tmp_path_factory, entry):
    folder = tmp_path_factory.mktemp("entries")
    (folder / "prosqa_test.json").write_text(json.dumps([entry]))
    with suppress(DataError):
        (problem,) = ProsQA(folder=str(folder)).problems("test")
        assert all((problem.question, problem.steps, problem.answer, problem.important))


def test_a_broken_file_is_refused(tmp_path):
    (tmp_path / "prosqa_test.json").write_text(json.dumps([GOOD])[:-20])
    with raises(DataError):
        ProsQA(folder=str(tmp_path)).problems("test")


def test_names_are_entities_and_concepts_in_any_number():
    steps = [
        "Max is a vumpus. Each vumpus is an impus.",
        "Max is an impus. Impuses are not wooden.",
        "Max is not wooden.",
    ]
    assert names_along(steps) == ("Max", "vumpus", "impus")


def test_numbers_below_zero_are_refused():
    with raises(OutOfRange, subject="train", value=-1):
        ProsQA(train=-1)


def test_smaller_problems_are_generated_beside_published_files(shared, monkeypatch):
    monkeypatch.setenv("ADLM_DATA", str(shared / "data"))
    assert ProsQA().origin("test") == "published: prosqa_test.json"
    small = ProsQA(least=6, most=8)
    assert "generated" in small.origin("test")
    nodes = [len(read(problem).nodes) for problem in small.problems("test")[:100]]
    assert max(nodes) == 8
    assert min(nodes) <= 6


@pytest.mark.parametrize("sizes", [{"least": 5}, {"most": 29}, {"least": 20, "most": 10}])
def test_sizes_that_no_problem_has_are_refused(sizes):
    with raises(ConfigError, subject="least, most"):
        ProsQA(**sizes)


def test_files_have_one_size(tmp_path):
    with raises(ConfigError, subject="folder"):
        ProsQA(folder=str(tmp_path), least=6)
