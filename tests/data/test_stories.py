import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from random import Random
from string import Formatter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlm.data.source import Piece
from adlm.data.stories import Choices, Grammar, Stories, _Frame, tokens_of
from adlm.data.stories_grammar import PLOTS, GrammarChoice, Plot
from adlm.errors import ConfigError, UnknownName
from tests.errors import raises

STORIES = Stories()
GRAMMAR = Grammar(PLOTS)


def names(*weights: tuple[str, int]) -> GrammarChoice:
    forms = {"Mia": {"": "Mia", "he": "she"}, "Tom": {"": "Tom", "he": "he"}, "Ivy": {"": "Ivy", "he": "she"}}
    return GrammarChoice("name", forms, {(): dict(weights)})


SIZES = {"big": {"": "very big", "a": "a"}, "old": {"": "old", "a": "an"}}
PETS = {"cat": {"": "cat"}, "owl": {"": "owl"}}
TINY = {
    "pet": Plot(
        weight=2,
        choices={
            "hero": names(("Mia", 3), ("Tom", 1)),
            "pet": GrammarChoice("pet", PETS, {("Mia",): {"cat": 1, "owl": 2}, ("Tom",): {"cat": 1}}, ("hero",)),
            "size": GrammarChoice("size", SIZES, {("cat",): {"big": 1, "old": 1}, ("owl",): {"old": 1}}, ("pet",)),
        },
        beats=(
            GrammarChoice(
                "sentence", {}, {(): {"{hero} has {size.a} {size} {pet}.": 3, "{size.a} {size} {pet} has {hero}!": 1}}
            ),
            GrammarChoice(
                "sentence",
                {},
                {
                    ("big",): {'"I love it," {hero.he} said.': 1, "{hero.he} loves the {pet}.": 1},
                    ("old",): {"{hero.he} loves the {pet}.": 1},
                },
                ("size",),
            ),
        ),
    ),
    "alone": Plot(
        weight=1,
        choices={"hero": names(("Mia", 1), ("Tom", 1), ("Ivy", 2))},
        beats=(GrammarChoice("sentence", {}, {(): {"{hero} is alone.": 1}}),),
    ),
}


def outcomes(plots: Mapping[str, Plot]) -> Iterator[tuple[Choices, float]]:
    """All choices with their probabilities, straight from the tables."""
    for name, plot in plots.items():
        worlds = [({"plot": name}, plot.weight / sum(other.weight for other in plots.values()))]
        beats = {f"sentence {n}": beat for n, beat in enumerate(plot.beats, 1)}
        for step, choice in {**plot.choices, **beats}.items():
            grown = []
            for choices, probability in worlds:
                weights = choice.table[tuple(choices[parent] for parent in choice.given)]
                grown += [({**choices, step: v}, probability * w / sum(weights.values())) for v, w in weights.items()]
            worlds = grown
        yield from worlds


@cache
def samples(count: int, seed: int = 7) -> tuple[str, ...]:
    return tuple(Stories(seed=seed, train=count).documents("train"))


@pytest.fixture(scope="module")
def tiny() -> Grammar:
    return Grammar(TINY)


def test_likelihoods_of_a_tiny_grammar_are_those_of_its_tables_and_sum_to_one(tiny: Grammar) -> None:
    told = [(tiny.write(choices), probability) for choices, probability in outcomes(TINY)]
    assert len({text for text, _ in told}) == len(told) == 17
    for text, probability in told:
        assert tiny.log_likelihood(text) == pytest.approx(math.log(probability))
    assert sum(math.exp(tiny.log_likelihood(text)) for text, _ in told) == pytest.approx(1)


def test_entropy_and_lengths_of_a_tiny_grammar_equal_their_enumeration(tiny: Grammar) -> None:
    told = [(len(tokens_of(tiny.write(choices))), probability) for choices, probability in outcomes(TINY)]
    assert tiny.entropy() == pytest.approx(-sum(probability * math.log(probability) for _, probability in told))
    assert tiny.mean_tokens() == pytest.approx(sum(length * probability for length, probability in told))
    assert tiny.max_tokens() >= max(length for length, _ in told)


def test_a_tiny_grammar_reads_back_what_it_wrote_and_nothing_else(tiny: Grammar) -> None:
    texts = {tiny.write(choices): choices for choices, _ in outcomes(TINY)}
    for text, choices in texts.items():
        assert tiny.read(text) == choices
    words = ["Mia", "Tom", "Ivy", "is", "alone"]
    for three in itertools.product(words, repeat=3):
        text = " ".join(three) + "."
        assert (tiny.log_likelihood(text) > -math.inf) == (text in texts) == (not tiny.problems(text))


