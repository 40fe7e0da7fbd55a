import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.data.tokenizer import characters, load_tokenizer, train_bpe, train_words
from adlm.errors import ConfigError
from adlm.models.network import Vocabulary
from adlm.randomness import Noise
from adlm.samplers import Analytic, Ancestral, Blocks, Canvas, Cap, FirstHitting, Ordered, PerStep, Remasking
from adlm.samplers.constraints import (
    Choice,
    Constraint,
    Digits,
    Pattern,
    Spot,
    any_text,
    begins_with_space,
    bound_sites,
    hold,
    token_texts,
)
from adlm.samplers.filters import Sites
from adlm.samplers.patterns import over_bytes, over_characters
from tests.conftest import TableModel
from tests.errors import raises

ALPHABET = "ab0-"
TOKENIZER = characters(ALPHABET)
MASK = TOKENIZER.mask_id
BPE = train_bpe(["the cat sat on the mat, naïve 1234 ünder"] * 20, 300)

atoms = st.sampled_from(["a", "b", "0", "-", ".", "[ab]", "[^a]", r"\d", r"\w", r"\W", "[b-]", "[^-0]"])
regexes = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}", "+?", "{2,}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=5,
)


def uniform_model(tokenizer):
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.mask_id)
    return TableModel(vocabulary, lambda tokens: torch.zeros(*tokens.shape, tokenizer.vocab_size))


def texts(length, regex):
    every = ("".join(letters) for letters in itertools.product(ALPHABET, repeat=length))
    return {text for text in every if re.fullmatch(regex, text)}


@settings(max_examples=80, deadline=None)
@given(regexes, st.lists(st.sampled_from([*ALPHABET, None]), min_size=1, max_size=3), st.data())
def test_a_token_is_allowed_exactly_where_the_hole_can_still_be_completed(regex, known, data):
    position = data.draw(st.integers(0, len(known) - 1))
    known[position] = None
    fitting = [
        text for text in texts(len(known), regex) if all(letter in (None, text[i]) for i, letter in enumerate(known))
    ]
    language = Pattern(regex).language(Spot(TOKENIZER))
    hole = [MASK if letter is None else int(TOKENIZER.encode(letter)[0]) for letter in known]
    allowed = np.flatnonzero(language.allowed(hole, position)).tolist()
    assert TOKENIZER.decode(allowed) == "".join(sorted({text[position] for text in fitting}, key=ALPHABET.index))
    assert language.among(range(1, 4)) == tuple(length for length in range(1, 4) if texts(length, regex))


BYTE_TABLES = {regex: over_bytes(*over_characters(regex, False)) for regex in (r"[\s\S]*", r"\w+|é.", "[^a-y߿-ࠀ]{1,2}")}


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=5), st.text(max_size=3).map(str.encode)))
def test_bytes_are_accepted_exactly_where_they_are_text_that_matches(raw):
    for regex, (table, accepts) in BYTE_TABLES.items():
        state = 0
        for byte in raw:
            state = table[state, byte] if state >= 0 else -1
        try:
            expected = re.fullmatch(regex, raw.decode()) is not None
        except UnicodeDecodeError:
            expected = False
        assert (state >= 0 and bool(accepts[state])) == expected


SAMPLERS = [
    Ancestral(steps=1),
    Ancestral(steps=3),
    Ordered(pace=PerStep(2)),
    Remasking(steps=6, rule=Cap(0.5)),
    FirstHitting(),
    Analytic(steps=4),
    Blocks(inner=Ancestral(steps=2), size=3),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("regex", ["(ab)+|a0*-", "[ab]{2}0.|-+"])
def test_every_text_that_matches_is_reached_and_no_other(sampler, regex):
    language = Pattern(regex).language(Spot(TOKENIZER))
    dash = int(TOKENIZER.encode("-")[0])
    rows = [[dash, *[MASK] * 4, MASK]] * 300
    held = tuple(Constraint(row, 1, 5, language) for row in range(300))
    canvas = Canvas.infilling(rows, MASK)
    canvas = Canvas(canvas.tokens, canvas.frozen, canvas.sample_ids, held)
    tokens = sampler.sample(uniform_model(TOKENIZER), canvas, noise=Noise(0)).tokens
    assert {TOKENIZER.decode(row[1:5]) for row in tokens.tolist()} == texts(4, regex)
    assert len(tokens[:, 5].unique()) > len(ALPHABET)  # what is free is free


def test_a_held_sample_is_the_same_alone_and_in_a_batch():
    language = Pattern("[ab]+0[ab]+").language(Spot(TOKENIZER))
    canvas = Canvas.blank(5, 6, MASK)
    held = tuple(Constraint(row, 0, 6, language) for row in range(5))
    whole = Ancestral(steps=2).sample(
        uniform_model(TOKENIZER), Canvas(canvas.tokens, canvas.frozen, canvas.sample_ids, held), noise=Noise(1)
    )
    alone = Canvas(canvas.tokens[3:4], canvas.frozen[3:4], canvas.sample_ids[3:4], held[:1])
    part = Ancestral(steps=2).sample(uniform_model(TOKENIZER), alone, noise=Noise(1))
    assert torch.equal(part.tokens, whole.tokens[3:4])


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(3)), st.randoms(use_true_random=False), st.booleans())
def test_digits_come_in_any_order(order, random, space):
    language = Digits().language(Spot(BPE, "a", space))
    hole = [BPE.mask_id] * 3
    for position in order:
        hole[position] = random.choice(np.flatnonzero(language.allowed(hole, position)).tolist())
    assert re.fullmatch(" [0-9]+" if space else "[0-9]+", BPE.decode(hole))


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), st.randoms(use_true_random=False))
def test_characters_may_be_split_among_tokens(order, random):
    language = Pattern("[äöü中]{2}").language(Spot(BPE))
    assert language.among(range(1, 9)) == (4, 5, 6)  # two or three bytes each, and no token has more
    hole = [BPE.mask_id] * 4
    for position in order:
        hole[position] = random.choice(np.flatnonzero(language.allowed(hole, position)).tolist())
    assert re.fullmatch("[äöü中]{2}", BPE.decode(hole))


