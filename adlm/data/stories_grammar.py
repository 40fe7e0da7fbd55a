"""The grammar of `Stories` as data: who and what there is, how likely it is, and in which words it is written.

A plot is a list of choices and a list of beats. A choice draws a value with whole-number weights that may
depend on earlier choices; a beat draws one of several sentences, into which the values are written:
`{hero}` is the plain form of a value, `{hero.his}` another of its forms. Nothing is computed here;
`stories.py` draws, scores and measures all of it. Any change changes the checksum in the fingerprint.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Weights = Mapping[str, int]
Forms = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class GrammarChoice:
    """A draw: `table` maps the values of the choices `given` to weights; `forms` says how a value is written.

    `forms` is value -> name of the form -> words, the plain form having the name "". A beat is a choice among
    sentences and has no forms. `kind` is what the choice is called when something is wrong with it.
    """

    kind: str
    forms: Forms
    table: Mapping[tuple[str, ...], Weights]
    given: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plot:
    """Choices in the order of drawing, then one beat for each sentence."""

    weight: int
    choices: Mapping[str, GrammarChoice]
    beats: tuple[GrammarChoice, ...]


def _weights(text: str) -> dict[str, int]:
    """From "red 4 blue 3"."""
    words = text.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def _tables(text: str) -> dict[str, dict[str, int]]:
    """From lines such as "kite: red 4 blue 3"."""
    rows = [line.partition(":") for line in text.strip().splitlines()]
    return {row.strip(): _weights(weights) for row, _, weights in rows}


def _values(tables: Mapping[str, Weights]) -> list[str]:
    return sorted({value for weights in tables.values() for value in weights})


def _without(weights: Weights, left_out: str) -> dict[str, int]:
    return {value: weight for value, weight in weights.items() if value != left_out}


def _nouns(words: Iterable[str]) -> dict[str, dict[str, str]]:
    """Words with their article as the form `a`."""
    return {word: {"": word, "a": "an" if word[0] in "aeiou" else "a"} for word in words}


def _alone(kind: str, forms: Forms, weights: str) -> GrammarChoice:
    return GrammarChoice(kind, forms, {(): _weights(weights)})


def _by(parent: str, kind: str, forms: Forms, tables: Mapping[str, Weights]) -> GrammarChoice:
    return GrammarChoice(kind, forms, {(value,): weights for value, weights in tables.items()}, (parent,))


def _beats(text: str) -> tuple[GrammarChoice, ...]:
    """From lines such as "3 The end.", with an empty line between two beats."""
    beats = [[line.strip().partition(" ") for line in beat.splitlines()] for beat in text.strip().split("\n\n")]
    return tuple(GrammarChoice("sentence", {}, {(): {line[2]: int(line[0]) for line in beat}}) for beat in beats)


# Who: a name has a gender, an animal belongs to a place, a trait suits an animal.

_GIRLS = _weights("Mia 3 Lily 3 Rosa 3 Anna 3 Nora 3 Ella 3 Ruby 2 Lucy 2 Ivy 2 Zoe 2 Clara 2 Daisy 2")
_BOYS = _weights("Tom 3 Ben 3 Max 3 Sam 3 Leo 3 Jack 3 Hugo 2 Finn 2 Oscar 2 Theo 2 Felix 2 Noah 2")
_NAMES = {name: {"": name, "he": "she", "him": "her", "his": "her"} for name in _GIRLS} | {
    name: {"": name, "he": "he", "him": "him", "his": "his"} for name in _BOYS
}
_PAIRS = [(hero, friend) for hero in _NAMES for friend in _NAMES if friend != hero]
# More often than not the two differ in gender: pronouns then tell them apart.
_FRIENDS = {
    hero: {friend: 1 if (hero in _GIRLS) == (friend in _GIRLS) else 2 for friend in _NAMES if friend != hero}
    for hero in _NAMES
}
_PLACES = {
    "forest": {"": "in the forest"},
    "farm": {"": "on the farm"},
    "pond": {"": "by the pond"},
    "sea": {"": "by the sea"},
    "garden": {"": "in the garden"},
    "river": {"": "by the river"},
    "hill": {"": "on the hill"},
    "village": {"": "in the village"},
}
_ANIMALS_AT = _tables("""
    forest: fox 3 owl 3 bear 3 rabbit 2 mouse 1
    farm: pig 3 goose 3 goat 3 cat 2 mouse 2
    pond: duck 4 frog 4 turtle 2 otter 1 mouse 1
    sea: crab 3 seal 3 turtle 3 otter 2
    garden: mouse 3 cat 3 rabbit 3 frog 1 goose 1
    river: otter 4 duck 3 turtle 2 frog 1 bear 1
    hill: goat 4 rabbit 3 fox 2 owl 2
    village: cat 4 mouse 3 pig 2 goose 2 duck 1