def test_draws_follow_the_weights(tiny: Grammar) -> None:
    draws = np.random.Philox(1).random_raw(9000 * tiny.num_draws).reshape(9000, -1).tolist()
    texts = [tiny.write(tiny.draw(row)) for row in draws]
    for choices, probability in outcomes(TINY):
        error = math.sqrt(9000 * probability * (1 - probability))
        assert abs(texts.count(tiny.write(choices)) - 9000 * probability) < 4.5 * error


def test_the_largest_and_smallest_draws_are_within_the_urns(tiny: Grammar) -> None:
    for number in (0, 2**64 - 1):
        assert tiny.read(tiny.write(tiny.draw([number] * tiny.num_draws))) is not None


def test_entropy_is_the_mean_negative_log_likelihood_of_samples() -> None:
    surprises = np.array([-STORIES.log_likelihood(text) for text in samples(20_000)])
    error = surprises.std() / math.sqrt(len(surprises))
    assert abs(surprises.mean() - STORIES.entropy()) < 4 * error
    assert 22 < STORIES.entropy() < 35


def test_mean_tokens_is_the_mean_length_of_samples_and_no_story_has_more_than_62() -> None:
    lengths = np.array([len(tokens_of(text)) for text in samples(20_000)])
    assert abs(lengths.mean() - STORIES.mean_tokens()) < 4 * lengths.std() / math.sqrt(len(lengths))
    assert 36 <= lengths.min() <= lengths.max() <= STORIES.max_tokens() <= 62


def test_every_derivation_is_read_back_from_its_text_without_problems() -> None:
    draws = np.random.Philox(3).random_raw(1000 * GRAMMAR.num_draws).reshape(1000, -1).tolist()
    for row in draws:
        choices = GRAMMAR.draw(row)
        text = GRAMMAR.write(choices)
        assert GRAMMAR.read(text) == choices
        assert GRAMMAR.problems(text) == []


def test_no_two_sentences_of_a_beat_can_be_the_same_text() -> None:
    for program in GRAMMAR.programs.values():
        for frames in program.beats.values():
            for one, other in itertools.combinations(itertools.starmap(pattern, frames.items()), 2):
                assert not overlap(one, other)


def test_no_two_plots_can_tell_the_same_story() -> None:
    for one, other in itertools.combinations(GRAMMAR.programs.values(), 2):
        pairs = [
            [(pattern(*a), pattern(*b)) for a in left.items() for b in right.items()]
            for left, right in zip(one.beats.values(), other.beats.values(), strict=False)
        ]
        differing = [beat for beat in pairs if not any(overlap(a, b) for a, b in beat)]
        assert len(one.beats) != len(other.beats) or differing


def test_every_choice_is_told_in_some_beat_whatever_its_sentence() -> None:
    for program in GRAMMAR.programs.values():
        told = [
            set.intersection(*({s.choice for s in f.slots if len(s.telling) == len(s.words)} for f in frames.values()))
            for frames in program.beats.values()
        ]
        assert set.union(*told) == set(program.choices)


def test_no_form_of_a_slot_begins_another_so_that_a_sentence_has_one_reading() -> None:
    for program in GRAMMAR.programs.values():
        for frame in (frame for frames in program.beats.values() for frame in frames.values()):
            for slot in frame.slots:
                pairs = itertools.permutations([tokens_of(words) for words in set(slot.words.values())], 2)
                assert not any(longer[: len(shorter)] == shorter for shorter, longer in pairs)


def pattern(template: str, frame: _Frame) -> list[set[tuple[str, ...]]]:
    """A sentence as the words that may come next, with every slot free of the others."""
    parts: list[set[tuple[str, ...]]] = []
    slots = iter(frame.slots)
    for literal, field, _, _ in Formatter().parse(template):
        parts.append({tuple(tokens_of(literal))})
        if field is not None:
            parts.append({tuple(tokens_of(words)) for words in next(slots).words.values()})
    return parts


def overlap(one: list[set[tuple[str, ...]]], other: list[set[tuple[str, ...]]]) -> bool:
    """Whether some text is of both patterns."""

    @cache
    def meets(left: tuple[str, ...], i: int, right: tuple[str, ...], j: int) -> bool:
        common = min(len(left), len(right))
        if left[:common] != right[:common]:
            return False
        left, right = left[common:], right[common:]
        if not left and i < len(one):
            return any(meets(words, i + 1, right, j) for words in one[i])
        if not right and j < len(other):
            return any(meets(left, i, words, j + 1) for words in other[j])
        return not left and not right

    return meets((), 0, (), 0)


def test_overlap_knows_texts_that_two_patterns_fraction() -> None:
    assert overlap([{("a",), ("a", "b")}, {("c",)}], [{("a",)}, {("b", "c"), ("d",)}])
    assert not overlap([{("a",), ("b",)}, {("c",)}], [{("a",)}, {("b",)}])


