"""Random batches for anchor rules, with padding on any side."""

import torch
from hypothesis import strategies as st

from adlm.types import Batch
from tests.conftest import batch_of

VOCAB = 6


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Up to four rows of up to thirty tokens, padded right, left or anywhere; padding holds ids out of range too."""
    count, length = draw(st.integers(1, 4)), draw(st.integers(1, 30))
    tokens = torch.tensor(
        draw(
            st.lists(
                st.lists(st.integers(0, VOCAB - 1), min_size=length, max_size=length), min_size=count, max_size=count
            )
        )
    )
    text = torch.tensor(draw(st.lists(st.integers(0, length), min_size=count, max_size=count)))[:, None]
    side = draw(st.sampled_from(["right", "left", "anywhere"]))
    if side == "anywhere":
        row = st.lists(st.booleans(), min_size=length, max_size=length)
        valid = torch.tensor(draw(st.lists(row, min_size=count, max_size=count)))
    else:
        positions = torch.arange(length) if side == "right" else torch.arange(length).flip(0)
        valid = positions < text
    padding = draw(st.sampled_from([0, 1, VOCAB + 100, -100]))
    return batch_of(tokens.masked_fill(~valid, padding), valid)


def marks_of(batch: Batch, decide) -> list[list[bool]]:
    """The plain reference: `decide(row)` gets a row's valid tokens as a list and says which are anchors."""
    marks = []
    for tokens, valid in zip(batch.tokens.tolist(), batch.valid.tolist(), strict=True):
        chosen = iter(decide([token for token, counts in zip(tokens, valid, strict=True) if counts]))
        marks.append([counts and next(chosen) for counts in valid])
    return marks
