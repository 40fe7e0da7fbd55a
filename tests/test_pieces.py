"""Tokens as they are shown: characters of several tokens are put together."""

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from adlm.anchors import EveryToken, RareInSequence
from adlm.data.tokenizer import END, train_bpe, with_roles
from adlm.pieces import Pieces, anchors_by, anchors_in, joined

BYTES = train_bpe(["the cat sat."], 262)
TEXTS = ["the café was open — or not", "שלום 🦊🦊", "naïve ☃"]


@pytest.mark.parametrize("text", TEXTS)
def test_characters_of_several_tokens_stand_in_the_first_of_them(text):
    pieces = Pieces(BYTES)
    row = [pieces[i] for i in BYTES.encode(text).tolist()]
    shown = joined(row)
    assert "".join(shown) == text
    assert "\ufffd" not in "".join(row)
    assert len(shown) == len(row) > len([piece for piece in shown if piece])


def test_a_character_of_which_a_part_is_missing_has_a_sign():
    pieces = Pieces(BYTES)
    dash = [pieces[i] for i in BYTES.encode("—").tolist()]
    assert dash == ["\\xe2", "\\x80", "\\x94"]
    assert joined([dash[0], None, dash[2]]) == ["◌", None, "◌"]
    assert joined([*dash[:2], "a"]) == ["◌", "", "a"]
    assert joined([*dash, *dash[:1]]) == ["—◌", "", "", ""]


def test_bytes_of_sentencepiece_are_joined_too():
    names = [END, "a", "<0xC3>", "<0xA9>"]
    backend = Backend(models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    pieces = Pieces(with_roles(backend))
    assert joined([pieces[1], pieces[2], pieces[3]]) == ["a", "é", ""]


@pytest.mark.parametrize("rule", [RareInSequence(1), RareInSequence(2), EveryToken()])
def test_anchors_of_one_row_are_those_of_a_batch(rule):
    row, ignored = [5, 3, 5, 9, 3, 5, 0, 9, 0, 4], {0, 9}
    tokens = torch.tensor([row])
    expected = anchors_by(rule, tokens, ~torch.isin(tokens, torch.tensor([*ignored])))[0].nonzero()[:, 0].tolist()
    assert anchors_in(rule, row, ignored) == expected
    assert expected