""")
_TRAITS = {
    "brave": {"": "brave", "est": "bravest"},
    "kind": {"": "kind", "est": "kindest"},
    "clever": {"": "clever", "est": "cleverest"},
    "gentle": {"": "gentle", "est": "gentlest"},
    "quick": {"": "quick", "est": "quickest"},
    "wise": {"": "wise", "est": "wisest"},
}
_TRAITS_OF = _tables("""
    bear: gentle 5 brave 3 kind 2 wise 1
    cat: quick 4 clever 4 brave 2 kind 1
    crab: brave 3 quick 2 clever 2 kind 1
    duck: kind 4 gentle 3 quick 1 brave 1
    fox: clever 6 quick 3 brave 1 wise 1
    frog: quick 4 clever 2 kind 2 brave 1
    goat: brave 4 quick 2 clever 2 wise 1
    goose: kind 4 wise 2 gentle 2 clever 1
    mouse: brave 4 kind 3 gentle 2 quick 2
    otter: quick 4 clever 3 kind 2 brave 1
    owl: wise 7 kind 2 clever 2 gentle 1
    pig: kind 3 clever 3 gentle 2 brave 1
    rabbit: quick 6 gentle 3 kind 2 brave 1
    seal: gentle 3 kind 3 quick 2 brave 1
    turtle: wise 5 gentle 4 kind 2 brave 1
""")
_ANIMALS = _nouns(_values(_ANIMALS_AT))
_WHO = {
    "hero": GrammarChoice("name", _NAMES, {(): _GIRLS | _BOYS}),
    "place": _alone("place", _PLACES, "forest 4 farm 3 pond 3 sea 2 garden 3 river 2 hill 2 village 3"),
    "animal": _by("place", "animal", _ANIMALS, _ANIMALS_AT),
    "friend": _by("hero", "name", _NAMES, _FRIENDS),
    "animal2": GrammarChoice(
        "animal",
        _ANIMALS,
        {
            (position, animal): _without(weights, animal)
            for position, weights in _ANIMALS_AT.items()
            for animal in weights
        },
        ("place", "animal"),
    ),
}
_WHO_AND_HOW = {**_WHO, "trait": _by("animal", "trait", _TRAITS, _TRAITS_OF)}


def _hero_or_friend(hero: int, friend: int) -> GrammarChoice:
    """One of the two, by weight."""
    return GrammarChoice("name", _NAMES, {(h, f): {h: hero, f: friend} for h, f in _PAIRS}, ("hero", "friend"))


def _other_than(one: str) -> GrammarChoice:
    """Whoever of the two is not `one`: no free choice."""
    return GrammarChoice(
        "name",
        _NAMES,
        {(h, f, first): {second: 1} for h, f in _PAIRS for first, second in ((h, f), (f, h))},
        ("hero", "friend", one),
    )


# What: the things at hand depend on the place, their color on the thing.

_TOYS_AT = _tables("""
    forest: lantern 4 basket 3 scarf 2 drum 1
    farm: bell 4 basket 3 blanket 2 hat 2
    pond: ball 3 hat 2 book 2 lantern 2 kite 1
    sea: kite 4 ball 4 hat 2 book 1
    garden: ball 3 book 3 blanket 2 bell 1 drum 1
    river: lantern 3 hat 2 drum 2 book 1 kite 1
    hill: kite 5 scarf 3 bell 2 ball 1
    village: drum 4 book 3 scarf 2 hat 2 bell 1