def test_positions_without_constraint_are_left_alone():
    language = Pattern("a+").language(Spot(TOKENIZER))
    logits = torch.randn(3, TOKENIZER.vocab_size)
    sites = Sites(torch.full((2, 4), MASK), torch.tensor([0, 0, 1]), torch.tensor([0, 2, 2]))
    held = [Constraint(0, 2, 4, language), Constraint(1, 0, 3, any_text(Spot(TOKENIZER)))]
    out = hold(logits, sites, held)
    assert torch.equal(out[0], logits[0])
    assert out[1].isfinite().nonzero().tolist() == [[int(TOKENIZER.encode("a")[0])]]
    assert out[2].isfinite().sum() == len(ALPHABET)
    assert bound_sites(sites.row, sites.position, held).tolist() == [False, True, False]
    assert not bound_sites(sites.row, sites.position, ()).any()


def wordpiece(folder):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "red", "##fix", "pre", ".", ",", "7"]
    (folder / "vocab.txt").write_text("\n".join(words))
    return load_tokenizer(folder)


def test_wordpiece_holes_read_as_the_decoded_row_does(tmp_path):
    tokenizer = wordpiece(tmp_path)
    first, later = token_texts(tokenizer)
    ids = {name: tokenizer.backend.token_to_id(name) for name in ("cat", "##s", ".", "[MASK]", "[SEP]", "pre")}
    assert [first.text(ids[name]) for name in ("cat", ".", "[SEP]")] == [b"cat", b".", b""]
    assert [later.text(ids[name]) for name in ("cat", "##s", ".", "[MASK]")] == [b" cat", b"s", b".", b""]
    assert begins_with_space(tokenizer, first=False)
    assert not begins_with_space(tokenizer, first=True)
    language = Pattern("[a-z]+").language(Spot(tokenizer, "the", space=True))
    allowed = np.flatnonzero(language.allowed([tokenizer.mask_id, ids["##s"]], 0))
    assert {tokenizer.decode([ids["pre"], i]) for i in allowed.tolist()} == {"pre the", "pre cat", "pre red", "pre pre"}
    at_start = Pattern("[a-z]+").language(Spot(tokenizer, first=True))
    assert ids["cat"] in np.flatnonzero(at_start.allowed([tokenizer.mask_id], 0))
    assert Choice(("red",)).language(Spot(tokenizer, "the", space=True)).lengths == (1,)
    assert Choice(("cats", "red")).language(Spot(tokenizer, first=True)).lengths == (1, 2)
    assert Choice(("fix",)).language(Spot(tokenizer, "pre")).lengths == (1,)
    with raises(ConfigError, subject="Red"):
        Choice(("Red",)).language(Spot(tokenizer, first=True))


def test_a_choice_is_in_the_tokens_of_its_place():
    words = train_words(["the red cat and a blue green dog"])
    language = Choice(("red", "blue green")).language(Spot(words, "the", space=True))
    assert language.lengths == (1, 2)
    mask = words.mask_id
    red, blue, green = words.encode(" red blue green").tolist()
    assert np.flatnonzero(language.allowed([mask], 0)).tolist() == [red]
    assert np.flatnonzero(language.allowed([mask] * 2, 0)).tolist() == [blue]
    assert np.flatnonzero(language.allowed([blue, mask], 1)).tolist() == [green]
    assert not language.allowed([red, mask], 1).any()
    with raises(ConfigError, subject="violet"):
        Choice(("violet",)).language(Spot(words, "the", space=True))


def test_special_tokens_are_never_allowed():
    for tokenizer in (TOKENIZER, BPE):
        special = {tokenizer.mask_id, tokenizer.roles.eos_id}
        for language in (Pattern("(.|\n)+").language(Spot(tokenizer)), any_text(Spot(tokenizer))):
            allowed = set(np.flatnonzero(language.allowed([tokenizer.mask_id] * 2, 1)).tolist())
            assert not allowed & special
            assert len(allowed) > 3


@pytest.mark.parametrize(
    "regex", ["(", r"(a)\1", "a(?=b)", r"\bab", "(?i)a", "(?i:a)", "(?:a{100}){200}", "[ab]*a[ab]{16}"]
)
def test_patterns_that_cannot_be_held_are_refused_by_name(regex):
    with raises(ConfigError, subject=regex):
        Pattern(regex).language(Spot(TOKENIZER))


def test_anchors_around_the_whole_pattern_change_nothing():
    language = Pattern("^ab$").language(Spot(TOKENIZER))
    assert language.among(range(1, 5)) == (2,)


@pytest.mark.parametrize("options", [(), ("a", ""), "red", ["red"]])
def test_choices_without_texts_are_refused(options):
    with raises(ConfigError, subject="Choice.options"):
        Choice(options)
