import pickle

from adlm.errors import DataError, MissingExtra, UnknownName, optional_module
from tests.errors import raises


def test_messages_have_three_parts():
    assert str(DataError("asked", "this", "that")).splitlines() == ["asked", "  found: this", "  to do: that"]


def test_unknown_names_offer_the_nearest():
    assert "did you mean 'wikitext2'" in str(UnknownName("data set", "wikitex2", ["kjv", "wikitext2"]))


def test_errors_cross_process_borders_whole():
    for error in (DataError("a", "b", "c"), UnknownName("kind", "x", ["y"])):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


def test_a_missing_extra_is_named():
    with raises(MissingExtra, subject="serve"):
        optional_module("no_such_module_anywhere", extra="serve", purpose="serving")
    assert optional_module("json", extra="serve", purpose="serving").__name__ == "json"