""")
_COLOURS_OF = _tables("""
    bag: green 3 blue 2 red 2 orange 1
    ball: red 4 blue 3 orange 2 green 1
    basket: yellow 4 white 3 orange 2
    bell: golden 4 silver 4 red 1
    blanket: white 3 blue 3 purple 2 green 1
    book: blue 3 red 3 green 2 purple 1
    coat: green 3 red 2 purple 2 white 1
    cup: silver 4 golden 3 blue 1
    drum: red 4 yellow 2 blue 1 golden 1
    hat: purple 3 green 3 orange 2 red 1
    kite: red 3 yellow 3 orange 3 blue 1
    lantern: golden 4 red 2 green 2 orange 1
    medal: golden 4 silver 3
    ribbon: blue 3 red 3 purple 2 yellow 1
    sack: white 3 yellow 2 green 1
    scarf: purple 3 blue 3 white 2 orange 1
""")
_SPOTS_AT = _tables("""
    forest: tree 4 log 3 bush 3 rock 2
    farm: barn 4 fence 3 well 2 tree 1
    pond: rock 3 log 3 boat 2 bridge 1
    sea: rock 4 boat 4 wall 1
    garden: wall 3 bench 3 bush 2 tree 2
    river: bridge 4 boat 2 rock 2 log 1
    hill: rock 4 tree 3 wall 2 fence 1
    village: well 4 bench 3 wall 2 fence 2
""")
_THINGS = _nouns(_COLOURS_OF)
_COLOURS = _nouns(_values(_COLOURS_OF))
_TOY = _by("place", "object", _THINGS, _TOYS_AT)
_SECOND_TOY = GrammarChoice(
    "object",
    _THINGS,
    {(position, toy): _without(weights, toy) for position, weights in _TOYS_AT.items() for toy in weights},
    ("place", "object"),
)
_PAPERS = _weights("white 4 yellow 2 blue 2 green 2 red 1 silver 1")
_SPOT = _by("place", "spot", _nouns(_values(_SPOTS_AT)), _SPOTS_AT)
_FEELING = _alone("feeling", _nouns(["happy", "glad", "pleased"]), "happy 4 glad 3 pleased 2")


def _colour_of(thing: str) -> GrammarChoice:
    return _by(thing, "colour", _COLOURS, _COLOURS_OF)


# What happens: an accident and its cure, an occasion and how it ends, a trap and the way out, a sum.

_DAMAGES = {
    "tore": {"": "tore", "en": "torn"},
    "broke": {"": "broke", "en": "broken"},
    "cracked": {"": "cracked", "en": "cracked"},
}
_DAMAGES_OF = _tables("""
    ball: tore 3 cracked 1
    basket: broke 3 tore 2
    bell: cracked 4 broke 1
    blanket: tore 1
    book: tore 1
    drum: cracked 2 broke 2 tore 1
    hat: tore 1
    kite: tore 3 broke 3
    lantern: broke 3 cracked 2
    scarf: tore 1
""")
_CURES = _tables("""
    tore: thread 5 tape 3
    broke: glue 3 wire 3 tape 1
    cracked: glue 4 tape 2 wire 1
""")
_OCCASIONS = {
    "birthday": {"": "had a birthday", "then": "had the best birthday ever"},
    "ill": {"": "was ill in bed", "then": "soon felt well again"},
    "lonely": {"": "felt sad and lonely", "then": "never felt lonely again"},
    "house": {"": "moved to a new house", "then": "felt at home at last"},
}
_TRAPS = {
    "well": {"": "fell into the well", "out": "out of the well"},
    "mud": {"": "got stuck in the mud", "out": "out of the mud"},
    "hole": {"": "fell into a hole", "out": "out of the hole"},
    "tree": {"": "got stuck in a tree", "out": "out of the tree"},
}
_TRAPS_AT = _tables("""
    forest: tree 4 hole 3 mud 1
    farm: well 3 mud 3 hole 1
    pond: mud 4 hole 2
    sea: hole 3 mud 2
    garden: hole 3 well 2 tree 2
    river: mud 4 tree 2 hole 1
    hill: hole 4 tree 2
    village: well 4 tree 2 hole 1
""")
_WAYS_OUT = _tables("""
    well: rope 4 ladder 2
    mud: branch 3 rope 3
    hole: ladder 3 rope 3 branch 1
    tree: ladder 5 rope 1
""")
_QUALITIES_OF = _tables("""
    rope: long 4 strong 3 old 2
    ladder: old 3 long 3 strong 1
    branch: strong 3 long 2 old 1
""")
_SPORTS_AT = _tables("""
    forest: ran 4 climbed 2 hopped 2
    farm: ran 4 hopped 3
    pond: swam 5 rowed 2 hopped 1
    sea: swam 4 rowed 3 ran 2
    garden: hopped 4 ran 3
    river: rowed 4 swam 3 ran 1
    hill: climbed 5 ran 2 hopped 1
    village: ran 5 hopped 2
