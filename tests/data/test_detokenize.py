"""Detokenisers on real lines."""

import pytest

from adlm.data.detokenize import DETOKENIZERS, find_detokenizer
from adlm.errors import UnknownName

REAL_LINES = [
    (
        "wikitext",
        " 9 West End Historic District — roughly bounded by 7th St , 28th <unk> , Shearer 's Branch , and 5th St. \n",
        " 9 West End Historic District — roughly bounded by 7th St, 28th <unk>, Shearer's Branch, and 5th St.\n",
    ),
    (
        "wikitext",
        " Emmy award winning Bill Evans ( meteorologist ) ( <unk> @-@ TV New York ) was born in Meridian . \n",
        " Emmy award winning Bill Evans (meteorologist) (<unk>-TV New York) was born in Meridian.\n",
    ),
    ("wikitext", " = = Description = = \n", " == Description ==\n"),
    (
        "lm1b",
        '" I \'m not going to incriminate myself with anything as far as this goes , " she said .',
        '"I\'m not going to incriminate myself with anything as far as this goes," she said.',
    ),
    (
        "lm1b",
        "The maximum penalty for not obeying is a £ 1,000 fine and disqualification from driving .",
        "The maximum penalty for not obeying is a £1,000 fine and disqualification from driving.",
    ),
    # No full stop after a bracket: the rule wants a word before it.
    (
        "lm1b",
        "Goalkeepers : Iker Casillas ( Real Madrid ) , Jose Reina ( Liverpool ) .",
        "Goalkeepers: Iker Casillas (Real Madrid), Jose Reina (Liverpool) .",
    ),
    (
        "scientific_papers",
        "this criterion was more stringent than usual ( > 7 cut - off score ) , in effort to create distinct groups .",
        "this criterion was more stringent than usual (> 7 cut - off score), in effort to create distinct groups.",
    ),
    (
        "scientific_papers",
        "likewise , apathy and anhedonia in pd patients have been associated with dysfunction [ 10 , 1523 ] .",
        "likewise, apathy and anhedonia in pd patients have been associated with dysfunction [10, 1523] .",
    ),
    (
        "lambada",
        "“Why?”\n“I would have thought you’d find him dry,” she said ",
        '\n"Why?"\n"I would have thought you’d find him dry," she said',
    ),
    # The published form of PTB: lower case, N for numbers, <unk> for rare words.
    (
        "ptb",
        "the company 's <unk> rose N N to $ N million because investors ' money did n't leave and\\/or stay",
        "the company's ? rose 1 1 to $1 million because investors' money didn't leave and/or stay",
    ),
    (
        "ag_news",
        r"Wall St. Bears Claw Back #39;s dwindling\band of ultra-cynics",
        r"Wall St. Bears Claw Back #39;s dwindling\band of ultra-cynics",
    ),
    ("none", " kept . as  is \n", " kept . as  is \n"),
]


@pytest.mark.parametrize(("name", "published", "expected"), REAL_LINES)
def test_detokenizers_give_the_text_of_the_published_evaluations(name: str, published: str, expected: str) -> None:
    assert DETOKENIZERS[name](published) == expected


def test_an_unknown_detokenizer_offers_the_nearest() -> None:
    with pytest.raises(UnknownName):
        find_detokenizer("wikitxt")