@pytest.mark.parametrize("kind", ["name", "pronoun", "colour", "object", "spot", "number", "trait", "article"])
def test_one_changed_word_of_a_repeated_fact_is_named(kind: str) -> None:
    caught = 0
    for text in samples(150, seed=11):
        reading = GRAMMAR._reading(text)
        beats = list(GRAMMAR.programs[reading.choices["plot"]].beats)
        sentences = dict(zip(beats, split_sentences(text), strict=True))
        for told in reading.mentions.values():
            settling = [mention for mention in told if mention.words in mention.slot.telling]
            for mention in told:
                others = [words for words in mention.slot.words.values() if words != mention.words]
                if mention.slot.kind == kind and others and mention != settling[0]:
                    sentence, end = sentences[mention.beat], mention.start + len(mention.words)
                    changed = sentence[: mention.start] + others[0] + sentence[end:]
                    broken = " ".join({**sentences, mention.beat: changed}.values())
                    output_mask = f"{mention.beat}: the {kind} {others[0]!r} should be {mention.words!r}"
                    assert output_mask in GRAMMAR.problems(broken), broken
                    assert GRAMMAR.log_likelihood(broken) == -math.inf
                    caught += 1
    assert caught > 10


def split_sentences(text: str) -> list[str]:
    return re.split(r'(?<=[.!?]) (?=[A-Z"])', text)


STORY = (
    "Once upon a time, Tom the crab lived by the sea. One day his red kite broke, and he cried. "
    "Rosa the turtle came with some glue. With the glue, they mended the broken kite. "
    "Soon the red kite was as good as new."
)


@pytest.mark.parametrize(
    ("right", "wrong", "problem"),
    [
        ("his red", "her red", "sentence 2: the pronoun 'her' should be 'his'"),
        ("the red kite", "the blue kite", "sentence 5: the colour 'blue' should be 'red'"),
        ("broken kite", "broken drum", "sentence 4: the object 'drum' should be 'kite'"),
        ("broken", "torn", "sentence 4: the damage 'torn' should be 'broken'"),
        ("Rosa", "Tom", "the name 'Tom' does not go with the name 'Tom'"),
        ("turtle", "bear", "the animal 'bear' does not go with the place 'sea' and the animal 'crab'"),
        ("some glue", "some thread", "sentence 4: the tool 'glue' should be 'thread'"),
        ("Soon the", "Soon a", "sentence 5: unknown here: 'Soon a red kite was as good as new.'"),
        (" Soon the red kite was as good as new.", "", "number of sentences: 4 should be 5 in the plot 'repair'"),
        ("the sea.", "the sea. ", "sentence 2: unknown here: ' One day his red kite broke, and he cried.'"),
    ],
)
def test_a_broken_story_is_told_what_is_wrong(right: str, wrong: str, problem: str) -> None:
    assert STORIES.problems(STORY) == []
    assert right in STORY
    broken = STORY.replace(right, wrong, 1)
    assert problem in STORIES.problems(broken)
    assert STORIES.log_likelihood(broken) == -math.inf


def test_a_name_from_nowhere_is_a_problem() -> None:
    story = next(text for text in samples(200) if "counted to" in text)
    hider = re.search(r"then (\w+) counted|(\w+) hid", story)
    assert hider is not None
    name = hider[1] or hider[2]
    stranger = next(other for other in ("Oscar", "Theo", "Felix") if other not in story)
    assert any(stranger in problem for problem in STORIES.problems(story.replace(name, stranger, 1)))


def test_numbers_that_do_not_add_up_are_a_problem() -> None:
    story = (
        "Nora the otter packed seven plums in a white sack. She went to visit Lily the seal, who lived by the sea. "
        "But she ate four of the plums on the way. When Lily opened the white sack, only three plums were left."
    )
    assert STORIES.problems(story) == []
    assert STORIES.problems(story.replace("only three", "only five")) == [
        "the number 'five' does not go with the number 'seven' and the number 'four'"
    ]


@settings(deadline=None)
@given(st.integers(0, 199), st.randoms(use_true_random=False))
def test_shuffled_words_have_no_likelihood(index: int, random: Random) -> None:
    words = samples(200)[index].split()
    shuffled = random.sample(words, len(words))
    text = " ".join(shuffled)
    assert (STORIES.log_likelihood(text) == -math.inf) == (shuffled != words)


@settings(deadline=None)
@given(st.integers(0, 199), st.data())
def test_a_text_has_problems_exactly_if_it_has_no_likelihood(index: int, data: st.DataObject) -> None:
    words = samples(200)[index].split(" ")
    at = data.draw(st.integers(0, len(words) - 1))
    words[at] = data.draw(st.sampled_from([*samples(200)[0].split(" "), "", "dragon", "dragon."]))
    text = " ".join(words)
    likelihood = STORIES.log_likelihood(text)
    assert (STORIES.problems(text) == []) == (likelihood > -math.inf)
    assert likelihood < 0