""")
_SNACKS_OF = _tables("""
    bear: berries 5 apples 2 nuts 1
    cat: plums 2 apples 2 nuts 1
    crab: berries 2 nuts 2 plums 1
    duck: berries 3 plums 2 nuts 2
    fox: plums 3 berries 3 apples 1
    frog: plums 3 berries 2 nuts 1
    goat: carrots 4 apples 3 plums 1
    goose: nuts 3 berries 2 apples 2
    mouse: nuts 5 berries 2 carrots 1
    otter: plums 3 apples 2 berries 1
    owl: nuts 3 berries 3 plums 1
    pig: apples 5 carrots 3 plums 1
    rabbit: carrots 6 apples 2 nuts 1
    seal: apples 2 plums 2 nuts 2
    turtle: plums 3 carrots 2 berries 1
""")
_EATEN_OF = _tables("""
    five: two 3 three 1
    six: two 3 three 2
    seven: two 2 three 2 four 1
    eight: three 2 four 2 two 1
""")
_COUNT = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]
_NUMBERS = _nouns([*_COUNT[2:], "ten", "twenty"])
_LEFT: dict[tuple[str, ...], Weights] = {
    (whole, eaten): {_COUNT[_COUNT.index(whole) - _COUNT.index(eaten)]: 1}
    for whole, weights in _EATEN_OF.items()
    for eaten in weights
}

# The plots. No story may have more than 62 tokens: the longest sentence of each beat counts.

_OPENING = _beats("""
    4 Once upon a time, {hero} the {animal} lived {place}.
    3 {hero} was {animal.a} {animal} who lived {place}.
    2 Long ago, {animal.a} {animal} named {hero} lived {place}.
    2 {hero} the {animal} had a little house {place}.
""")
_OPENING_WITH_TRAIT = _beats("""
    4 {hero} was a {trait} {animal} who lived {place}.
    3 {place} lived a {trait} {animal} named {hero}.
    2 Long ago, {hero} the {trait} {animal} lived {place}.
