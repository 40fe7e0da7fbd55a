import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adlm.data.packing import NOTHING, Encoded, Padded, Wrapped
from adlm.data.tokenizer import Roles
from adlm.errors import OutOfRange
from tests.errors import raises

ROLES = Roles(vocab_size=100, mask_id=99, eos_id=90, bos_id=91, pad_id=92)
DOCUMENTS = st.lists(st.lists(st.integers(0, 50), max_size=20), max_size=8)


def encoded(documents):
    return [Encoded(np.array(document, np.int64)) for document in documents]


def in_steps(packing, pieces, cuts):
    """Pack `pieces` in several calls: what a resumed or chunked preparation does."""
    rest, rows, lengths = NOTHING, [], []
    for start, stop in zip([0, *cuts], [*cuts, len(pieces)], strict=True):
        packed = packing.pack(rest, pieces[start:stop], ROLES)
        rest = packed.rest
        rows += packed.rows.tolist()
        lengths += packed.lengths.tolist()
    return rows, lengths, rest.tolist()


@given(DOCUMENTS)
def test_wrapping_loses_and_adds_nothing_but_end_tokens(documents):
    packed = Wrapped(8).pack(NOTHING, encoded(documents), ROLES)
    stream = [i for document in documents for i in [*document, ROLES.eos_id]]
    assert [*packed.rows.flatten(), *packed.rest] == stream


def test_framed_rows_begin_and_end_as_published():
    rows = Wrapped(6, framed=True).pack(NOTHING, encoded([[1, 2, 3, 4, 5, 6, 7]]), ROLES).rows
    assert rows.tolist() == [[91, 1, 2, 3, 4, 90], [91, 5, 6, 7, 90, 90]]


def test_one_long_document_is_not_separated_when_asked():
    assert Wrapped(4, separated=False).pack(NOTHING, encoded([[1, 2, 3], [4]]), ROLES).rows.tolist() == [[1, 2, 3, 4]]


def test_padded_rows_continue_and_cropped_rows_do_not():
    documents = encoded([[1, 2, 3, 4, 5], [6]])
    assert Padded(4).pack(NOTHING, documents, ROLES).rows.tolist() == [
        [91, 1, 2, 3],
        [4, 5, 90, 92],
        [91, 6, 90, 92],
    ]
    cropped = Padded(4, crop=True).pack(NOTHING, documents, ROLES)
    assert cropped.rows.tolist() == [[91, 1, 2, 90], [91, 6, 90, 92]]
    assert cropped.lengths.tolist() == [4, 3]


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 50), max_size=20), st.booleans()), max_size=10),
    st.data(),
    st.sampled_from([Wrapped(7), Wrapped(7, framed=True), Padded(5), Padded(5, crop=True), Padded(6, begin=False)]),
)
def test_packing_in_steps_equals_packing_at_once(parts, data, packing):
    pieces = [Encoded(np.array(ids, np.int64), ends) for ids, ends in parts]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(pieces)), max_size=4)))
    assert in_steps(packing, pieces, cuts) == in_steps(packing, pieces, [])


def test_a_row_too_short_to_frame_is_refused():
    with raises(OutOfRange, subject="length"):
        Wrapped(2)
