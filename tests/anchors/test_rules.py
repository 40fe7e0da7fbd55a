from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from adlm.anchors.rules import EveryToken, Given, RareInSequence
from adlm.errors import DataError
from tests.conftest import batch_of


@given(
    st.integers(1, 30).flatmap(
        lambda length: st.lists(st.lists(st.integers(0, 4), min_size=length, max_size=length), min_size=1, max_size=4)
    ),
    st.integers(1, 6),
    st.data(),
)
def test_rare_tokens_are_those_a_count_finds(rows, most, data):
    lengths = [data.draw(st.integers(0, len(row))) for row in rows]
    valid = torch.arange(len(rows[0])) < torch.tensor(lengths)[:, None]
    expected = [
        [i < n and Counter(row[:n])[token] <= most for i, token in enumerate(row)]
        for row, n in zip(rows, lengths, strict=True)
    ]
    assert RareInSequence(most).mark(batch_of(rows, valid)).tolist() == expected


def test_given_anchors_are_those_of_the_data():
    batch = batch_of([[1, 2, 3]], torch.tensor([[True, True, False]]))
    marked = replace(batch, anchors=torch.tensor([[True, False, True]]))
    assert Given().mark(marked).tolist() == [[True, False, False]]
    with pytest.raises(DataError, match="the batch brings none"):
        Given().mark(batch)


def test_every_token_is_every_valid_one():
    valid = torch.tensor([[True, False]])
    assert torch.equal(EveryToken().mark(batch_of([[1, 2]], valid)), valid)


def test_marks_equal_the_official_ones():
    expected = load_file(Path(__file__).resolve().parents[1] / "golden/adlm_tiny_expected.safetensors")
    for name, most in (("anchor_mask", 5), ("anchor_mask_threshold2", 2)):
        key = next(key for key in expected if key.endswith(f".{name}") or key == name)
        tokens = expected[key.removesuffix(name) + "x0"]
        assert torch.equal(RareInSequence(most).mark(batch_of(tokens)), expected[key].bool())