""")
_FORGOTTEN = "One day {hero.he} left {hero.his} {colour} {object} behind the {spot}."
_STOLEN = "A naughty crow hid {hero.his} {colour} {object} behind the {spot}."
_BLOWN = "One day the wind blew {hero.his} {colour} {object} behind the {spot}."
_MISHAPS = {toy: {_FORGOTTEN: 3, _STOLEN: 2} for toy in ("basket", "bell", "book", "drum", "lantern")} | {
    toy: {_BLOWN: 5, _FORGOTTEN: 1, _STOLEN: 1} for toy in ("ball", "blanket", "hat", "kite", "scarf")
}
_LOST = Plot(
    weight=5,
    choices={
        **_WHO,
        "object": _TOY,
        "colour": _colour_of("object"),
        "spot": _SPOT,
        "finder": _hero_or_friend(2, 3),
        "feeling": _FEELING,
    },
    beats=(
        *_OPENING,
        _by("object", "sentence", {}, _MISHAPS),
        *_beats("""
            3 {friend} the {animal2} saw {hero.him} crying and came to help.
            2 {hero.he} asked {friend} the {animal2} to help {hero.him} look.
            2 "I will help you," said {friend} the {animal2}.

            3 {finder} looked behind the {spot} and found the {object}.
            2 At last {finder} found the {object} behind the {spot}.
            1 "Here it is," called {finder} from behind the {spot}.

            3 {hero} was {feeling} to have the {colour} {object} back.
            2 {hero} hugged {friend} and felt {feeling} all day.
            2 Now {hero} was {feeling}, and so was {friend}.
        """),
    ),
)

_GIFT = Plot(
    weight=4,
    choices={
        **_WHO,
        "occasion": _alone("occasion", _OCCASIONS, "birthday 4 ill 3 lonely 2 house 2"),
        "object": _TOY,
        "colour": _colour_of("object"),
        "paper": _by("colour", "colour", _COLOURS, {colour: _without(_PAPERS, colour) for colour in _COLOURS}),
    },
    beats=(
        *_OPENING,
        *_beats("""
            3 One day {friend} the {animal2} {occasion}.
            2 {hero.his} friend {friend} the {animal2} {occasion}.

            3 So {hero} wrapped {colour.a} {colour} {object} in {paper} paper.
            2 {hero} made {friend.him} {colour.a} {colour} {object} and wrapped it in {paper} paper.

            3 {friend} opened the {paper} paper and saw the {object}.
            2 Out of the {paper} paper came the {colour} {object}.
            1 In the {paper} paper, {friend} found {colour.a} {colour} {object}.

            3 {friend} loved the {colour} {object} and {occasion.then}.
            2 {friend} hugged {hero} and {occasion.then}.
        """),
    ),
)

_RACE = Plot(
    weight=4,
    choices={
        **_WHO_AND_HOW,
        "spot": _SPOT,
        "object": _alone("object", _THINGS, "ribbon 3 cup 3 medal 2"),
        "colour": _colour_of("object"),
        "sport": _by("place", "sport", _nouns(_values(_SPORTS_AT)), _SPORTS_AT),
        "winner": GrammarChoice(
            "name",
            _NAMES,
            {(h, f, t): {h: 4, f: 1} if t == "quick" else {h: 2, f: 3} for h, f in _PAIRS for t in _TRAITS},
            ("hero", "friend", "trait"),
        ),
        "loser": _other_than("winner"),
    },
    beats=(
        *_OPENING_WITH_TRAIT,
        *_beats("""
            3 One day {hero.he} and {friend} the {animal2} had a race to the {spot}.
            2 "Let us race to the {spot}," said {friend} the {animal2}.

            3 The prize was {colour.a} {colour} {object}.
            2 They both wanted the prize, {colour.a} {colour} {object}.

            3 {winner} {sport} as fast as {winner.he} could and won.
            3 {winner} {sport} faster and reached the {spot} first.
            2 {winner} {sport} and {sport} and was first at the {spot}.

            3 {loser} cheered, and {winner} took the {colour} {object} home.
            2 {winner} held up {winner.his} {colour} {object}, and {loser} clapped.
        """),
    ),
)

_REPAIR = Plot(
    weight=4,
    choices={
        **_WHO,
        "object": _TOY,
        "colour": _colour_of("object"),
        "damage": _by("object", "damage", _DAMAGES, _DAMAGES_OF),
        "tool": _by("damage", "tool", _nouns(_values(_CURES)), _CURES),
    },
    beats=(
        *_OPENING,
        *_beats("""
            3 One day {hero.his} {colour} {object} {damage}, and {hero.he} cried.
            2 In a storm, {hero.his} {colour} {object} {damage}.
            2 One day {hero.he} fell, and {hero.his} {colour} {object} {damage}.

            3 {friend} the {animal2} came with some {tool}.
            2 {hero.he} ran to {friend} the {animal2}, who had some {tool}.
            2 "I have some {tool}," said {friend} the {animal2}.

            3 With the {tool}, they mended the {damage.en} {object}.
            2 {friend} mended the {damage.en} {object} with the {tool}.
            2 They used the {tool} on the {damage.en} {object}.

            3 Soon the {colour} {object} was as good as new.
            2 {hero} thanked {friend} and took the {colour} {object} home.
            1 {hero} hugged {friend} and held the {colour} {object}.
        """),
    ),
)

_RESCUE = Plot(
    weight=3,
    choices={
        **_WHO_AND_HOW,
        "trap": _by("place", "trap", _TRAPS, _TRAPS_AT),
        "tool": _by("trap", "tool", _nouns(_values(_WAYS_OUT)), _WAYS_OUT),
        "quality": _by("tool", "quality", _nouns(_values(_QUALITIES_OF)), _QUALITIES_OF),
    },
    beats=(
        *_OPENING_WITH_TRAIT,
        *_beats("""
            3 One day {friend} the {animal2} {trap}.
            2 "I {trap}!" cried {friend} the {animal2}.
            2 On the way home, {friend} the {animal2} {trap}.

            3 {hero} heard {friend.him} and came with {quality.a} {quality} {tool}.
            2 {hero} ran to get {quality.a} {quality} {tool}.

            3 {friend} held on to the {quality} {tool} and climbed {trap.out}.
            2 With the {tool}, {hero.he} helped {friend.him} {trap.out}.
            2 {hero} held the {quality} {tool}, and {friend} climbed {trap.out}.

            3 {friend} said {hero} was the {trait.est} {animal} {place}.
            2 {friend} hugged {hero}, the {trait.est} {animal} of all.
            1 Now {hero} was the {trait.est} {animal} {place}.
        """),
    ),
)

_TRADE = Plot(
    weight=3,
    choices={
        **_WHO,
        "object": _TOY,
        "colour": _colour_of("object"),
        "object2": _SECOND_TOY,
        "colour2": _colour_of("object2"),
        "asker": _hero_or_friend(3, 2),
        "other": _other_than("asker"),
        "feeling": _FEELING,
    },
    beats=_beats("""
        3 {hero} the {animal} lived {place} and had {colour.a} {colour} {object}.
        2 {place} lived {hero} the {animal}, who had {colour.a} {colour} {object}.

        3 {hero.his} friend {friend} the {animal2} had {colour2.a} {colour2} {object2}.
        2 {hero.he} met {friend} the {animal2}, who had {colour2.a} {colour2} {object2}.

        3 {asker} asked to trade, and {other} said yes.
        2 "Let us trade," said {asker}, and {other} agreed.

        3 So {hero} took the {colour2} {object2} and {friend} took the {colour} {object}.
        2 Now {friend} had the {colour} {object} and {hero} had the {colour2} {object2}.
        1 {friend} took the {colour} {object}, and {hero} took the {colour2} {object2}.

        3 They were both {feeling} and played until dark.
        2 {hero} and {friend} were both {feeling} all day.
        1 {other} was {feeling}, and so was {asker}.
    """),
)

_SEEK = Plot(
    weight=3,
    choices={
        **_WHO,
        "seeker": _hero_or_friend(1, 1),
        "hider": _other_than("seeker"),
        "number": _alone("number", _NUMBERS, "ten 4 twenty 3 eight 1 five 1"),
        "spot": _SPOT,
        "object": _alone("object", _THINGS, "hat 3 scarf 2 coat 2"),
        "colour": _colour_of("object"),
    },
    beats=_beats("""
        3 {hero} the {animal} and {friend} the {animal2} met {place}.
        2 {place}, {hero} the {animal} met {friend} the {animal2}.

        3 They wanted to play hide and seek.
        2 "Let us play hide and seek," said {friend}.
        1 It was time to play hide and seek.

        3 {seeker} looked away and counted to {number}.
        2 {seeker} counted to {number}.

        3 {hider} hid behind the {spot} in {hider.his} {colour} {object}.
        2 In {colour.a} {colour} {object}, {hider} hid behind the {spot}.

        3 {seeker} saw the {colour} {object} and found {hider.him}.
        2 The {colour} {object} gave {hider.him} away.

        3 They laughed, and then {hider} counted to {number}.
        2 Then it was {hider.his} turn to count to {number}.
    """),
)

_VISIT = Plot(
    weight=3,
    choices={
        **_WHO,
        "food": _by("animal", "food", _nouns(_values(_SNACKS_OF)), _SNACKS_OF),
        "object": _alone("object", _THINGS, "bag 3 basket 3 sack 2"),
        "colour": _colour_of("object"),
        "number": _alone("number", _NUMBERS, "five 2 six 2 seven 2 eight 3"),
        "eaten": _by("number", "number", _NUMBERS, _EATEN_OF),
        "left": GrammarChoice("number", _NUMBERS, _LEFT, ("number", "eaten")),
    },
    beats=_beats("""
        3 {hero} the {animal} packed {number} {food} in {colour.a} {colour} {object}.
        2 {hero} the {animal} had {number} {food} in {colour.a} {colour} {object}.

        3 {hero.he} went to visit {friend} the {animal2}, who lived {place}.
        2 It was a gift for {friend} the {animal2}, who lived {place}.

        3 On the way, {hero.he} grew hungry and ate {eaten} of the {food}.
        2 But {hero.he} ate {eaten} of the {food} on the way.

        3 When {friend} opened the {colour} {object}, only {left} {food} were left.
        2 So {hero} and {friend} shared the last {left} {food} from the {colour} {object}.
        2 {friend} looked in the {colour} {object} and found only {left} {food}.
    """),
)

PLOTS: Mapping[str, Plot] = {
    "lost": _LOST,
    "gift": _GIFT,
    "race": _RACE,
    "repair": _REPAIR,
    "rescue": _RESCUE,
    "trade": _TRADE,
    "seek": _SEEK,
    "visit": _VISIT,
}
