import re
from collections import Counter
from functools import cache

import pytest

from adlm_studies.reasoning.prontoqa import CONCEPTS, ENTITIES, FAMILIES, ProntoQA

_GENERAL = re.compile(r"(?:(Each|Every) (\w+) is|(\w+)es are) (not )?(an? )?(\w+)")
_ASKED = re.compile(r"True or false: (\w+) is (not )?(\w+)\.")
FAMILY = {word: family for family in FAMILIES for word in family}


@cache
def drawn():
    return [*ProntoQA(seed=1).drawn("train")[:1200]]


@cache
def published(shared, split="train"):
    return ProntoQA(folder=str(shared / "data/prontoqa")).problems(split)


def facts_of(problem):
    """(concept, negated, what it is) of every general sentence, with all words in the singular."""
    *facts, _, _, _ = problem.question.split(". ")
    for fact in facts:
        _, one, many, negated, _, what = _GENERAL.fullmatch(fact).groups()
        yield (one or many.lower()), bool(negated), re.sub(r"puses$", "pus", what)


def conclusion(problem):
    """What follows by the facts alone: everything the entity is, and which of the asked property and its opposite."""
    who, negated, word = _ASKED.search(problem.question).groups()
    facts = [*facts_of(problem)]
    known = set(re.findall(rf"{who} is an? (\w+)\.", problem.question))
    while more := {what for concept, _, what in facts if concept in known and what.endswith("pus")} - known:
        known |= more
    said = {is_not for concept, is_not, what in facts if concept in known and what == word}
    return known, said, bool(negated)


def fractions(problems):
    """Means of the statistics that are compared, by name."""
    rows = []
    for problem in problems:
        facts = [*facts_of(problem)]
        properties = [fact for fact in facts if not fact[2].endswith("pus")]
        chain = {*problem.important[1:]}
        known, said, negated = conclusion(problem)
        rows.append(
            {
                "facts": len(facts),
                "properties": len(properties),
                "concepts": len({concept for concept, _, _ in facts} | known),
                "reached": len(known),
                "families": len({FAMILY[what] for _, _, what in properties}),
                "words": len(problem.question.split()),
                "plural": len(re.findall(r"puses are", problem.question)),
                "each": problem.question.count("Each "),
                "negated": sum(is_not for _, is_not, _ in properties),
                "negated on the way": sum(is_not for concept, is_not, _ in properties if concept in chain),
                "negated at the end": said == {True},
                "negated question": negated,
                "true": problem.answer == "True",
                "steps": len(problem.steps),
                "important": len(problem.important),
            }
        )
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def test_drawn_problems_have_the_statistics_of_the_published_ones(shared):
    ours, theirs = fractions(drawn()), fractions(published(shared)[:2500])
    for name in ("facts", "properties", "concepts", "reached", "families", "steps", "important"):
        assert ours[name] == theirs[name], name  # all published problems have one form
    for name in ("words", "plural", "each", "negated", "negated on the way"):
        assert ours[name] == pytest.approx(theirs[name], rel=0.04), name
    for name in ("negated at the end", "negated question", "true"):
        assert ours[name] == pytest.approx(theirs[name], abs=0.045), name


def test_words_are_as_frequent_as_the_published_ones(shared):
    ours, theirs = (
        Counter(word for problem in each for _, _, word in facts_of(problem) if not word.endswith("pus"))
        for each in (drawn(), published(shared)[:2500])
    )
    assert ours.keys() == theirs.keys() == FAMILY.keys()
    totals = sum(ours.values()), sum(theirs.values())
    for word, count in theirs.items():
        assert ours[word] / totals[0] == pytest.approx(count / totals[1], rel=0.25), word


def test_names_are_those_of_the_published_problems(shared):
    named = {name for problem in published(shared)[:1000] for name in problem.important}
    assert named == {*ENTITIES, *CONCEPTS}


@pytest.mark.parametrize("kind", ["drawn", 1, 2, 6, "train", "valid", "test"])
def test_the_answer_follows_from_the_facts(kind, request):
    hops = kind if isinstance(kind, int) else 5
    if kind == "drawn" or hops != 5:
        problems = drawn() if hops == 5 else ProntoQA(least=hops, most=hops).drawn("train")[:200]
    else:
        problems = published(request.getfixturevalue("shared"), kind)[:1000]
    assert len({problem.question for problem in problems}) == len(problems)
    for problem in problems:
        known, said, negated = conclusion(problem)
        assert len(said) == 1, "the property follows one way alone"
        assert problem.answer == str(said == {negated})
        who, *chain = problem.important
        assert problem.question.count(f"{who} is") == 3
        assert {*chain} <= known
        assert len(chain) == hops
        for step in problem.steps[:-1]:
            assert step.split(". ")[1] in problem.question
        assert problem.steps[-1] in (f"{who} is {'not ' * (True in said)}{_ASKED.search(problem.question)[3]}.",)


def test_an_opposite_is_said_of_a_concept_out_of_reach():
    for problem in drawn()[:100]:
        known, said, _ = conclusion(problem)
        word = _ASKED.search(problem.question)[3]
        others = [is_not for concept, is_not, what in facts_of(problem) if what == word and concept not in known]
        assert others == [not said.pop()]


def test_true_and_false_are_balanced_and_negation_in_the_question_does_not_tell():
    table = Counter((conclusion(problem)[2], problem.answer) for problem in drawn())
    assert abs(table[True, "True"] + table[False, "True"] - 600) < 60
    assert all(count > 1200 / 4 - 60 for count in table.values())


def test_published_files_are_used_where_they_are_there(shared):
    task = ProntoQA(folder=str(shared / "data/prontoqa"))
    assert [len(task.problems(split)) for split in ("train", "valid", "test")] == [9000, 200, 800]
    assert task.origin("train") == "published: prontoqa_train.json"


def test_without_files_the_problems_are_generated(monkeypatch):
    monkeypatch.delenv("ADLM_DATA", raising=False)
    assert [len(ProntoQA().problems(split)) for split in ("train", "valid", "test")] == [9000, 200, 800]
    assert "generated" in ProntoQA().origin("test")
    assert ProntoQA().problems("test")[3] == ProntoQA().problems("test")[3]
