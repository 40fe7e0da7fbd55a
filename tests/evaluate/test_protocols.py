from dataclasses import fields, replace
from itertools import islice

import pytest

from adlm.data.packing import Padded, Wrapped
from adlm.data.tokenizer import characters, load_tokenizer, train_bpe
from adlm.errors import ConfigError, UnknownName
from adlm.evaluate.documents import packed_rows
from adlm.evaluate.protocols import PROTOCOLS, counting, described, protocol_named
from adlm.objectives.likelihood import ESTIMATORS
from adlm.recipes.named import recipe
from tests.errors import raises


def test_text8_fits_a_model_of_letters_in_rows_of_256_and_no_other():
    text8 = protocol_named("text8")
    text8.check(characters(), Wrapped(256, separated=False))
    with raises(ConfigError, subject="protocol") as error:
        text8.check(train_bpe(["a zone"] * 3, 260), Wrapped(128))
    assert "vocabulary of 260 instead of 30" in error.value.found
    assert "a tokenizer that is not characters" in error.value.found
    with raises(UnknownName, subject="text"):
        protocol_named("text")


def test_letters_in_another_order_are_another_tokenizer():
    with raises(ConfigError, subject="protocol"):
        protocol_named("text8").check(characters("abcdefghijklmnopqrstuvwxyz "), Wrapped(256))


def test_published_tokenizers_are_known_by_their_ids(shared):
    bert = load_tokenizer(shared / "data/vocab/bert-base-uncased-vocab.txt")
    gpt2 = load_tokenizer(shared / "data/vocab")
    lm1b, openwebtext = protocol_named("lm1b"), protocol_named("openwebtext")
    lm1b.check(bert, lm1b.packing)
    openwebtext.check(gpt2, openwebtext.packing)
    for chosen, other in ((lm1b, gpt2), (openwebtext, bert)):
        with raises(ConfigError, subject="protocol"):
            chosen.check(other, chosen.packing)


@pytest.mark.parametrize("name", ["lm1b", "openwebtext"])
def test_rows_are_those_of_the_published_runs(name):
    assert recipe(f"{name}-adlm").data.packing == PROTOCOLS[name].packing


def test_a_text_of_another_size_is_said_to_be_a_cut_of_our_own(tmp_path):
    text8 = protocol_named("text8")
    (tmp_path / "text8").write_text("the quick brown fox " * 2000)
    source = text8.open(str(tmp_path))
    size = sum(len(piece.text) for piece in source.pieces("test"))
    own = f"{size:,} characters of text, a cut of our own; the published split has 5,000,000"
    assert text8.departures(source, text8.packing, None) == [own]
    assert not replace(text8, size=("characters", size)).departures(source, text8.packing, None)
    assert text8.departures(source, Wrapped(256), 2) == [
        own,
        "of these the first 2 rows alone",
        f"the model was trained on other rows, {Wrapped(256)}",
    ]


def test_a_protocol_is_that_of_one_text(tmp_path):
    with raises(ConfigError, subject="data"):
        protocol_named("text8").open("lm1b")


def test_one_sentence_a_row_is_read_from_the_usual_file(shared, tmp_path):
    bert = load_tokenizer(shared / "data/vocab/bert-base-uncased-vocab.txt")
    with (shared / "data/lm1b/news.en.heldout-00000-of-00050").open() as file:
        (tmp_path / "news.en.heldout-00000-of-00050").write_text("".join(islice(file, 300)))
    lm1b = protocol_named("lm1b")
    source = lm1b.open(str(tmp_path))
    table = packed_rows(source, "test", bert, lm1b.packing)
    assert len(table) == table.read == 300
    assert lm1b.departures(source, lm1b.packing, None)[0].startswith("300 documents")
    assert (table.row_lengths <= 128).all()
    assert (table.text[table.starts] == bert.roles.bos_id).all()


def test_what_counts_is_said_for_every_packing():
    assert "begin and end tokens are scored" in counting(Wrapped(8, framed=True))
    assert "end tokens are scored" in counting(Wrapped(8))
    assert "text alone is scored" in counting(Wrapped(8, separated=False))
    assert "padding is neither seen nor scored" in counting(Padded(8))
    assert "padding is neither seen nor scored" in counting(Wrapped(8), documents=True)
    assert "padding is scored" in counting(Padded(8, predict_padding=True))


def test_what_decides_a_figure_is_described_and_estimation_is_apart():
    options = {"draws": 8, "documents": True, "stride": 4, "limit": 9}
    tokenizer = characters()
    one, two = (described(Padded(8), tokenizer, ESTIMATORS[name], **options) for name in ("counts", "exact"))
    assert one.pop("estimator") != two.pop("estimator")
    assert one == two
    other = described(Padded(8), tokenizer, ESTIMATORS["counts"], **{**options, "stride": 8})
    assert other["rows"] != one["rows"]


def test_protocols_are_values():
    assert {field.name for field in fields(PROTOCOLS["lm1b"])} >= {"data", "split", "tokenizer", "packing"}
    assert all(name == each.name for name, each in PROTOCOLS.items())
    assert hash(PROTOCOLS["lm1b"]) != hash(PROTOCOLS["text8"])