@pytest.mark.parametrize("text", ["", " ", ".", "Hello.", '" "', "a\nb", "Tom. Tom. Tom. Tom. Tom.", "ä\u2028%s{hero}"])
def test_any_text_can_be_judged(text: str) -> None:
    assert STORIES.log_likelihood(text) == -math.inf
    assert STORIES.problems(text)
    assert STORIES.anchors(text) == []


def test_only_whitespace_around_a_story_is_forgiven() -> None:
    assert STORIES.log_likelihood(f"\n {STORY}\t") == STORIES.log_likelihood(STORY) > -math.inf
    assert STORIES.log_likelihood(STORY.replace(" ", "  ", 1)) == -math.inf
    assert STORIES.log_likelihood(STORY.replace(" ", "\n", 1)) == -math.inf


def test_anchors_are_the_words_of_the_free_choices() -> None:
    text = f"  {STORY}"
    words = [text[start:end] for start, end in STORIES.anchors(text)]
    assert words == ["Tom", "crab", "by the sea", "red", "kite", "broke", "Rosa", "turtle", "glue"]


def test_stories_are_written_as_english_is() -> None:
    for text in samples(20_000)[:5000]:
        sentences = split_sentences(text)
        assert 4 <= len(sentences) <= 7
        assert all(re.match(r'"?[A-Z]', sentence) and re.search(r"[.!]$", sentence) for sentence in sentences)
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]", text)
        assert not re.search(r"\s[.,!]|  |'|[{}]", text)
        assert text.count('"') % 2 == 0


def test_the_vocabulary_is_small_and_is_what_stories_use() -> None:
    used = {token for text in samples(20_000) for token in tokens_of(text)}
    assert used == set(STORIES.vocabulary())
    assert len(used) <= 301


def test_stories_are_documents_the_same_in_every_call() -> None:
    source = Stories(seed=3, train=600, valid=5, test=0)
    pieces = list(source.pieces("train"))
    assert pieces == list(Stories(seed=3, train=600).pieces("train"))
    assert [source.story("train", index) for index in (0, 255, 256, 599)] == [
        pieces[index].text for index in (0, 255, 256, 599)
    ]
    assert all(isinstance(piece, Piece) and piece.ends for piece in pieces)
    assert [len(list(source.documents(split))) for split in source.splits] == [600, 5, 0]


def test_more_stories_begin_with_the_same_ones() -> None:
    assert list(Stories(train=300).documents("train")) == list(Stories(train=900).documents("train"))[:300]


def test_the_first_story_is_the_same_on_every_machine() -> None:
    assert Stories().story("train", 0) == (
        "Ella was a crab who lived by the sea. A naughty crow hid her blue book behind the rock. "
        '"I will help you," said Noah the seal. Ella looked behind the rock and found the book. '
        "Ella was pleased to have the blue book back."
    )


def test_splits_and_seeds_hardly_share_a_story() -> None:
    sets = [
        set(Stories(seed=seed, train=2000).documents(split)) for seed in (0, 1) for split in ("train", "valid", "test")
    ]
    assert sum(map(len, sets)) - len(set.union(*sets)) < 5


def test_the_fingerprint_changes_with_all_that_shapes_the_text() -> None:
    prints = [
        str(source.fingerprint(split))
        for source, split in (
            (Stories(), "train"),
            (Stories(), "valid"),
            (Stories(seed=1), "train"),
            (Stories(train=10), "train"),
        )
    ]
    assert len(set(prints)) == len(prints)
    assert Stories(valid=1).fingerprint("train") == Stories().fingerprint("train")
    assert Grammar(TINY).checksum != Grammar(PLOTS).checksum == Stories().fingerprint("test")["grammar"]


@pytest.mark.parametrize("ask", [Stories.fingerprint, lambda s, split: list(s.pieces(split))])
def test_an_unknown_split_is_named(ask: Callable[[Stories, str], object]) -> None:
    with raises(UnknownName, name="validation"):
        ask(STORIES, "validation")


def test_impossible_settings_and_indices_are_refused() -> None:
    with pytest.raises(ConfigError, match="seed=-1"):
        Stories(seed=-1)
    with pytest.raises(IndexError):
        Stories(test=3).story("test", 3)


def test_stories_are_their_own_configuration() -> None:
    assert Stories(seed=2) == Stories(seed=2) != Stories(seed=3)
    assert len({Stories(), Stories()}) == 1
    assert Stories().name == "stories"
    assert "CC0" in Stories().licence
