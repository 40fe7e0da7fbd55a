from hypothesis import given
from hypothesis import strategies as st

from adlm.data.source import cut_safely
from adlm.data.tokenizer import train_bpe
from tests.conftest import Texts

TOKENIZER = train_bpe(["the cat sat on the mat, and the dog sat too.\n\n  Then they ran."] * 4, 300)


@given(st.lists(st.text(alphabet="ab ,.\n\t'1"), max_size=8), st.integers(1, 12))
def test_pieces_join_to_the_text_and_only_the_last_ends_it(chunks, size):
    pieces = list(cut_safely(chunks, size))
    assert "".join(piece.text for piece in pieces) == "".join(chunks)
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]


@given(st.text(alphabet="cats do,.\n'1", max_size=80), st.integers(6, 12))
def test_cutting_does_not_change_the_tokens(text, size):
    pieces = [piece.text for piece in cut_safely([text], size)]
    if all(len(piece) < 2 * size for piece in pieces):  # no stretch without a place to cut
        assert [i for piece in pieces for i in TOKENIZER.encode(piece)] == TOKENIZER.encode(text).tolist()


def test_a_long_stretch_without_spaces_is_cut_in_linear_time():
    pieces = list(cut_safely(["a" * 1000] * 20_000, 1 << 12))
    assert sum(len(piece.text) for piece in pieces) == 20_000_000
    assert max(len(piece.text) for piece in pieces) <= 1 << 13


def test_a_beginning_stops_after_so_many_characters():
    assert list(Texts(("one", "two", "three")).beginning("train", 4)) == ["one", "two"]


def test_documents_join_their_pieces():
    assert list(Texts(("one", "two")).documents("train")) == ["one", "two"]
