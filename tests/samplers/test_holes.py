import pytest

from adlm.data.tokenizer import characters, load_tokenizer, train_bpe, train_words
from adlm.errors import ConfigError
from adlm.samplers.constraints import Choice, Digits, Pattern
from adlm.samplers.holes import Hole, Template, read_holes
from tests.errors import raises

CORPUS = ["the cat sat on the mat. the dog sat on the log.", "cat  log", "log"] * 4
WORDS, BPE = train_words(CORPUS), train_bpe(CORPUS, 290)
LETTERS = characters(" abcdefghijklmnopqrstuvwxyz.")


def test_holes_are_read_as_written():
    texts, holes = read_holes("[MASK:2-6] a [MASK][MASK:14][x")
    assert texts == ["", " a ", "", "[x"]
    assert holes == [Hole("[MASK:2-6]", 2, 6, True), Hole("[MASK]"), Hole("[MASK:14]", 14, 14, True)]


@pytest.mark.parametrize(
    "hole",
    ["[MASK:0]", "[MASK:5-2]", "[MASK:x]", "[MASK:]", "[MASK:-3]", "[MASK:2-]", "[MASK: 3]", "[MASK:3", "[MASK:12345]"],
)
def test_malformed_holes_are_refused(hole):
    with raises(ConfigError, subject=hole):
        read_holes(f"the {hole}")


def test_a_text_without_holes_is_refused():
    with raises(ConfigError, subject="text"):
        read_holes("the cat [mask]")


def filled(tokenizer, text, fillings):
    """The text with the tokens of each filling in its hole, the space before it taken along if the hole has it."""
    template = Template.read(text, tokenizer)
    ids = list(template.parts[0])
    for part, language, filling in zip(template.parts[1:], template.languages, fillings, strict=True):
        ways = [tokenizer.encode(each).tolist() for each in (filling, " " + filling)]
        (right,) = [way for way in ways if language.allowed(way, 0)[way[0]]][:1]
        ids += [*right, *part]
    return tokenizer.decode(ids)


@pytest.mark.parametrize("tokenizer", [WORDS, BPE, LETTERS], ids=["words", "bpe", "letters"])
def test_spaces_around_holes_stay(tokenizer):
    for text in ("the [MASK] sat on [MASK].", "the[MASK] sat on[MASK].", "[MASK] sat [MASK]", " [MASK]  [MASK] dog"):
        expected = text.replace("[MASK]", "cat", 1).replace("[MASK]", "log", 1)
        assert filled(tokenizer, text, ["cat", "log"]) == expected


def test_a_space_before_a_hole_is_its_first_where_words_bring_theirs():
    for tokenizer, within in ((WORDS, True), (BPE, True), (LETTERS, False)):
        template = Template.read("the [MASK] sat", tokenizer)
        assert tokenizer.decode(template.parts[0]) == ("the" if within else "the ")
        (language,) = template.languages
        texts = [tokenizer.decode([i]) for i in language.allowed((), 0).nonzero()[0]]
        assert all(text.startswith(" ") for text in texts) == within
        assert any(not tokenizer.decode([i]).startswith(" ") for i in language.allowed((), 1).nonzero()[0])


def test_wordpiece_spaces_are_those_of_the_decoded_text(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = load_tokenizer(tmp_path)
    assert filled(tokenizer, "the [MASK] sat.", ["cat"]) == "the cat sat."
    assert filled(tokenizer, "[MASK] cat", ["the"]) == filled(tokenizer, " [MASK] cat", ["the"]) == "the cat"
    (language,) = Template.read("the [MASK]", tokenizer).languages
    assert not language.allowed((), 0)[tokenizer.backend.token_to_id("##s")]
    (language,) = Template.read("the cat[MASK]", tokenizer).languages
    assert language.allowed((), 0)[tokenizer.backend.token_to_id("##s")]


def test_lengths_are_those_that_can_be_right():
    def lengths(text, *constraints, tokenizer=LETTERS):
        return tuple(map(tuple, Template.read(text, tokenizer, constraints).lengths))

    assert lengths("a[MASK:2-4]", None) == ((2, 3, 4),)
    assert lengths("a[MASK:1-9][MASK]", Pattern("(ab|cde)+"), None) == ((2, 3, 4, 5, 6, 7, 8, 9), (1,))
    assert lengths("the [MASK]", Choice(("cat", "dog sat")), tokenizer=WORDS) == ((1, 2),)
    assert lengths("the [MASK:2-5]", Choice(("cat", "dog sat")), tokenizer=WORDS) == ((2,),)
    for text, constraint in (("[MASK:2]", Pattern("a")), ("[MASK]", Digits()), ("[MASK:3-4]", Choice(("a",)))):
        with raises(ConfigError, subject=text):
            lengths(text, constraint)


def test_constraints_lie_on_the_holes():
    template = Template.read("ab[MASK:2]c[MASK]", LETTERS)
    assert template.ids((2, 1), LETTERS.mask_id) == [*LETTERS.encode("ab"), *[LETTERS.mask_id] * 2,
                                                     *LETTERS.encode("c"), LETTERS.mask_id]  # fmt: skip
    assert [span[:2] for span in template.spans((2, 1), offset=1)] == [(3, 5), (6, 7)]


def test_there_is_one_constraint_for_each_hole():
    for constraints in ([], [None], [None] * 3, Digits()):
        with raises(ConfigError, subject="constraints"):
            Template.read("[MASK][MASK]", LETTERS, constraints)
    with raises(ConfigError, subject="'a'"):
        Template.read("[MASK]", LETTERS, ["a"])


def test_too_many_combinations_are_refused():
    assert len(Template.read("[MASK:1-8] a [MASK:2-9]", LETTERS).combinations()) == 64
    with raises(ConfigError, subject="hole lengths"):
        Template.read("[MASK:1-8] a [MASK:2-10]", LETTERS).combinations()
