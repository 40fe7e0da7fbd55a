"""ProntoQA (Saparov and He 2022, arXiv 2210.01240) with five hops: does a property follow from a chain of concepts?

The published problems, which are those of Coconut (arXiv 2412.06769), all have one form, and so have those drawn here:

    chain        Max is a c1, each c1 is a c2, ..., each c5 is (not) P
    distractors  every concept of the chain is something else too (c5 two things); Max is a d1, each d1 is a d2;
                 one further concept has the opposite of P
    properties   eleven concepts have one, of eleven families (color, size, ...) in which no word recurs but P

The rates of negation and the words are those of the published training file, which
`tests/reasoning/test_prontoqa.py` compares with what is drawn here.
"""

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from adlm_studies.reasoning.answers import truth_in
from adlm_studies.reasoning.problem import Problem
from adlm_studies.reasoning.prosqa import PublishedTask, names_along

ENTITIES = ("Alex", "Fae", "Max", "Polly", "Rex", "Sally", "Sam", "Stella", "Wren")
_CONCEPTS = """
brimpus dumpus gorpus grimpus impus jompus lempus lorpus numpus rompus shumpus sterpus tumpus vumpus wumpus yumpus
zumpus
"""
CONCEPTS = tuple(_CONCEPTS.split())
FAMILIES = (
    ("blue", "brown", "orange", "red"),
    ("large", "small"),
    ("opaque", "transparent"),
    ("bright", "dull"),
    ("cold", "hot", "temperate"),
    ("fast", "moderate", "slow"),
    ("earthy", "floral", "fruity"),
    ("bitter", "sour", "spicy", "sweet"),
    ("liquid", "luminous", "metallic", "wooden"),
    ("discordant", "loud", "melodic", "muffled"),
    ("feisty", "happy", "nervous", "shy"),
    ("overcast", "rainy", "snowy", "sunny", "windy"),
    ("aggressive", "amenable", "angry", "kind", "mean"),
)
_HOPS = 5
# How often a property is negated: of a concept on the way, of the last one, of a distractor.
_NEGATED_ON_THE_WAY, _NEGATED_LAST, _NEGATED_ELSEWHERE = 0.275, 0.467, 0.33


@dataclass(frozen=True)
class ProntoQA(PublishedTask):
    """The task ProntoQA: true or false. The size is the number of hops."""

    name = "prontoqa"
    published_size, smallest, largest = _HOPS, 1, 6
    train: int = 9_000
    valid: int = 200
    test: int = 800
    least: int = _HOPS
    most: int = _HOPS

    def parse_answer(self, text: str) -> str | None:
        return truth_in(text)

    def draw(self, dice: Random) -> Problem:
        hops = self.size(dice)
        who, concepts = dice.choice(ENTITIES), dice.sample(CONCEPTS, 2 * hops + 4)
        chain, sides, (start, end, contrary) = concepts[:hops], concepts[hops : 2 * hops + 1], concepts[-3:]
        words = [dice.choice(family) for family in dice.sample(FAMILIES, 2 * hops + 1)]
        negated = [dice.random() < probability for probability in _probabilities(hops)]
        links = [_is_a(dice, *pair) for pair in pairwise(chain)]
        last = _is(dice, chain[-1], words[0], negated[0])
        facts = [*links, last, _is_a(dice, start, end), _is(dice, contrary, words[0], not negated[0])]
        facts += [_is_a(dice, *pair) for pair in zip([*chain, chain[-1]], sides, strict=True)]
        bearers = [*chain[:-1], *sides[:-1], start]
        facts += [_is(dice, *each) for each in zip(bearers, words[1:], negated[1:], strict=True)]
        dice.shuffle(facts)
        given = [f"{who} is {_article(concept)}." for concept in (chain[0], start)]
        dice.shuffle(given)
        true = dice.random() < 0.5
        asked = f"True or false: {_property(who, words[0], negated[0] == true)}"
        reached = [f"{who} is {_article(concept)}. {fact}" for concept, fact in zip(chain, [*links, last], strict=True)]
        steps = (*reached, _property(who, words[0], negated[0]))
        return Problem(" ".join([*facts, *given, asked]), steps, str(true), names_along(steps))


def _probabilities(hops: int) -> list[float]:
    return [_NEGATED_LAST, *[_NEGATED_ON_THE_WAY] * (hops - 1), *[_NEGATED_ELSEWHERE] * (hops + 1)]


def _article(concept: str) -> str:
    return f"{'an' if concept[0] in 'aeiou' else 'a'} {concept}"


def _property(who: str, word: str, negated: bool) -> str:
    return f"{who} is {'not ' if negated else ''}{word}."


def _is_a(dice: Random, concept: str, other: str) -> str:
    return _general(dice, concept, _article(other), f"{other}es")


def _is(dice: Random, concept: str, word: str, negated: bool) -> str:
    said = f"{'not ' if negated else ''}{word}"
    return _general(dice, concept, said, said)


def _general(dice: Random, concept: str, of_one: str, of_many: str) -> str:
    """Half of the sentences are about many, the others about each or every one."""
    if dice.random() < 0.5:
        return f"{concept.capitalize()}es are {of_many}."
    return f"{dice.choice(('Each', 'Every'))} {concept} is {of_one}."
