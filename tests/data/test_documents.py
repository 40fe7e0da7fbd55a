"""Document rules and cuts on small texts."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlm.data.documents import (
    SPLITS,
    WHOLE,
    CorpusSize,
    FirstCharacters,
    FractionSplit,
    HashedDocuments,
    LastDocuments,
    Lines,
    Paragraphs,
    Separator,
    WikiTextArticles,
    as_lines,
    as_pieces,
    as_segments,
)
from adlm.data.source import PIECE_CHARACTERS, Piece
from adlm.errors import ConfigError
from tests.errors import raises


def divided(text: str, rule, detokenizer: str = "none") -> list[str]:  # type: ignore[no-untyped-def]
    segments = itertools.chain(as_lines([text]), [None])
    return [piece.text for piece in as_pieces(segments, rule, detokenizer)]


ARTICLES = (
    " \n = First = \n \n A table : \n = Not a title = \n 1 \n \n = = Section = = \n \n Text , here . \n"
    " \n = Second = \n \n B . \n"
)


def test_rules_find_the_documents() -> None:
    assert divided("a\n\n b \n", Lines()) == ["a", "b"]
    assert divided("a\n\n b", Lines(strip=False, keep_empty=True)) == ["a\n", "", " b"]
    assert divided("\na\nb\n\n \nc\n", Paragraphs()) == ["a\nb", "c"]
    assert divided("one\n<|endoftext|>\ntwo<|endoftext|>three\n<|endoftext|>\n", Separator()) == ["one", "two", "three"]
    assert divided("\n a\nb\n", WHOLE) == ["\n a\nb\n"]
    assert divided(" \n\n", WHOLE) == []


def test_wikitext_titles_stand_between_blank_lines() -> None:
    first, second = divided(ARTICLES, WikiTextArticles(), "wikitext")
    assert first == "= First =\n\nA table:\n= Not a title =\n1\n\n== Section ==\n\nText, here."
    assert second == "= Second =\n\nB."


def test_rows_of_the_hub_give_the_same_articles_as_the_file() -> None:
    rows = [line + "\n" if line.strip() else "" for line in ARTICLES.split("\n")[:-1]]
    rule = WikiTextArticles()
    pieces = as_pieces(as_segments(rows, rule), rule, "wikitext")
    assert [piece.text for piece in pieces] == divided(ARTICLES, rule, "wikitext")


def test_a_separator_is_found_across_the_parts_of_a_long_line() -> None:
    half = PIECE_CHARACTERS // 2
    text = "a" * (PIECE_CHARACTERS - 4) + "<|endoftext|>" + "b" * half
    chunks = (text[begin : begin + half] for begin in range(0, len(text), half))
    pieces = as_pieces(itertools.chain(as_lines(chunks), [None]), Separator(), "none")
    assert [piece.text[-1] for piece in pieces if piece.ends] == ["a", "b"]


@pytest.mark.parametrize("text", ["", "a\nb"])
def test_a_separator_must_lie_within_a_line(text: str) -> None:
    with raises(ConfigError, subject="text"):
        Separator(text)


@given(st.lists(st.text(alphabet="ab \n", max_size=40), max_size=6))
def test_lines_do_not_depend_on_the_chunks_they_come_in(chunks: list[str]) -> None:
    text = "".join(chunks)
    assert list(as_lines(chunks)) == list(as_lines([text]))
    assert "".join(as_lines(chunks)) == text


def selected(cut, pieces: list[Piece]) -> dict[str, list[Piece]]:  # type: ignore[no-untyped-def]
    size = CorpusSize(sum(piece.ends for piece in pieces), sum(len(piece.text) for piece in pieces))
    return {split: list(cut.select(split, iter(pieces), size)) for split in SPLITS}


@given(st.lists(st.tuples(st.text(alphabet="ab ", min_size=1, max_size=60), st.booleans()), min_size=1, max_size=30))
def test_shares_lose_nothing_and_repeat_nothing(parts: list[tuple[str, bool]]) -> None:
    pieces = [*(Piece(*part) for part in parts[:-1]), Piece(parts[-1][0])]
    splits = selected(FractionSplit(), pieces)
    assert "".join(piece.text for split in SPLITS for piece in splits[split]) == "".join(text for text, _ in parts)
    assert all(not found or found[-1].ends for found in splits.values())


def test_shares_hold_out_the_last_documents() -> None:
    splits = selected(FractionSplit(), [Piece(str(number)) for number in range(100)])
    assert [piece.text for piece in splits["valid"]] == ["90", "91", "92", "93", "94"]
    assert [piece.text for piece in splits["test"]] == ["95", "96", "97", "98", "99"]
    assert len(splits["train"]) == 90


def test_shares_cut_a_single_document_between_words() -> None:
    text = " ".join(["word"] * 200)
    splits = selected(FractionSplit(), [Piece(text[:500], ends=False), Piece(text[500:])])
    for found in splits.values():
        assert all(word == "word" for word in "".join(piece.text for piece in found).split())
        assert [piece.ends for piece in found] == [False] * (len(found) - 1) + [True]
    assert abs(sum(len(piece.text) for piece in splits["valid"]) - 0.05 * len(text)) < 10


def test_hashes_keep_documents_whole_and_each_in_its_split_whatever_else_there_is() -> None:
    pieces = [piece for n in range(400) for piece in (Piece(f"begin {n}", ends=False), Piece("the end"))]
    splits = selected(HashedDocuments(0.1), pieces)
    for found in splits.values():
        assert [piece.ends for piece in found] == [False, True] * (len(found) // 2)
    counts = {split: len(found) // 2 for split, found in splits.items()}
    assert sum(counts.values()) == 400
    assert 20 < counts["valid"] < 60
    assert 20 < counts["test"] < 60
    fewer = selected(HashedDocuments(0.1), pieces[100:])
    for split, found in fewer.items():
        assert {piece.text for piece in found} <= {piece.text for piece in splits[split]}


def test_large_corpora_are_cut_as_published_and_small_ones_by_shares() -> None:
    many = selected(LastDocuments(count=5), [Piece(str(number)) for number in range(100)])
    assert [piece.text for piece in many["valid"]] == ["95", "96", "97", "98", "99"] == [p.text for p in many["test"]]
    assert len(many["train"]) == 95
    few = selected(LastDocuments(count=50), [Piece(str(number)) for number in range(100)])
    assert len(few["train"]) == 90
    letters = selected(FirstCharacters(train=9, valid=2, test=1), [Piece("abcdef", ends=False), Piece("ghijklmn")])
    assert ["".join(piece.text for piece in found) for found in letters.values()] == ["abcdefghi", "jk", "l"]
    assert [found[-1].ends for found in letters.values()] == [True, True, True]
